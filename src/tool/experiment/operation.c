/* The operation of an experiment. */
#include "experiment/operation.h"

const struct operation *operation_of_experiment(const struct experiment *x)
{
    return algorithm_of(x) != NULL ? operation_of(algorithm_of(x)->op) : NULL;
}

uint32_t operation_copies(const struct experiment *x)
{
    const struct operation *op = operation_of_experiment(x);

    return op->copies != NULL ? op->copies(&x->problem) : 1;
}

struct epa_problem operation_problem(const struct experiment *x, uint32_t rank)
{
    struct epa_problem problem;

    operation_of_experiment(x)->shape(&x->problem, rank, &problem);
    return problem;
}
