/* The operations of this program. */
#ifndef OPERATIONS_H
#define OPERATIONS_H

#include "op/op.h"

/* Returns NULL for an unknown operation. */
const struct operation *operation_of(enum epa_op);
/* Returns the i-th operation for lists; NULL after the last one. */
const struct operation *operation_at(uint32_t i);

/* Adds the names of the operations in a mask of 1 << enum epa_op: "moe, allgather". */
void operation_names(uint32_t ops, struct text *out);

#endif
