/* The shape of a moe problem. */
#ifndef OP_MOE_SHAPE_H
#define OP_MOE_SHAPE_H

#include <epa2a/problem.h>

struct experiment;

/* Sets the members that are the same in all ranks and iterations. */
void op_moe_shape(const struct experiment *, struct epa_problem *out);

#endif
