/* Real experts of a rank. */
#ifndef OP_MOE_EXPERTS_MLP_H
#define OP_MOE_EXPERTS_MLP_H

#include <stddef.h>
#include <stdint.h>

#include "op/moe/moe_state.h"

/* Creates this rank's weights and the experts of its backend. Creates neither if the algorithm computes
 * the experts, or for synthetic experts on hosts. */
enum epa_status op_moe_mlp_create(struct op_moe *, struct epa_error *);
void op_moe_mlp_destroy(struct op_moe *);
struct op_weights op_moe_mlp_bytes(const struct problem_params *, const struct epa_footprint *,
                                   enum epa_memory, uint32_t workers);

void op_moe_mlp_by(const struct op_rank *, char *out, size_t room);

#endif
