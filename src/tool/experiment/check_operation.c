/* Checks of the options of operations: their table, and the checks of allgather and ag_gemm. */
#include "experiment/check_operation.h"

#include <stdio.h>

#include "base/memory.h"
#include "experiment/check_moe.h"
#include "op/ag_gemm.h"
#include "experiment/operation.h"

static void check_allgather_options(const struct config_check *c)
{
    uint32_t bytes = c->x->problem.allgather.row_bytes;

    if (bytes % 16 != 0)
        check_conflict(c, "allgather.row_bytes", NULL,
                       check_multiples(c, "allgather.row_bytes", 16), "%s is not a multiple of 16",
                       check_value(c, "allgather.row_bytes", bytes));
}

static void check_ag_gemm_options(const struct config_check *c)
{
    const struct experiment *x = c->x;
    uint64_t sum = 0;

    if (x->problem.gemm.k % 8 != 0)
        check_conflict(c, "gemm.k", NULL, check_multiples(c, "gemm.k", 8),
                       "%s is not a multiple of 8", check_value(c, "gemm.k", x->problem.gemm.k));
    if (x->problem.tokens.kind == TOKENS_RANDOM &&
        x->problem.tokens.min > ag_gemm_max_rows(&x->problem))
        check_conflict(c, "tokens.min", "gemm.m", NULL,
                       "%s is more than a rank's share of %s: %u rows",
                       check_value(c, "tokens.min", x->problem.tokens.min),
                       check_value(c, "gemm.m", x->problem.gemm.m), ag_gemm_max_rows(&x->problem));
    for (uint32_t i = 0; x->problem.tokens.kind == TOKENS_LIST && i < x->problem.tokens.per_rank.n;
         i++)
        sum += x->problem.tokens.per_rank.item[i];
    if (sum > x->problem.gemm.m)
        check_conflict(c, "tokens.per_rank", "gemm.m", NULL,
                       "tokens.per_rank: %llu rows together are more than %s",
                       (unsigned long long)sum, check_value(c, "gemm.m", x->problem.gemm.m));
}

static const struct operation_checks checks[] = {
    {EPA_OP_MOE, check_moe_options, check_moe_footprint},
    {EPA_OP_ALLGATHER, check_allgather_options, NULL},
    {EPA_OP_AG_GEMM, check_ag_gemm_options, NULL},
};

const struct operation_checks *operation_checks_of(enum epa_op op)
{
    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++)
        if (checks[i].op == op)
            return &checks[i];
    return NULL;
}

bool experiment_takes(const void *experiment, const char *key, uint64_t value, char *why,
                      size_t room)
{
    const struct operation *op = operation_of_experiment(experiment);
    struct experiment copy = *(const struct experiment *)experiment;
    const struct config_check c = {&copy, NULL, operation_checks_of(op->op)->check_options, NULL};
    const char *reason = NULL;
    bool good;

    copy.arena = arena_create();
    good = check_takes(&c, key, value, &reason);
    snprintf(why, room, "%s", reason != NULL ? reason : "");
    arena_destroy(copy.arena);
    return good;
}
