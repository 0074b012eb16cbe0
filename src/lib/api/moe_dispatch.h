/* The halves of a dispatch. */
#ifndef API_MOE_DISPATCH_H
#define API_MOE_DISPATCH_H

#include "api/moe_state.h"

EPA_CHECKED enum epa_status moe_dispatch_send(struct epa2a_moe *, const struct epa2a_tokens *,
                                              struct epa2a_received *, bool again,
                                              struct epa_error *);
EPA_CHECKED enum epa_status moe_dispatch_recv(struct epa2a_moe *, struct epa2a_received *,
                                              struct epa_error *);

#endif
