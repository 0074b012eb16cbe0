/* The halves of a layer of fused on GPUs, each alone: the GEMMs compute the expert outputs of the last
 * layer again, equal to the bit, and a layer after both halves is right. Runs with each kind of
 * received rows: few tokens, picked, counted, sorted rows, copies of the tail, and FP8.
 *
 *   gpu-halves TRANSPORT.so fork|thread BACKEND.so [OPTION=VALUE...]
 *
 * The file of the algorithm is included, since the expert outputs are in its private memory. */
#include "../unit/test.h"

#include "../../plugins/algorithm/fused/fused_cuda.c"
#include "../contract/ranks.h"
#include "base/memory.h"
#include "base/text.h"
#include "config/diag.h"
#include "experiment/batch.h"
#include "gpu.h"
#include "launch/program_registry.h"
#include "op/operations.h"

enum { RANKS = 2, PAGE = 4096 };

static const struct shape {
    const char *name, *algorithm, *rest;
    uint32_t
        rows; /* rows that the GEMMs of all ranks multiply; few tokens: all rows in each expert */
} shapes[] = {
    {"few tokens", "", "moe: {max_tokens: 4, hidden: 256, experts: 4, topk: 4}\nexpert: {ffn: 128}",
     RANKS * 4 * 4},
    {"picked rows", "",
     "moe: {max_tokens: 40, hidden: 256, experts: 4, topk: 2}\nexpert: {ffn: 128}", RANKS * 40 * 2},
    {"counted rows", ", capacity: 64",
     "moe: {max_tokens: 40, hidden: 160, experts: 4, topk: 2}\n"
     "expert: {ffn: 96, activation: none}",
     RANKS * 40 * 2},
    {"sorted rows, in waves", ", capacity: 64, waves: 3",
     "moe: {max_tokens: 300, hidden: 128, experts: 32, topk: 16, dtype: f16}\nexpert: {ffn: 128}",
     RANKS * 300 * 16},
    {"copies of the tail", ", tail: true",
     "moe: {max_tokens: 100, hidden: 256, experts: 8, topk: 4}\nexpert: {ffn: 256}",
     RANKS * 100 * 4},
    {"FP8, blocks of 144 rows", ", capacity: 64, block_rows: 144, dispatch_dtype: fp8",
     "moe: {max_tokens: 136, hidden: 256, experts: 8, topk: 4}\n"
     "expert: {ffn: 128, weights: fp8}",
     RANKS * 136 * 4},
    {"FP8, picked rows", ", dispatch_dtype: fp8",
     "moe: {max_tokens: 40, hidden: 256, experts: 4, topk: 2}\nexpert: {ffn: 384, weights: fp8}",
     RANKS * 40 * 2},
    {"FP8 in groups of 64", ", dispatch_dtype: fp8",
     "moe: {max_tokens: 40, hidden: 320, experts: 4, topk: 2, fp8_group_size: 64}\n"
     "expert: {ffn: 192, weights: fp8, fp8_group_size: 64}",
     RANKS * 40 * 2},
    {"FP8 rows for weights of 16 bits", ", dispatch_dtype: fp8",
     "moe: {max_tokens: 40, hidden: 256, experts: 4, topk: 2}\nexpert: {ffn: 128}", RANKS * 40 * 2},
};

/* Shape and experiment of the current test. */
static const struct shape *shape;
static const struct experiment *experiment;

struct layer {
    struct rank *r;
    struct op_rank *op;
    struct epa_algorithm *a;
    struct epa_error err;
};

static const struct experiment *read_shape(const struct subject *subject)
{
    static struct registry *registry;
    struct diag *diag = diag_create();
    struct batch *batch = NULL;
    struct epa_error err = {EPA_OK, ""};
    text_auto text = {0};

    text_add(&text,
             "version: 1\nranks: %d\nlauncher: %s\nbackend: %s\ntransport: %s\ntokens: full\n"
             "timeout: 60s\nalgorithm: {name: fused%s}\n%.*s, kind: mlp, values: integers}\n",
             RANKS, subject->launcher->plugin.name, subject->backend->plugin.name,
             subject->plugin->plugin.name, shape->algorithm, (int)strlen(shape->rest) - 1,
             shape->rest);
    if ((registry == NULL && program_registry_create(NULL, &registry, &err) != EPA_OK) ||
        batch_read("a shape", text.data, NULL, 0, &(struct batch_pick){0}, 0, registry, diag,
                   &batch) != EPA_OK) {
        diag_print(diag, stderr);
        fail_msg("%s: %s", shape->name, err.text);
    }
    diag_destroy(diag);
    return batch->run[0].x;
}

/* Returns true if the call succeeded. Otherwise reports the failure and aborts the other ranks. */
static bool works_out(struct layer *l, enum epa_status status, const char *what)
{
    if (status == EPA_OK)
        return true;
    if (l->a != NULL)
        l->a->explain(l->a, &l->err);
    l->r->backend->ops->explain(l->r->backend, &l->err); /* keeps an earlier message */
    claim(l->r, false, "%s: %s: status %d: %s", shape->name, what, status, l->err.text);
    l->r->boot->abort(l->r->boot);
    return false;
}

static bool open_layer(struct layer *l)
{
    const struct op_params params = {.problem = &experiment->problem,
                                     .world = &l->r->boot->world,
                                     .footprint = &experiment->footprint,
                                     .backend = l->r->backend,
                                     .backend_name = "cuda",
                                     .slots = 1};
    struct epa_problem problem = {.op = EPA_OP_MOE};

    if (!works_out(l, op_create(operation_of(EPA_OP_MOE), &params, &l->op, &l->err), "inputs"))
        return false;
    operation_of(EPA_OP_MOE)->shape(&experiment->problem, 0, &problem);
    operation_of(EPA_OP_MOE)->weights(l->op, &problem);
    return works_out(
        l,
        fused_cuda_create(
            &(struct epa_algorithm_params){.problem = &problem,
                                           .world = l->r->boot->world,
                                           .transport = l->r->t,
                                           .backend = l->r->backend,
                                           .config = experiment->algorithm.config,
                                           .transport_flags = l->r->subject->plugin->flags,
                                           .timeout_ns = experiment->timeout_ns},
            &l->a, &l->err),
        "create");
}

static bool run_stage(struct layer *l, const struct epa_stage *stage)
{
    return works_out(l, stage->run(l->a, &l->op->slot[0].problem), stage->name) &&
           works_out(l, l->r->backend->ops->sync(l->r->backend), stage->name);
}

static bool run_whole(struct layer *l, uint64_t iteration)
{
    uint64_t compared = 0, wrong = 0;

    return works_out(l, op_inputs(l->op, 0, iteration), "inputs") &&
           run_stage(l, &l->a->stages[0]) &&
           works_out(l, op_check(l->op, EPA_STAGE_WHOLE, 0, &compared, &wrong, &l->err), "layer") &&
           claim(l->r, compared > 0 && wrong == 0, "%s: a layer has %llu wrong of %llu outputs",
                 shape->name, (unsigned long long)wrong, (unsigned long long)compared);
}

static bool copy(struct layer *l, void *host, const void *from, size_t bytes)
{
    return works_out(l, l->r->backend->ops->read(l->r->backend, host, from, bytes), "read");
}

/* Compares the outputs `y` of the GEMMs, one expert after the other, with the outputs of the layer,
 * in blocks of rows. Adds the rows to the sum of all ranks. */
static bool compare(struct layer *l, const uint16_t *of_layer, const uint16_t *y,
                    const uint32_t *count)
{
    const struct fused_cuda_layout *lay = &((struct fused_cuda *)l->a)->l;
    uint32_t blocks = 0, rows = 0, wrong = 0;

    for (uint32_t e = 0; e < lay->local; e++) {
        for (uint32_t i = 0; i < count[e]; i++) {
            size_t row = (size_t)blocks * lay->block_rows + i;

            wrong += memcmp(of_layer + row * lay->hidden, y + (size_t)(rows + i) * lay->hidden,
                            (size_t)lay->hidden * 2) != 0;
        }
        rows += count[e];
        blocks += (count[e] + lay->block_rows - 1) / lay->block_rows;
    }
    __atomic_fetch_add(&l->r->shared->word[1], rows, __ATOMIC_RELAXED);
    return claim(l->r, wrong == 0, "%s: %u of %u rows differ from the rows of the layer",
                 shape->name, wrong, rows);
}

static bool multiply_again(struct layer *l)
{
    const struct fused_cuda *c = (const struct fused_cuda *)l->a;
    size_t bytes = c->l.capacity * c->l.hidden * 2;
    uint16_t *of_layer = memory_alloc(bytes, 1), *y = memory_alloc(bytes, 1);
    uint32_t *count = memory_alloc(c->l.local, sizeof(*count));
    bool good =
        copy(l, of_layer, c->args->y, bytes) &&
        works_out(l, l->r->backend->ops->fill(l->r->backend, c->args->y, 0xff, bytes), "fill") &&
        run_stage(l, &l->a->parts[1]) && copy(l, y, c->args->y, bytes) &&
        copy(l, count, c->rows.count, c->l.local * sizeof(*count)) &&
        compare(l, of_layer, y, count);

    free(of_layer);
    free(y);
    free(count);
    return good;
}

static void run_halves(struct rank *r)
{
    struct layer l = {.r = r};
    bool good =
        open_layer(&l) && meet(r) && run_whole(&l, 0) && meet(r) && multiply_again(&l) && meet(r);

    claim(r, !good || __atomic_load_n(&r->shared->word[1], __ATOMIC_RELAXED) == shape->rows,
          "%s: the GEMMs multiply %llu rows, not %u", shape->name,
          (unsigned long long)r->shared->word[1], shape->rows);
    good = good && run_stage(&l, &l.a->parts[0]) && meet(r) && run_whole(&l, 1);
    (void)r->backend->ops->sync(r->backend); /* after a failure this ends kernels that still wait */
    meet(r);                                 /* no rank may free memory that another uses */
    if (l.a != NULL)
        l.a->destroy(l.a);
    op_destroy(l.op);
}

TEST(the_gemms_alone_compute_the_outputs_of_the_layer)
{
    for (size_t i = 0; i < LENGTH(shapes); i++) {
        struct ranks r = {.ranks = RANKS, .body = run_halves};

        shape = &shapes[i];
        experiment = read_shape(*state);
        r.heap_bytes = (experiment->footprint.heap_bytes + PAGE - 1) / PAGE * PAGE;
        r.signals = experiment->footprint.signals;
        ranks_run(*state, &r);
    }
}

static int take_arguments(void **state)
{
    static struct subject subject;
    int gpus = gpu_count(strcmp(test_argv[2], "thread") == 0 ? 1 : RANKS);

    if (gpus == 0)
        exit(GPU_SKIP);
    if (gpus < RANKS) /* a kernel loaded late would wait for running kernels that wait for it */
        setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    fflush(stdout);
    subject = ranks_subject(test_argc, test_argv);
    *state = &subject;
    return 0;
}

TEST_GROUP(take_arguments, NULL)
