/* This rank's weights of real experts. */
#ifndef OP_MOE_EXPERT_WEIGHTS_H
#define OP_MOE_EXPERT_WEIGHTS_H

#include <stdint.h>

#include "experts/mlp_weights.h"
#include "op/moe/moe_state.h"

/* The rank's weights as functions of the seed. The op must outlive the source. */
struct mlp_source op_moe_weights_source(const struct op_moe *);
/* Makes the weights in backend memory and sets op->mlp. */
enum epa_status op_moe_weights_place(struct op_moe *, struct epa_error *);
/* Host memory of op_moe_weights_place() with a device backend. */
uint64_t op_moe_weights_stage_bytes(const struct weights *);

#endif
