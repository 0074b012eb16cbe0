/* Sequences of ll_v2 calls that verify does not make: three shapes interleaved over one transport,
 * and graphs launched repeatedly between eager calls. Inputs are the same as in verify, new in each
 * iteration, and every output is compared as verify does.
 *
 *   gpu-calls TRANSPORT.so fork|thread [BACKEND.so [OPTION=VALUE...]]
 *
 * ll_v2 and the backend of the shapes are loaded from EPA2A_PLUGIN_PATH. Without a backend the
 * program runs on the host and omits the graphs. */
#include "../unit/test.h"
#include <unistd.h>

#include "../contract/ranks.h"
#include "base/memory.h"
#include "base/text.h"
#include "experiment/batch.h"
#include "gpu.h"
#include "launch/program_registry.h"
#include "op/operations.h"
#include "config/diag.h"

#ifndef CALLS_PART
#define CALLS_PART 1 /* divisor of the repetitions; larger if kernels run on CPUs */
#endif

enum {
    RANKS = 4,
    ROUNDS = 150 / CALLS_PART,
    LAUNCHES = 250 / CALLS_PART,
    STRAGGLE_US = 300,
    LAYERS = 3,
    SLOTS = 4, /* slots for each kind of inputs */
    PAGE = 4096,
};

/* Shapes that differ in all sizes: one for each way to add up expert outputs. The experts are part
 * of combine, or real experts, with outputs in the memory of the algorithm or elsewhere. */
static const struct {
    const char *algorithm, *on_gpus, *rest;
} shapes[LAYERS] = {
    {"layout: expert, dedup: false, dispatch_dtype: fp8", ", fuse_expert: true",
     "moe: {max_tokens: 8, hidden: 512, experts: 16, topk: 4}\n"},
    {"layout: expert, dedup: true, dispatch_dtype: native", "",
     "moe: {max_tokens: 5, hidden: 256, experts: 8, topk: 3}\n"
     "expert: {kind: mlp, ffn: 128, values: integers, output: separate}\n"},
    {"layout: rank, dispatch_dtype: fp8", ", split_phase: true",
     "moe: {max_tokens: 16, hidden: 384, experts: 24, topk: 6}\n"
     "expert: {kind: mlp, ffn: 128, values: integers}\n"},
};

/* Numbers of tokens: random in each iteration, or fixed per rank, as a graph keeps them. */
enum inputs { ANY, KEPT, INPUTS };
static const char *const tokens[INPUTS] = {"random", "[5, 0, 3, 4]"};

struct layer {
    struct rank *r;
    const struct experiment *x[INPUTS]; /* same experiment, except for the tokens */
    struct op_rank *op[INPUTS];
    uint64_t iteration; /* number of inputs made so far, the same on all ranks */
    struct epa_algorithm *a;
    struct epa_error err;
};

/* All layers in one heap. */
struct scene {
    struct rank *r;
    uint64_t common; /* state of random numbers common to all ranks */
    struct layer layer[LAYERS];
};

static const struct experiment *experiments[LAYERS][INPUTS]; /* experiments of the current test */

/* ---- set-up ---- */

static bool on_host(const struct subject *subject)
{
    return subject->backend->memory == EPA_MEMORY_HOST;
}

static const struct experiment *read_shape(const struct subject *subject, uint32_t ranks,
                                           uint32_t i, const char *tokens_of)
{
    static struct registry *registry;
    struct diag *diag = diag_create();
    struct batch *batch = NULL;
    struct epa_error err = {EPA_OK, ""};
    text_auto text = {0};
    char list[32];

    snprintf(list, sizeof(list), "%.*s%s", tokens_of[0] == '[' ? (int)(3 * ranks - 1) : 20,
             tokens_of, tokens_of[0] == '[' ? "]" : "");
    text_add(&text,
             "version: 1\nranks: %u\nlauncher: %s\nbackend: %s\ntransport: %s\ntokens: %s\n"
             "timeout: 20s\n",
             ranks, subject->launcher->plugin.name, subject->backend->plugin.name,
             subject->plugin->plugin.name, list);
    text_add(&text, "algorithm: {name: ll_v2, buffers: 2, %s%s}\n%s", shapes[i].algorithm,
             on_host(subject) ? "" : shapes[i].on_gpus, shapes[i].rest);
    if ((registry == NULL && program_registry_create(NULL, &registry, &err) != EPA_OK) ||
        batch_read("a shape", text.data, NULL, 0, &(struct batch_pick){0}, 0, registry, diag,
                   &batch) != EPA_OK) {
        diag_print(diag, stderr);
        fail_msg("%s", err.text);
    }
    diag_destroy(diag);
    return batch->run[0].x;
}

static uint64_t heap_of(const struct experiment *x)
{
    return (x->footprint.heap_bytes + PAGE - 1) / PAGE * PAGE;
}

static void run(void **state, uint32_t ranks, void (*body)(struct rank *))
{
    struct ranks r = {.ranks = ranks, .body = body};

    for (uint32_t i = 0; i < LAYERS; i++) {
        for (uint32_t k = 0; k < INPUTS; k++)
            experiments[i][k] = read_shape(*state, ranks, i, tokens[k]);
        r.heap_bytes += heap_of(experiments[i][0]);
        r.signals += experiments[i][0]->footprint.signals;
    }
    ranks_run(*state, &r);
}

/* Returns true if the call succeeded. Otherwise reports the failure and aborts the other ranks. */
static bool works_out(struct layer *l, enum epa_status status, const char *what)
{
    if (status == EPA_OK)
        return true;
    if (l->a != NULL)
        l->a->explain(l->a, &l->err);
    l->r->backend->ops->explain(l->r->backend, &l->err); /* keeps an earlier message */
    claim(l->r, false, "%s: %s: status %d: %s", l->x[0]->algorithm.plugin->name, what, status,
          l->err.text);
    l->r->boot->abort(l->r->boot);
    return false;
}

static bool layer_open(struct layer *l, uint64_t heap, uint32_t signal)
{
    const struct experiment *x = l->x[0];
    const struct epa_algorithm_plugin *plugin =
        (const struct epa_algorithm_plugin *)x->algorithm.plugin;
    struct epa_problem problem = {.op = EPA_OP_MOE};

    operation_of(EPA_OP_MOE)->shape(&x->problem, 0, &problem);
    for (uint32_t k = 0; k < INPUTS; k++) {
        const struct op_params params = {.problem = &l->x[k]->problem,
                                         .world = &l->r->boot->world,
                                         .footprint = &l->x[k]->footprint,
                                         .backend = l->r->backend,
                                         .backend_name = "cuda",
                                         .slots = SLOTS};

        if (!works_out(l, op_create(operation_of(EPA_OP_MOE), &params, &l->op[k], &l->err),
                       "inputs"))
            return false;
    }
    return works_out(l,
                     plugin->create(&(struct epa_algorithm_params){.problem = &problem,
                                                                   .world = l->r->boot->world,
                                                                   .transport = l->r->t,
                                                                   .backend = l->r->backend,
                                                                   .config = x->algorithm.config,
                                                                   .transport_flags =
                                                                       l->r->subject->plugin->flags,
                                                                   .heap = heap,
                                                                   .signal = signal,
                                                                   .timeout_ns = x->timeout_ns},
                                    &l->a, &l->err),
                     "create");
}

static bool scene_open(struct rank *r, struct scene *s)
{
    uint64_t heap = 0;
    uint32_t signal = 0;
    bool good = true;

    *s = (struct scene){.r = r};
    for (uint32_t i = 0; i < LAYERS && good; i++) {
        struct layer *l = &s->layer[i];

        l->r = r;
        memcpy(l->x, experiments[i], sizeof(l->x));
        good = layer_open(l, heap, signal);
        heap += heap_of(l->x[0]);
        signal += l->x[0]->footprint.signals;
    }
    return good && meet(r);
}

static void scene_close(struct scene *s)
{
    (void)s->r->backend->ops->sync(
        s->r->backend); /* after a failure this ends kernels that still wait */
    meet(s->r);         /* no rank may free memory that another uses */
    for (uint32_t i = 0; i < LAYERS; i++) {
        struct layer *l = &s->layer[i];

        if (l->a != NULL)
            l->a->destroy(l->a);
        for (uint32_t k = 0; k < INPUTS; k++)
            op_destroy(l->op[k]);
    }
}

static uint64_t scene_draw(struct scene *s, uint64_t n)
{
    s->common = s->common * 6364136223846793005u + 1442695040888963407u;
    return (s->common >> 33) % n;
}

static void straggle(struct rank *r)
{
    if (draw(r, 4) == 0)
        usleep((useconds_t)draw(r, STRAGGLE_US));
}

/* ---- calls: slots below SLOTS have random numbers of tokens, the others fixed numbers ---- */

static struct op_rank *op_of(struct layer *l, uint32_t slot)
{
    return l->op[slot / SLOTS];
}

static struct epa_problem *problem_of(struct layer *l, uint32_t slot)
{
    return &op_of(l, slot)->slot[slot % SLOTS].problem;
}

/* Makes new inputs and spoils the output. */
static bool make_inputs(struct layer *l, uint32_t slot)
{
    return works_out(l, op_inputs(op_of(l, slot), slot % SLOTS, l->iteration++), "inputs");
}

static uint32_t dispatch_stages(const struct epa_algorithm *a)
{
    return a->stages[0].kind == EPA_STAGE_DISPATCH ? 1 : 2;
}

static bool run_stages(struct layer *l, uint32_t slot, uint32_t first, uint32_t last)
{
    bool good = true;

    for (uint32_t i = first; i < last && good; i++)
        good = works_out(l, l->a->stages[i].run(l->a, problem_of(l, slot)), l->a->stages[i].name);
    return good;
}

static bool dispatch(struct layer *l, uint32_t slot)
{
    return run_stages(l, slot, 0, dispatch_stages(l->a));
}

static bool combine(struct layer *l, uint32_t slot)
{
    struct op_rank *op = op_of(l, slot);

    return works_out(l, op->operation->between(op, slot % SLOTS, &l->err), "experts") &&
           run_stages(l, slot, dispatch_stages(l->a), l->a->n_stages);
}

static bool pair(struct layer *l, uint32_t slot)
{
    return dispatch(l, slot) && combine(l, slot);
}

static bool sync_all(struct layer *l)
{
    return works_out(l, l->r->backend->ops->sync(l->r->backend), "sync");
}

static bool check(struct layer *l, uint32_t slot, const char *when)
{
    struct op_rank *op = op_of(l, slot);
    uint64_t compared = 0, wrong = 0;

    return works_out(l, op_check(op, EPA_STAGE_COMBINE, slot % SLOTS, &compared, &wrong, &l->err),
                     when);
}

/* ---- several shapes ---- */

static bool in_turn(struct scene *s)
{
    bool good = true;

    for (uint32_t i = 0; i < LAYERS && good; i++)
        good = make_inputs(&s->layer[i], 0) && pair(&s->layer[i], 0) && sync_all(&s->layer[i]) &&
               check(&s->layer[i], 0, "in turn");
    return good;
}

/* Makes all dispatches before the first combine, and the combines in another order. */
static bool nested(struct scene *s)
{
    uint32_t first = (uint32_t)scene_draw(s, LAYERS);
    bool good = true;

    for (uint32_t i = 0; i < LAYERS && good; i++)
        good = make_inputs(&s->layer[i], 1) && dispatch(&s->layer[i], 1);
    straggle(s->r);
    for (uint32_t i = 0; i < LAYERS && good; i++)
        good = combine(&s->layer[(first + i) % LAYERS], 1);
    for (uint32_t i = 0; i < LAYERS && good; i++)
        good = sync_all(&s->layer[i]) && check(&s->layer[i], 1, "nested");
    return good;
}

/* One layer is two dispatches ahead while another is between dispatch and combine. */
static bool ahead(struct scene *s)
{
    struct layer *a = &s->layer[scene_draw(s, LAYERS)];
    struct layer *b = &s->layer[scene_draw(s, LAYERS)];

    return a == b ||
           (make_inputs(a, 2) && make_inputs(a, 3) && make_inputs(b, 2) && dispatch(a, 2) &&
            dispatch(b, 2) && dispatch(a, 3) && combine(b, 2) && combine(a, 2) && combine(a, 3) &&
            sync_all(a) && check(a, 2, "ahead") && check(b, 2, "ahead") && check(a, 3, "ahead"));
}

static void interleave(struct rank *r)
{
    bool (*const orders[])(struct scene *) = {in_turn, nested, ahead};
    struct scene s;
    bool good = scene_open(r, &s);

    for (uint32_t i = 0; i < ROUNDS && good; i++) {
        straggle(r);
        good = orders[scene_draw(&s, LENGTH(orders))](&s);
    }
    scene_close(&s);
}

TEST(shapes_may_be_interleaved_on_one_transport)
{
    run(state, 1, interleave);
    run(state, 2, interleave);
    run(state, RANKS, interleave);
}

/* ---- graphs ---- */

static bool give_up(struct layer *l, uint32_t slot)
{
    return dispatch(l, slot) && works_out(l, l->a->discard(l->a, problem_of(l, slot)), "discard");
}

/* Records three overlapping pairs of one layer, two pairs of another between them, and a discarded
 * dispatch of each. A discard is never last, since calls after the launch may reuse its buffers
 * (algorithm.h). */
static bool many(struct scene *s)
{
    struct layer *a = &s->layer[0], *b = &s->layer[2];

    return dispatch(a, SLOTS) && dispatch(a, SLOTS + 1) && give_up(b, SLOTS + 1) &&
           pair(b, SLOTS) && combine(a, SLOTS) && dispatch(a, SLOTS + 2) && combine(a, SLOTS + 1) &&
           give_up(a, SLOTS + 1) && pair(b, SLOTS + 1) && combine(a, SLOTS + 2);
}

static bool for_many(struct scene *s, bool checks)
{
    bool good = true;

    for (uint32_t i = 0; i < 5 && good; i++) {
        struct layer *l = &s->layer[i < 3 ? 0 : 2];
        uint32_t slot = SLOTS + i % 3;

        good = checks ? check(l, slot, "in a graph of many") : make_inputs(l, slot);
    }
    return good;
}

/* Makes new inputs every few launches and some eager calls in between. Only the order of the stream
 * separates them from the graph. */
static void replay_many(struct rank *r)
{
    const struct epa_backend_ops *ops = r->backend->ops;
    struct epa_graph *graph = NULL;
    struct scene s;
    struct layer *l = s.layer;
    bool good = scene_open(r, &s) && for_many(&s, false) &&
                works_out(l, ops->capture_begin(r->backend), "capture_begin") && many(&s) &&
                works_out(l, ops->capture_end(r->backend, &graph), "capture_end");

    for (uint32_t i = 0; i < LAUNCHES && good; i++) {
        straggle(r);
        good = for_many(&s, false);
        for (uint64_t n = scene_draw(&s, 4) + 1; n > 0 && good; n--)
            good = works_out(l, ops->graph_launch(r->backend, graph), "graph_launch");
        if (good && scene_draw(&s, 4) == 0)
            good = make_inputs(l, 1) && pair(l, 1) && sync_all(l) &&
                   check(l, 1, "right behind a launch");
        good = good && sync_all(l) && for_many(&s, true);
        if (good && scene_draw(&s, 4) == 0)
            good = in_turn(&s) && nested(&s);
    }
    ops->graph_destroy(r->backend, graph);
    scene_close(&s);
}

TEST(a_graph_may_hold_many_calls_of_several_shapes)
{
    if (on_host(*state))
        skip();
    run(state, 1, replay_many);
    run(state, 2, replay_many);
    run(state, RANKS, replay_many);
}

static int take_arguments(void **state)
{
    static struct subject subject;

    if (test_argc > 3) {
        int gpus = gpu_count(strcmp(test_argv[2], "thread") == 0 ? 1 : RANKS);

        if (gpus == 0)
            exit(GPU_SKIP);
        if (gpus < RANKS) /* a kernel loaded late would wait for running kernels that wait for it */
            setenv("CUDA_MODULE_LOADING", "EAGER", 0);
        fflush(stdout);
    }
    subject = ranks_subject(test_argc, test_argv);
    *state = &subject;
    return 0;
}

TEST_GROUP(take_arguments, NULL)
