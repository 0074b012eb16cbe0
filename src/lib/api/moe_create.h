/* Creation of a moe. */
#ifndef API_MOE_CREATE_H
#define API_MOE_CREATE_H

#include "api/moe_state.h"

/* Creates a moe with its work space in the memory of the backend. */
EPA_CHECKED enum epa_status moe_make(const struct moe_plan *, struct epa_backend *,
                                     struct epa2a_moe **out, struct epa_error *);
/* Opens the transport of the moe and creates the algorithm. Collective. */
EPA_CHECKED enum epa_status moe_open(struct epa2a_moe *, struct ep_comm *,
                                     const struct ep_transport_params *, struct epa_error *);
void moe_free(struct epa2a_moe *); /* accepts NULL */

#endif
