/* The operations this program knows. A new one adds its line here, a section to
 * config/experiment.c, and a member to the unions of problem.h and algorithm.h. */
#include "op/op.h"

#include "base/random.h"
#include "op/moe/moe.h"

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
    const struct epa_algorithm_plugin *algorithm = (const void *)x->algorithm.plugin;

    return algorithm != NULL ? operation_of(algorithm->op) : NULL;
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

uint32_t op_tokens_of(const struct experiment *x, uint32_t most, uint32_t rank, uint64_t iteration)
{
    struct random r = {.key = random_key(x->seed, RANDOM_TOKENS, rank, iteration)};
    uint32_t least = x->tokens.min, tokens;

    switch (x->tokens.kind) {
    case TOKENS_RANDOM: /* the edges more often than chance would have it */
        switch (random_below(&r, 8)) {
        case 0:
            return least;
        case 1:
            return most;
        default:
            return least + random_below(&r, most - least + 1);
        }
    case TOKENS_LIST:
        tokens = x->tokens.per_rank.item[rank];
        return tokens < most ? tokens : most;
    default:
        return most;
    }
}
