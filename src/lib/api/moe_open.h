/* Open dispatches of a moe, and stages of its algorithm. moe_state.h explains the rules. */
#ifndef API_MOE_OPEN_H
#define API_MOE_OPEN_H

#include "api/moe_state.h"

enum { MOE_DISPATCH, MOE_COMBINE };

/* Runs both stages of a dispatch or combine. */
EPA_CHECKED enum epa_status moe_run(struct epa2a_moe *, int which, struct epa_problem *,
                                    struct epa_error *);
/* Runs a stage. A failure breaks the comm, so errors of the algorithm have EPA_ERR_SYSTEM. */
EPA_CHECKED enum epa_status moe_stage(struct epa2a_moe *, const struct epa_stage *,
                                      struct epa_problem *, struct epa_error *);

/* Finds a record for the next dispatch. Closes dispatches that linger if the algorithm needs a
 * buffer set. EPA_ERR_CONFIG: all sets are open. */
EPA_CHECKED enum epa_status moe_open_record(struct epa2a_moe *, struct moe_record **out,
                                            struct epa_error *);
/* Checks that the caller owes no combine for a dispatch before `record`. */
EPA_CHECKED enum epa_status moe_open_check_order(const struct epa2a_moe *,
                                                 const struct moe_record *, struct epa_error *);
/* Closes dispatches before `record`, which linger. */
EPA_CHECKED enum epa_status moe_open_order(struct epa2a_moe *, const struct moe_record *,
                                           struct epa_error *);
/* Finds the open dispatch, or the last combined dispatch, whose combine is then repeated (*again). */
EPA_CHECKED enum epa_status moe_open_find(struct epa2a_moe *, uint64_t id, struct moe_record **out,
                                          bool *again, struct epa_error *);
/* Returns the newest dispatch along the routes that is open or lingers; NULL: none. */
struct moe_record *moe_open_find_route(struct epa2a_moe *, uint64_t route);
/* Checks that the caller owes no combine for a dispatch except `except` (or NULL), so that
 * moe_open_lane() may follow. */
EPA_CHECKED enum epa_status
moe_open_check_lane(const struct epa2a_moe *, const struct moe_record *except, struct epa_error *);
/* Dispatches arbitrary tokens along the choices, as moe->lane. */
EPA_CHECKED enum epa_status moe_open_lane(struct epa2a_moe *, uint32_t tokens,
                                          const int32_t *expert, const float *weight,
                                          struct epa_error *);
EPA_CHECKED enum epa_status moe_open_discard(struct epa2a_moe *, const struct epa2a_received *,
                                             struct epa_error *);

/* Makes progress on the open half call. */
EPA_CHECKED enum epa_status moe_progress(struct epa2a_moe *, struct epa_error *);

#endif
