/* Expert outputs as values of LogFMT-10 (EPA2A_COMBINE_LOGFMT). */
#ifndef API_MOE_LOGFMT_H
#define API_MOE_LOGFMT_H

#include "api/moe_state.h"

/* Checks the flags of a combine. */
EPA_CHECKED enum epa_status moe_check_logfmt(const struct epa2a_moe *, const struct epa2a_outputs *,
                                             struct epa_error *);

/* Rounds the expert outputs y of an open dispatch into the memory of the algorithm, which becomes the
 * input of the combine. On a device the function queues the work. */
EPA_CHECKED enum epa_status moe_round_logfmt(struct epa2a_moe *, struct moe_record *, const void *y,
                                             struct epa_error *);

#endif
