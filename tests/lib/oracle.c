/* The program as the oracle of the library. */
#include "oracle.h"

#include <stdlib.h>

#include "config/diag.h"
#include "experiment/batch.h"
#include "experiment/operation.h"
#include "launch/program_registry.h"
#include "../unit/fake_backend.h"

/* Experiments of this process, which stay. */
static struct kept {
    struct batch *batch;
    struct kept *next;
} * kept;

static struct epa_backend host = {.ops = &host_ops, .memory = EPA_MEMORY_HOST, .device = -1};

const struct experiment *oracle_read(const char *yaml)
{
    static struct registry *registry;
    struct epa_error err = {EPA_OK, ""};
    struct diag *diag = diag_create();
    struct kept *read = calloc(1, sizeof(*read));

    read->next = kept;
    kept = read;
    if ((registry == NULL && program_registry_create(NULL, &registry, &err) != EPA_OK) ||
        batch_read("a test", yaml, NULL, 0, &(struct batch_pick){0}, 0, registry, diag,
                   &read->batch) != EPA_OK) {
        diag_print(diag, stderr);
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    diag_destroy(diag);
    return read->batch->run[0].x;
}

struct op_rank *oracle_create(const struct experiment *x, uint32_t rank, struct epa_error *err)
{
    const struct epa_world world = {.rank = rank, .size = x->problem.ranks};
    struct op_rank *op = NULL;

    (void)op_create(operation_of_experiment(x),
                    &(struct op_params){.problem = &x->problem,
                                        .world = &world,
                                        .footprint = &x->footprint,
                                        .backend = &host,
                                        .backend_name = "host",
                                        .slots = 1},
                    &op, err);
    return op;
}

struct epa_problem *oracle_inputs(struct op_rank *op, uint64_t iteration)
{
    return op_inputs(op, 0, iteration) == EPA_OK ? &op->slot[0].problem : NULL;
}

enum epa_status oracle_check(struct op_rank *op, enum epa_stage_kind kind, struct epa_error *err)
{
    uint64_t compared = 0, wrong = 0;

    return op_check(op, kind, 0, &compared, &wrong, err);
}
