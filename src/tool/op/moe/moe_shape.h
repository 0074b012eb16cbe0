/* The shape of a moe problem. */
#ifndef OP_MOE_SHAPE_H
#define OP_MOE_SHAPE_H

#include <epa2a/problem.h>

struct problem_params;

/* Sets the members that are the same in all ranks and iterations. */
void op_moe_shape(const struct problem_params *, uint32_t rank, struct epa_problem *out);

#endif
