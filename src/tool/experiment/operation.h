/* The operation of an experiment. */
#ifndef EXPERIMENT_OPERATION_H
#define EXPERIMENT_OPERATION_H

#include "config/experiment.h"
#include "op/operations.h"

/* Returns the operation of the experiment's algorithm; NULL: no algorithm, or unknown. */
const struct operation *operation_of_experiment(const struct experiment *);
/* Returns the number of copies of each row or token of the experiment (topk). */
uint32_t operation_copies(const struct experiment *);
/* Returns the shapes of a problem of a rank. Rank 0 has the largest shapes, which plans use. */
struct epa_problem operation_problem(const struct experiment *, uint32_t rank);

#endif
