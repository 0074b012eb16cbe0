/* Creation and memory of a rank. */
#ifndef OP_MOE_CREATE_H
#define OP_MOE_CREATE_H

#include <stdbool.h>
#include <stdint.h>

#include "op/moe/moe_state.h"

/* Functions of the table; op.h describes them. */

enum epa_status op_moe_refuse(const struct problem_params *, const struct epa_footprint *,
                              struct epa_error *);
enum epa_status op_moe_init(struct op_rank *, const struct op_params *, struct epa_error *);
void op_moe_finish(struct op_rank *);
uint64_t op_moe_bytes(const struct problem_params *, const struct epa_footprint *, enum epa_memory,
                      uint32_t slots, bool checks);

#endif
