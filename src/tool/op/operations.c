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

const struct operation *operation_of_experiment(const struct experiment *x)
{
    return algorithm_of(x) != NULL ? operation_of(algorithm_of(x)->op) : NULL;
}

uint32_t operation_copies(const struct experiment *x)
{
    const struct operation *op = operation_of_experiment(x);

    return op->copies != NULL ? op->copies(x) : 1;
}

void operation_names(uint32_t ops, struct text *out)
{
    for (uint32_t i = 0; operations[i] != NULL; i++)
        if ((ops >> (uint32_t)operations[i]->op & 1) != 0)
            text_add(out, "%s%s", out->bytes == 0 ? "" : ", ", operations[i]->name);
}

struct epa_problem operation_problem(const struct experiment *x)
{
    struct epa_problem problem;

    operation_of_experiment(x)->shape(x, &problem);
    return problem;
}
