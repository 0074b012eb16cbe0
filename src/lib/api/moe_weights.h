/* Weights that combine returns. */
#ifndef API_MOE_WEIGHTS_H
#define API_MOE_WEIGHTS_H

#include "api/moe_state.h"

/* Checks the weights of a combine. */
EPA_CHECKED enum epa_status moe_check_weights(const struct epa2a_moe *,
                                              const struct epa2a_outputs *, struct epa_error *);

/* Sends topk_weight of the outputs back to the sources and writes out_weight. */
EPA_CHECKED enum epa_status moe_return_weights(struct epa2a_moe *, struct epa_error *);

#endif
