/* Runs rank 0 of an algorithm in a world of one or two ranks. The peer is simulated: it has no
 * tokens, or its data is whatever the test writes into the heap of rank 0, and it always counts as
 * arrived. The transport first returns EPA_AGAIN to each call. */
#ifndef ALGORITHM_PEER_H
#define ALGORITHM_PEER_H

#include <epa2a/algorithm.h>

#include "test.h"

extern const struct epa_algorithm_plugin epa_plugin;

struct shape {
    uint32_t ranks, flags; /* flags: flags of the transport */
    uint32_t tokens, hidden, experts, topk, workers;
};

struct fixture {
    struct epa_transport t; /* first member: a pointer to it also points to the fixture */
    struct epa_backend backend;
    struct shape shape;
    struct epa_algorithm *a;
    struct epa_problem problem;
    char *peer_heap[2];
    bool full, no_room;
    uint16_t *x, *out;
    int32_t *expert;
    float *weight;
};

/* Rejects every second call with EPA_AGAIN, or each call if no_room is set. */
static inline enum epa_status accept_call(struct epa_transport *t)
{
    struct fixture *f = (struct fixture *)t;

    f->full = !f->full || f->no_room;
    return f->full ? EPA_AGAIN : EPA_OK;
}

static inline enum epa_status put(struct epa_transport *t, uint64_t dst, const void *src,
                                  size_t bytes, uint32_t peer)
{
    return accept_call(t);
}

static inline enum epa_status put_signal(struct epa_transport *t, uint64_t dst, const void *src,
                                         size_t bytes, uint32_t signal, uint64_t value,
                                         enum epa_signal_op op, uint32_t peer)
{
    return accept_call(t);
}

static inline enum epa_status raise_signal(struct epa_transport *t, uint32_t signal, uint64_t value,
                                           enum epa_signal_op op, uint32_t peer)
{
    return accept_call(t);
}

static inline enum epa_status fence(struct epa_transport *t, uint32_t peer)
{
    return EPA_OK;
}

static inline enum epa_status progress(struct epa_transport *t)
{
    return EPA_OK;
}

static inline enum epa_status wait_signal(struct epa_transport *t, uint32_t signal,
                                          enum epa_compare compare, uint64_t value,
                                          uint64_t timeout_ns)
{
    assert_int_equal(compare, EPA_GE);
    return EPA_OK;
}

/* Runs the workers one after the other, which shows that their shares cover all work. */
static inline enum epa_status workers_in_turn(struct epa_backend *b,
                                              void (*fn)(void *, uint32_t, uint32_t), void *arg)
{
    const struct fixture *f = (const void *)((const char *)b - offsetof(struct fixture, backend));

    for (uint32_t i = 0; i < f->shape.workers; i++)
        fn(arg, i, f->shape.workers);
    return EPA_OK;
}

static const struct epa_transport_ops transport_ops = {.put = put,
                                                       .put_signal = put_signal,
                                                       .signal = raise_signal,
                                                       .fence = fence,
                                                       .quiet = progress,
                                                       .progress = progress,
                                                       .wait = wait_signal};
static const struct epa_backend_ops backend_ops = {.parallel = workers_in_turn};

static inline struct epa_world world_of(uint32_t ranks)
{
    return (struct epa_world){.size = ranks, .local_size = 1, .local_cores = 1};
}

/* Fills the heap with `fill`, since algorithms may not assume that it holds zeros. */
static inline struct fixture *fixture_try(struct shape s, const void *config, int fill,
                                          enum epa_status want, const char *words)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct epa_world world = world_of(s.ranks);
    struct epa_footprint plan;

    f->shape = s;
    f->x = calloc((size_t)s.tokens * s.hidden, sizeof(*f->x));
    f->out = calloc((size_t)s.tokens * s.hidden, sizeof(*f->out));
    f->expert = calloc((size_t)s.tokens * s.topk, sizeof(*f->expert));
    f->weight = calloc((size_t)s.tokens * s.topk, sizeof(*f->weight));
    f->problem = (struct epa_problem){.op = EPA_OP_MOE,
                                      .u.moe = {.max_tokens = s.tokens,
                                                .hidden = s.hidden,
                                                .experts = s.experts,
                                                .topk = s.topk,
                                                .fp8_group_size = 128,
                                                .dtype = EPA_BF16,
                                                .tokens = s.tokens,
                                                .x_dtype = EPA_BF16,
                                                .x = f->x,
                                                .expert = f->expert,
                                                .weight = f->weight,
                                                .out = f->out}};
    assert_status(epa_plugin.plan(&f->problem, &world, s.flags, config, &plan, test_error()),
                  EPA_OK, "");
    f->backend = (struct epa_backend){.ops = &backend_ops, .memory = EPA_MEMORY_HOST};
    f->peer_heap[0] = aligned_alloc(4096, (plan.heap_bytes + 4095) / 4096 * 4096);
    memset(f->peer_heap[0], fill, plan.heap_bytes);
    f->t = (struct epa_transport){.ops = &transport_ops,
                                  .flags = s.flags,
                                  .size = s.ranks,
                                  .heap = f->peer_heap[0],
                                  .heap_bytes = plan.heap_bytes,
                                  .peer_heap = f->peer_heap};
    assert_status(epa_plugin.create(&(struct epa_algorithm_params){.problem = &f->problem,
                                                                   .world = world,
                                                                   .transport = &f->t,
                                                                   .backend = &f->backend,
                                                                   .config = config,
                                                                   .transport_flags = s.flags,
                                                                   .timeout_ns = 1000000},
                                    &f->a, test_error()),
                  want, words);
    return f;
}

static inline struct fixture *fixture_of(struct shape s, const void *config)
{
    return fixture_try(s, config, 0, EPA_OK, "");
}

static inline void finish(struct fixture *f)
{
    if (f->a != NULL)
        f->a->destroy(f->a);
    free(f->peer_heap[0]);
    free(f->x);
    free(f->out);
    free(f->expert);
    free(f->weight);
    free(f);
}

#define TEST_OF_CALLS(name, begin) TEST_OF(name, struct fixture, f, begin, finish)

static inline enum epa_status run(struct fixture *f, uint32_t stage)
{
    return f->a->stages[stage].run(f->a, &f->problem);
}

static inline void assert_explained(struct fixture *f, enum epa_status status, const char *why)
{
    struct epa_error *err = test_error();

    f->a->explain(f->a, err);
    assert_status(err->status, status, why);
    /* A caller adds the stage to a text that does not begin with it. */
    assert_true(err->stage[0] != '\0' && strstr(err->text, err->stage) == err->text);
}

/* Makes a sequence of calls: d dispatches, cN combines and xN discards the N-th dispatch. A capital
 * letter expects EPA_ERR_CONFIG with a text that matches `words`. */
static inline void run_calls(struct fixture *f, const char *calls, const char *words)
{
    uint64_t epoch[10] = {0};
    uint32_t dispatches = 0;

    for (const char *at = calls; *at != 0; at++) {
        bool refused = *at == 'D' || *at == 'C' || *at == 'X';
        enum epa_status status;

        if (*at == ' ' || (*at >= '0' && *at <= '9'))
            continue;
        if (*at == 'd' || *at == 'D') {
            status = run(f, 0);
            f->problem.u.moe.y = f->problem.u.moe.y_space;
            epoch[++dispatches] = f->problem.u.moe.epoch;
        } else {
            f->problem.u.moe.epoch = epoch[at[1] - '0'];
            status = *at == 'c' || *at == 'C' ? run(f, 1) : f->a->discard(f->a, &f->problem);
        }
        if (status != (refused ? EPA_ERR_CONFIG : EPA_OK))
            fail_msg("'%s' of '%s': %d", at, calls, status);
        if (refused)
            assert_explained(f, EPA_ERR_CONFIG, words);
    }
}

/* The transport does not reach a peer that the plan relied on. */
static inline void assert_unreachable_peer_is_refused(struct shape s, const void *config)
{
    char words[64];

    s.ranks = 2;
    s.flags = EPA_TRANSPORT_LOAD_STORE;
    snprintf(words, sizeof(words), "%s .. rank 1", epa_plugin.plugin.name);
    finish(fixture_try(s, config, 0, EPA_ERR_UNSUPPORTED, words));
}

#endif
