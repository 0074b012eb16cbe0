/* The operations of this program. A new operation adds a line to the table here, a section to
 * config/experiment.c, and a member to the unions of problem.h and algorithm.h. */
#include "op/operations.h"

#include "base/memory.h"

static const struct operation *const operations[] = {&op_moe, &op_allgather, &op_ag_gemm, NULL};

const struct operation *operation_at(uint32_t i)
{
    return operations[i];
}

const struct operation *operation_of(enum epa_op op)
{
    for (uint32_t i = 0; operations[i] != NULL; i++)
        if (operations[i]->op == op)
            return operations[i];
    return NULL;
}

void operation_names(uint32_t ops, struct text *out)
{
    for (uint32_t i = 0; operations[i] != NULL; i++)
        if ((ops >> (uint32_t)operations[i]->op & 1) != 0)
            text_add(out, "%s%s", out->bytes == 0 ? "" : ", ", operations[i]->name);
}
