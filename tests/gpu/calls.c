/* Calls of ll_v2 in orders that verify does not make: three shapes interleaved over one
 * transport, graphs launched again and again between eager calls, combines repeated,
 * dispatches given up, and calls that must be refused. Every output is compared to the bit
 * with what the rank's own inputs must give (calls_experts.h).
 *
 *   gpu-calls ALGORITHM.so TRANSPORT.so fork|thread [BACKEND.so [OPTION=VALUE...]]
 *
 * Without a backend it runs on the host, less the graphs. */
#include <dlfcn.h>
#include "../unit/test.h"
#include <unistd.h>

#include "calls.h"
#include "gpu.h"

#ifndef CALLS_PART
#define CALLS_PART 1 /* so much less often where kernels run on CPUs */
#endif

enum {
    RANKS = 4,
    ROUNDS = 150 / CALLS_PART,
    LAUNCHES = 1000 / CALLS_PART,
    BURST = 32,
    STRAGGLE_US = 300
};

static void run(void **state, uint32_t ranks, void (*body)(struct rank *))
{
    struct ranks r = {.ranks = ranks, .body = body};

    scene_plan(*state, ranks, &r.heap_bytes, &r.signals);
    ranks_run(*state, &r);
}

static void skip_without_graphs(void **state)
{
    const struct subject *subject = *state;

    if (subject->backend->memory == EPA_MEMORY_HOST)
        skip();
}

static void straggle(struct rank *r)
{
    if (draw(r, 4) == 0)
        usleep((useconds_t)draw(r, STRAGGLE_US));
}

/* ---- several shapes ---- */

static bool in_turn(struct scene *s)
{
    bool good = true;

    for (uint32_t i = 0; i < LAYERS && good; i++)
        good = layer_round(&s->layer[i], 0, "in turn");
    return good;
}

/* All dispatches before the first combine; combines in another order. */
static bool nested(struct scene *s)
{
    uint32_t first = (uint32_t)scene_draw(s, LAYERS);
    bool good = true;

    for (uint32_t i = 0; i < LAYERS && good; i++)
        good = layer_inputs(&s->layer[i], 1, false) && layer_dispatch(&s->layer[i], 1);
    straggle(s->r);
    for (uint32_t i = 0; i < LAYERS && good; i++) {
        struct layer *l = &s->layer[(first + i) % LAYERS];

        good = layer_output(l, 1) && layer_combine(l, 1);
    }
    for (uint32_t i = 0; i < LAYERS && good; i++)
        good = layer_sync(&s->layer[i]) && layer_check(&s->layer[i], 1, "nested");
    return good;
}

/* One runs ahead by two dispatches while another is between its own. */
static bool ahead(struct scene *s)
{
    struct layer *a = &s->layer[scene_draw(s, LAYERS)];
    struct layer *b = &s->layer[scene_draw(s, LAYERS)];

    if (a == b)
        return true;
    return layer_inputs(a, 2, false) && layer_inputs(a, 3, false) && layer_inputs(b, 2, false) &&
           layer_dispatch(a, 2) && layer_dispatch(b, 2) && layer_dispatch(a, 3) &&
           layer_output(b, 2) && layer_combine(b, 2) && layer_output(a, 2) && layer_combine(a, 2) &&
           layer_output(a, 3) && layer_combine(a, 3) && layer_sync(a) &&
           layer_check(a, 2, "ahead") && layer_check(b, 2, "ahead") && layer_check(a, 3, "ahead");
}

static void interleave(struct rank *r)
{
    struct scene *s = NULL;
    bool good = scene_open(r, &s);

    for (uint32_t i = 0; i < ROUNDS && good; i++) {
        straggle(r);
        switch (scene_draw(s, 3)) {
        case 0:
            good = in_turn(s);
            break;
        case 1:
            good = nested(s);
            break;
        default:
            good = ahead(s);
        }
    }
    scene_close(s);
}

TEST(shapes_may_be_interleaved_on_one_transport)
{
    run(state, 1, interleave);
    run(state, 2, interleave);
    run(state, RANKS, interleave);
}

/* ---- graphs ---- */

static bool record(struct layer *l, bool (*calls)(struct scene *), struct scene *s,
                   struct epa_graph **out)
{
    struct epa_backend *b = l->r->backend;

    return layer_works(l, b->ops->capture_begin(b), "capture_begin") && calls(s) &&
           layer_works(l, b->ops->capture_end(b, out), "capture_end");
}

static bool launch(struct layer *l, struct epa_graph *graph, uint32_t times)
{
    struct epa_backend *b = l->r->backend;
    bool good = true;

    for (uint32_t i = 0; i < times && good; i++)
        good = layer_works(l, b->ops->graph_launch(b, graph), "graph_launch");
    return good;
}

static bool pair_of_one(struct scene *s)
{
    return layer_pair(s->recorded, 0);
}

/* Each layer by itself: eager, its graph a thousand times in bursts of random length with
 * new inputs for each, eager calls now and then, eager. */
static bool replay(struct scene *s, struct layer *l)
{
    struct epa_backend *b = l->r->backend;
    struct epa_graph *graph = NULL;
    uint32_t launched = 0;
    bool good = layer_round(l, 1, "before the graph") && layer_inputs(l, 0, false);

    s->recorded = l;
    good = good && record(l, pair_of_one, s, &graph);
    while (good && launched < LAUNCHES) {
        uint32_t n = 1 + (uint32_t)scene_draw(s, BURST);

        straggle(l->r);
        good = layer_inputs(l, 0, true) && launch(l, graph, n) && layer_sync(l) &&
               layer_check(l, 0, "in the graph");
        launched += n;
        if (good && scene_draw(s, 4) == 0)
            good = layer_round(l, 1, "between launches");
        if (good && scene_draw(s, 4) == 0) /* with nothing between them and the graph */
            good = layer_inputs(l, 1, false) && layer_inputs(l, 0, true) && launch(l, graph, 3) &&
                   layer_pair(l, 1) && launch(l, graph, 1) && layer_sync(l) &&
                   layer_check(l, 1, "right behind a launch") &&
                   layer_check(l, 0, "right behind an eager call");
    }
    for (uint32_t i = 0; i < 3 && good; i++)
        good = layer_round(l, i, "after the graph");
    b->ops->graph_destroy(b, graph);
    return good;
}

static void replay_each(struct rank *r)
{
    struct scene *s = NULL;
    bool good = scene_open(r, &s);

    for (uint32_t i = 0; i < LAYERS && good; i++)
        good = replay(s, &s->layer[i]);
    scene_close(s);
}

TEST(a_graph_may_be_launched_a_thousand_times_between_eager_calls)
{
    skip_without_graphs(state);
    run(state, 1, replay_each);
    run(state, 2, replay_each);
    run(state, RANKS, replay_each);
}

enum { MANY_SLOTS = 3 };

/* Three pairs of one layer, one ahead of the other, with two of another layer between. */
static bool many(struct scene *s)
{
    struct layer *a = &s->layer[0], *b = &s->layer[2];

    return layer_dispatch(a, 0) && layer_dispatch(a, 1) && layer_pair(b, 0) && layer_output(a, 0) &&
           layer_combine(a, 0) && layer_dispatch(a, 2) && layer_output(a, 1) &&
           layer_combine(a, 1) && layer_pair(b, 1) && layer_output(a, 2) && layer_combine(a, 2);
}

static bool check_many(struct scene *s, const char *when)
{
    bool good = true;

    for (uint32_t slot = 0; slot < MANY_SLOTS && good; slot++)
        good = layer_check(&s->layer[0], slot, when) &&
               (slot == 2 || layer_check(&s->layer[2], slot, when));
    return good;
}

static bool renew_many(struct scene *s, bool as_many)
{
    bool good = true;

    for (uint32_t slot = 0; slot < MANY_SLOTS && good; slot++)
        good = layer_inputs(&s->layer[0], slot, as_many) &&
               (slot == 2 || layer_inputs(&s->layer[2], slot, as_many));
    return good;
}

/* A graph keeps the numbers of tokens it was recorded with; eager calls draw others. */
static void keep_tokens(const struct scene *s, uint32_t kept[2][MANY_SLOTS])
{
    for (uint32_t i = 0; i < MANY_SLOTS; i++) {
        kept[0][i] = s->layer[0].slot[i].problem.u.moe.tokens;
        kept[1][i] = s->layer[2].slot[i].problem.u.moe.tokens;
    }
}

static void restore_tokens(struct scene *s, uint32_t kept[2][MANY_SLOTS])
{
    for (uint32_t i = 0; i < MANY_SLOTS; i++) {
        s->layer[0].slot[i].problem.u.moe.tokens = kept[0][i];
        s->layer[2].slot[i].problem.u.moe.tokens = kept[1][i];
    }
}

static void replay_many(struct rank *r)
{
    struct epa_graph *graph = NULL;
    struct scene *s = NULL;
    uint32_t kept[2][MANY_SLOTS] = {{0}};
    bool good = scene_open(r, &s) && renew_many(s, false) && record(&s->layer[0], many, s, &graph);

    if (good)
        keep_tokens(s, kept);

    for (uint32_t i = 0; i < LAUNCHES / 10 && good; i++) {
        uint32_t n = 1 + (uint32_t)scene_draw(s, 4);

        straggle(r);
        restore_tokens(s, kept);
        good = renew_many(s, true) && launch(&s->layer[0], graph, n) && layer_sync(&s->layer[0]) &&
               check_many(s, "in a graph of many");
        if (good && scene_draw(s, 4) == 0)
            good = in_turn(s) && nested(s);
    }
    r->backend->ops->graph_destroy(r->backend, graph);
    scene_close(s);
}

TEST(a_graph_may_hold_many_calls_of_several_shapes)
{
    skip_without_graphs(state);
    run(state, 2, replay_many);
    run(state, RANKS, replay_many);
}

/* ---- again, and given up ---- */

static bool combine_again(struct scene *s, struct layer *l)
{
    bool good = layer_round(l, 0, "combined once");

    for (uint32_t i = 0; i < 20 && good; i++) {
        straggle(s->r);
        good = layer_spoil(l, 0) && layer_combine(l, 0) && layer_sync(l) &&
               layer_check(l, 0, "combined again");
        if (good && scene_draw(s, 3) == 0)
            good = layer_round(l, 0, "after combining again");
    }
    return good;
}

static void combine_each_again(struct rank *r)
{
    struct scene *s = NULL;
    bool good = scene_open(r, &s);

    for (uint32_t i = 0; i < LAYERS && good; i++) {
        if (s->layer[i].a->combines_again)
            good = combine_again(s, &s->layer[i]);
    }
    scene_close(s);
}

TEST(a_combine_may_be_called_again)
{
    run(state, RANKS, combine_each_again);
}

static bool give_up(struct layer *l, uint32_t slot)
{
    return layer_dispatch(l, slot) &&
           layer_works(l, l->a->discard(l->a, &l->slot[slot].problem), "discard");
}

static bool give_up_one_of_two(struct scene *s)
{
    return give_up(&s->layer[0], 0) && layer_pair(&s->layer[0], 1) && give_up(&s->layer[2], 0) &&
           layer_pair(&s->layer[2], 1);
}

static bool give_up_in_graph(struct scene *s)
{
    struct layer *a = &s->layer[0], *b = &s->layer[2];
    struct epa_graph *graph = NULL;
    bool good = layer_inputs(a, 1, false) && layer_inputs(b, 1, false) &&
                record(a, give_up_one_of_two, s, &graph);

    for (uint32_t i = 0; i < ROUNDS / 3 && good; i++) {
        straggle(s->r);
        good = layer_inputs(a, 1, true) && layer_inputs(b, 1, true) &&
               launch(a, graph, 1 + (uint32_t)scene_draw(s, 4)) && layer_sync(a) &&
               layer_check(a, 1, "given up in a graph") && layer_check(b, 1, "given up in a graph");
    }
    s->r->backend->ops->graph_destroy(s->r->backend, graph);
    return good;
}

static bool give_up_often(struct scene *s, struct layer *l)
{
    bool good = layer_inputs(l, 0, false);

    for (uint32_t i = 0; i < ROUNDS * 2 / 5 && good; i++) {
        straggle(s->r);
        good =
            scene_draw(s, 3) == 0 ? layer_round(l, 1, "after dispatches given up") : give_up(l, 0);
    }
    return good && layer_round(l, 1, "after dispatches given up");
}

static void give_up_each(struct rank *r)
{
    struct scene *s = NULL;
    bool good = scene_open(r, &s);

    for (uint32_t i = 0; i < LAYERS && good; i++) {
        if (s->layer[i].a->discard != NULL)
            good = give_up_often(s, &s->layer[i]);
    }
    if (good && r->backend->ops->capture_begin != NULL && s->layer[0].a->discard != NULL &&
        s->layer[2].a->discard != NULL)
        (void)give_up_in_graph(s);
    scene_close(s);
}

TEST(a_dispatch_may_be_given_up)
{
    run(state, RANKS, give_up_each);
}

/* ---- refusals ---- */

static bool is_refused(struct layer *l, enum epa_status status, const char *why)
{
    struct epa_error err = {EPA_OK, ""};

    l->a->explain(l->a, &err);
    return claim(l->r, status == EPA_ERR_CONFIG && strstr(err.text, why) != NULL,
                 "%s: status %d, \"%s\", where \"%s\" is the reason to refuse", l->shape->name,
                 status, err.text, why);
}

static bool refuse_epoch(struct layer *l, uint64_t epoch)
{
    struct epa_problem p = l->slot[0].problem;
    char dispatch[40];

    p.u.moe.epoch = epoch;
    snprintf(dispatch, sizeof(dispatch), "dispatch %llu", (unsigned long long)epoch);
    return is_refused(l, layer_try_combine(l, &p), dispatch);
}

/* Whatever is refused, on all ranks alike, leaves what is open as it was. */
static bool refuse_all(struct layer *l)
{
    struct epa_problem third;
    uint64_t last;

    if (!layer_round(l, 0, "before refusals") || !layer_inputs(l, 0, false) ||
        !layer_inputs(l, 1, false) || !layer_dispatch(l, 0) || !layer_dispatch(l, 1) ||
        !layer_output(l, 0) || !layer_output(l, 1))
        return false;
    third = l->slot[2].problem;
    last = l->slot[1].problem.u.moe.epoch;
    return is_refused(l, layer_try_dispatch(l, &third), "combine one first") &&
           is_refused(l, layer_try_combine(l, &l->slot[1].problem), "they go in order") &&
           refuse_epoch(l, 0) && refuse_epoch(l, last + 1) && refuse_epoch(l, last + 1000) &&
           refuse_epoch(l, last - 2) && layer_combine(l, 0) && refuse_epoch(l, last - 1) &&
           layer_combine(l, 1) && layer_sync(l) && layer_check(l, 0, "after refusals") &&
           layer_check(l, 1, "after refusals") && layer_round(l, 0, "after refusals");
}

static bool refuse_stage(struct layer *l, uint32_t stage, const char *why)
{
    return is_refused(l, l->a->stages[stage].run(l->a, &l->slot[0].problem), why);
}

static bool run_stage(struct layer *l, uint32_t stage)
{
    return layer_works(l, l->a->stages[stage].run(l->a, &l->slot[0].problem), "a half");
}

/* Halves that do not belong together; what is open is finished then. */
static bool refuse_halves(struct layer *l)
{
    enum { DISPATCH_SEND, DISPATCH_RECV, COMBINE_SEND, COMBINE_RECV, STAGES };

    if (l->a->n_stages != STAGES)
        return true;
    return layer_inputs(l, 0, false) && run_stage(l, DISPATCH_SEND) &&
           refuse_stage(l, COMBINE_RECV, "the second half of a dispatch") &&
           refuse_stage(l, DISPATCH_SEND, "the second half of a dispatch") &&
           run_stage(l, DISPATCH_RECV) && layer_output(l, 0) &&
           refuse_stage(l, COMBINE_RECV, "combine_send must be called first") &&
           run_stage(l, COMBINE_SEND) &&
           refuse_stage(l, DISPATCH_RECV, "the second half of a combine") &&
           run_stage(l, COMBINE_RECV) && layer_sync(l) &&
           layer_check(l, 0, "after halves were refused");
}

static void refuse_each(struct rank *r)
{
    struct scene *s = NULL;
    bool good = scene_open(r, &s);

    for (uint32_t i = 0; i < LAYERS && good; i++)
        good = refuse_all(&s->layer[i]) && refuse_halves(&s->layer[i]);
    if (!good)
        r->boot->abort(r->boot);
    scene_close(s);
}

TEST(calls_out_of_order_are_refused_in_words)
{
    run(state, RANKS, refuse_each);
}

/* ---- main ---- */

static const struct epa_algorithm_plugin *load_algorithm(const char *path)
{
    void *file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct epa_algorithm_plugin *plugin =
        file != NULL ? dlsym(file, EPA_PLUGIN_SYMBOL) : NULL;

    if (plugin == NULL)
        fprintf(stderr, "%s\n", dlerror());
    return plugin;
}

/* GPU_SKIP where ranks would have to take turns on a GPU, or there is none. */
static int look_for_gpus(bool threads)
{
    int gpus = gpu_count(threads ? 1 : RANKS);

    if (gpus == 0)
        return GPU_SKIP;
    if (gpus < RANKS) {
        printf("%d ranks share %d GPU%s\n", RANKS, gpus, gpus == 1 ? "" : "s");
        /* A kernel that is loaded when it is first launched would wait for those that run
         * on the same GPU and wait for it. */
        setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    }
    fflush(stdout);
    return 0;
}

static int take_arguments(void **state)
{
    static struct subject subject;
    char **argv = test_argv;

    if (test_argc < 4) {
        fprintf(stderr,
                "usage: %s ALGORITHM.so TRANSPORT.so fork|thread [BACKEND.so "
                "[OPTION=VALUE...]]\n",
                argv[0]);
        exit(2);
    }
    calls_plugin = load_algorithm(argv[1]);
    if (calls_plugin == NULL)
        exit(2);
    if (test_argc > 4 && look_for_gpus(strcmp(argv[3], "thread") == 0) != 0)
        exit(GPU_SKIP);
    argv[1] = argv[0];
    subject = ranks_subject(test_argc - 1, argv + 1);
    *state = &subject;
    return 0;
}

TEST_GROUP(take_arguments, NULL)
