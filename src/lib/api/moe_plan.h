/* Plan of a moe. */
#ifndef API_MOE_PLAN_H
#define API_MOE_PLAN_H

#include "api/moe_state.h"

/* Writes the options of an algorithm that follow from a shape of shape_read(). */
enum { MOE_PRESET_ROOM = 128 };
void moe_plan_preset(const struct epa2a_moe_shape *, bool cuda, char *out, size_t room);
/* Plans the algorithm for a shape and problem of shape_read(). `flags`: of the transport. */
EPA_CHECKED enum epa_status moe_plan_make(const struct epa2a_moe_shape *, const struct epa_moe *,
                                          const struct ep_choice *algorithm,
                                          const struct epa_world *, uint32_t flags,
                                          struct moe_plan *out, struct epa_error *);
/* cuda: for memory of a device. */
void moe_plan_need(const struct moe_plan *, bool cuda, struct epa2a_need *out);

#endif
