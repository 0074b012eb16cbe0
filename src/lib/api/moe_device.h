/* Dispatch and combine in memory of a CUDA device. The functions only queue work, except for
 * host_count of a dispatch. */
#ifndef API_MOE_DEVICE_H
#define API_MOE_DEVICE_H

#include "api/moe_state.h"

/* Checks that the algorithm stores rows in the order of the layout. */
EPA_CHECKED enum epa_status moe_device_check(const struct moe_plan *, struct epa_error *);

EPA_CHECKED enum epa_status moe_device_dispatch_send(struct epa2a_moe *,
                                                     const struct epa2a_tokens *,
                                                     struct epa2a_received *, bool again,
                                                     struct epa_error *);
EPA_CHECKED enum epa_status moe_device_dispatch_recv(struct epa2a_moe *, struct epa2a_received *,
                                                     struct epa_error *);
EPA_CHECKED enum epa_status moe_device_combine_send(struct epa2a_moe *,
                                                    const struct epa2a_received *,
                                                    const struct epa2a_outputs *,
                                                    struct epa_error *);
EPA_CHECKED enum epa_status moe_device_combine_recv(struct epa2a_moe *, struct epa_error *);
EPA_CHECKED enum epa_status moe_device_discard(struct epa2a_moe *, const struct epa2a_received *,
                                               struct epa_error *);

#endif
