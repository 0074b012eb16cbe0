/* The halves of a combine. */
#ifndef API_MOE_COMBINE_H
#define API_MOE_COMBINE_H

#include "api/moe_state.h"

EPA_CHECKED enum epa_status moe_combine_send(struct epa2a_moe *, const struct epa2a_received *,
                                             const struct epa2a_outputs *, struct epa_error *);
EPA_CHECKED enum epa_status moe_combine_recv(struct epa2a_moe *, struct epa_error *);

#endif
