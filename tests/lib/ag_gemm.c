/* Tests of epa2a_ag_gemm_*: C equals the reference of the program, over several transports, with ranks as
 * processes and as threads. */
#include "../unit/test.h"

#include <epa2a.h>

#include "group.h"
#include "oracle.h"

enum { ITERATIONS = 5, SIZES = 4, TEXT = 500 };

static const struct {
    const char *dtype;
    bool bias;
    int32_t value;
} dtypes[] = {
    {"bf16", false, EPA2A_BF16},
    {"f16", true, EPA2A_F16},
    {"fp8", true, EPA2A_FP8_E4M3},
};

static const char *const algorithms[] = {"ag_gemm_2d", "ag_then_gemm"};

struct task {
    const struct experiment *x;
    const char *transport, *options;
    int32_t dtype;
};

static int rank_fails(struct group_rank *me, const char *what, const char *why)
{
    snprintf(me->result->text, sizeof(me->result->text), "%s: %s", what, why);
    return me->result->code = 1;
}

static int create(struct group_rank *me, struct op_rank *op, struct epa2a_comm **comm,
                  struct epa2a_ag_gemm **out)
{
    const struct task *task = me->arg;
    const struct epa_ag_gemm *g = &oracle_inputs(op, 0)->u.ag_gemm;
    EPA2A_STRUCT(epa2a_comm_params, p);
    EPA2A_STRUCT(epa2a_ag_gemm_params, params);

    p.version = EPA2A_VERSION;
    p.rank = me->rank;
    p.ranks = me->ranks;
    p.allgather = group_allgather;
    p.arg = me;
    p.device = EPA2A_HOST;
    p.options = task->transport;
    params.max_rows = g->max_rows;
    params.n = g->n;
    params.k = g->k;
    params.dtype = task->dtype;
    params.b = g->b;
    params.b_scale = g->b_scale;
    params.bias = g->bias ? g->bias_of : NULL;
    params.options = task->options;
    if (epa2a_comm_create(&p, comm) != EPA2A_OK)
        return rank_fails(me, "comm", epa2a_last_error());
    if (epa2a_ag_gemm_create(*comm, &params, out) != EPA2A_OK)
        return rank_fails(me, "ag_gemm", epa2a_last_error());
    return 0;
}

static void gemm_rank(struct group_rank *me)
{
    const struct task *task = me->arg;
    struct epa_error err = {EPA_OK, ""};
    struct op_rank *op = oracle_create(task->x, me->rank, &err);
    struct epa2a_comm *comm = NULL;
    struct epa2a_ag_gemm *gemm = NULL;

    if (op == NULL) {
        (void)rank_fails(me, "oracle", err.text);
        return;
    }
    if (create(me, op, &comm, &gemm) == 0)
        for (uint64_t i = 0; i < ITERATIONS && me->result->code == 0; i++) {
            struct epa_ag_gemm *g = &oracle_inputs(op, i)->u.ag_gemm;

            if (epa2a_ag_gemm_run(gemm, g->rows, g->a, g->a_scale, g->c, NULL) != EPA2A_OK)
                (void)rank_fails(me, "run", epa2a_last_error());
            else if (oracle_check(op, EPA_STAGE_WHOLE, &err) != EPA_OK)
                (void)rank_fails(me, "check", err.text);
        }
    epa2a_ag_gemm_destroy(gemm);
    epa2a_comm_destroy(comm);
    op_destroy(op);
}

static void check_products(const char *transport, enum group_kind kind, uint32_t least,
                           uint32_t most)
{
    char yaml[TEXT], comm_options[64], options[64];

    snprintf(comm_options, sizeof(comm_options), "transport=%s", transport);
    for (uint32_t i = 0; i < LENGTH(algorithms) * LENGTH(dtypes); i++)
        for (uint32_t ranks = least; ranks <= most; ranks++) {
            const char *algorithm = algorithms[i / LENGTH(dtypes)];
            uint32_t d = i % LENGTH(dtypes);
            struct group *group;

            snprintf(options, sizeof(options), "algorithm=%s", algorithm);
            snprintf(yaml, sizeof(yaml),
                     "{version: 1, ranks: %u, transport: shm, algorithm: %s, seed: %u, "
                     "gemm: {m: %u, n: %u, k: 200, dtype: %s, bias: %s, values: integers}, "
                     "tokens: {kind: random, min: 0}}",
                     ranks, algorithm, ranks + i, 37 * ranks, 144 * ranks, dtypes[d].dtype,
                     dtypes[d].bias ? "true" : "false");
            group = group_run(ranks, kind, gemm_rank,
                              &(struct task){.x = oracle_read(yaml),
                                             .transport = comm_options,
                                             .options = options,
                                             .dtype = dtypes[d].value});
            for (uint32_t r = 0; r < ranks; r++)
                if (group_result(group, r)->code != 0)
                    fail_msg("rank %u of %u, %s, %s, %s: %s", r, ranks, transport, options,
                             dtypes[d].dtype, group_result(group, r)->text);
            group_free(group);
        }
}

TEST(processes_over_shm_equal_the_reference)
{
    check_products("shm", GROUP_PROCESSES, 1, SIZES);
}

TEST(threads_over_shm_equal_the_reference)
{
    check_products("shm", GROUP_THREADS, 2, 3);
}

TEST(processes_over_reorder_equal_the_reference)
{
    check_products("reorder", GROUP_PROCESSES, SIZES, SIZES);
}
