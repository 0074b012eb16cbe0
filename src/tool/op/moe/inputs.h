/* Inputs and traffic of a rank. */
#ifndef OP_MOE_INPUTS_H
#define OP_MOE_INPUTS_H

#include <stdbool.h>
#include <stdint.h>

#include "op/moe/moe_state.h"

/* Functions of the table, up to op_moe_load(); op.h describes them. */

uint64_t op_moe_most_tokens(const struct problem_params *);
uint32_t op_moe_arrays(const struct problem_params *, uint64_t tokens, struct op_array *out);
/* Makes x (or x_fp8 and x_scale, with x NULL), expert, weight and tokens. */
uint32_t op_moe_inputs(struct op_rank *, struct op_slot *);
void op_moe_traffic(const struct op_rank *, uint32_t slot, struct op_traffic *sum);
/* Adds to a struct routing_stats, which is initially zero. */
void op_moe_stats_add(void *stats, const struct problem_params *, const struct op_source *,
                      uint64_t iteration);
void op_moe_load(const struct problem_params *, const struct epa_footprint *,
                 const struct op_source *, uint64_t iteration, struct op_load load[OP_PHASES]);

/* Writes the factors [experts] of an iteration. */
void op_moe_factors(const struct op_moe *, uint64_t iteration, float *out);

/* Makes the routing of a rank. With hard values and signed weights of the oracle every fourth iteration
 * has weights of both signs up to 4. */
void op_moe_route(const struct op_moe *, uint32_t rank, uint64_t iteration, uint32_t tokens,
                  int32_t *expert, float *weight);

/* Makes a token of any rank: [hidden] in dtype. */
void op_moe_token(const struct op_moe *, uint32_t rank, uint64_t iteration, uint32_t token,
                  uint16_t *out);

#endif
