/* One rank of ll_v1, with experts 0 and 1; its peer, with 2 and 3, is made up: what it would
 * send stands in this rank's heap before the call that waits for it. The transport notes what it
 * is asked for and has no room at first, each time. */
#ifndef LL_V1_PEER_H
#define LL_V1_PEER_H

#include "test.h"

#include "../../plugins/algorithm/ll_v1/ll_v1.h"

extern const struct epa_algorithm_plugin epa_plugin;

enum { TOKENS = 24, HIDDEN = 16384, EXPERTS = 4, TOPK = 2, LOCAL = 2 };

struct fixture {
    struct epa_transport t; /* first: a pointer to it is one to all of this */
    struct epa_backend backend;
    struct epa_algorithm *a;
    struct epa_problem problem;
    struct v1_layout l;
    struct v1_config c;
    char *peer_heap[2];
    char trace[64];                      /* what was asked for: p P s f q */
    uint32_t puts, put_signals, signals; /* so far */
    uint32_t held;                       /* since the last quiet() */
    uint64_t row_bytes, splits_bytes, scales_bytes, output_bytes; /* put, by where it goes */
    uint64_t signalled[8];
    bool full, no_room;
    uint16_t x[TOKENS * HIDDEN], out[TOKENS * HIDDEN];
    int32_t expert[TOKENS * TOPK];
    float weight[TOKENS * TOPK];
};

static inline struct fixture *of(struct epa_transport *t)
{
    return (struct fixture *)t;
}

static inline void note(struct fixture *f, char what)
{
    size_t n = strlen(f->trace);

    if (n + 1 < sizeof(f->trace))
        f->trace[n] = what;
}

/* Every call is refused once. */
static inline bool has_room(struct fixture *f)
{
    f->full = !f->full || f->no_room;
    f->held += !f->full;
    return !f->full;
}

static inline bool within(const struct v1_region *r, uint64_t at)
{
    return at >= r->at && at < r->at + r->bytes * V1_POSITIONS;
}

static inline void count(struct fixture *f, uint64_t dst, size_t bytes)
{
    if (within(&f->l.slot, dst))
        f->row_bytes += bytes;
    else if (within(&f->l.splits, dst))
        f->splits_bytes += bytes;
    else if (within(&f->l.slot_scales, dst))
        f->scales_bytes += bytes;
    else if (within(&f->l.outputs, dst))
        f->output_bytes += bytes;
    else
        fail_msg("a put of %zu bytes to %llu", bytes, (unsigned long long)dst);
}

static inline enum epa_status put(struct epa_transport *t, uint64_t dst, const void *src,
                                  size_t bytes, uint32_t peer)
{
    struct fixture *f = of(t);

    (void)src;
    assert_int_equal(peer, 1);
    if (!has_room(f))
        return EPA_AGAIN;
    f->puts++;
    note(f, 'p');
    count(f, dst, bytes);
    return EPA_OK;
}

static inline enum epa_status raise_signal(struct epa_transport *t, uint32_t signal, uint64_t value,
                                           enum epa_signal_op op, uint32_t peer)
{
    struct fixture *f = of(t);

    assert_int_equal(peer, 1);
    assert_int_equal(op, EPA_SIGNAL_SET);
    if (!has_room(f))
        return EPA_AGAIN;
    f->signals++;
    note(f, 's');
    f->signalled[signal] = value;
    return EPA_OK;
}

static inline enum epa_status put_signal(struct epa_transport *t, uint64_t dst, const void *src,
                                         size_t bytes, uint32_t signal, uint64_t value,
                                         enum epa_signal_op op, uint32_t peer)
{
    struct fixture *f = of(t);

    (void)src, (void)op;
    assert_int_equal(peer, 1);
    if (!has_room(f))
        return EPA_AGAIN;
    f->put_signals++;
    note(f, 'P');
    f->signalled[signal] = value;
    count(f, dst, bytes);
    return EPA_OK;
}

static inline enum epa_status fence(struct epa_transport *t, uint32_t peer)
{
    (void)peer;
    note(of(t), 'f');
    return EPA_OK;
}

static inline enum epa_status quiet(struct epa_transport *t)
{
    of(t)->held = 0;
    note(of(t), 'q');
    return EPA_OK;
}

static inline enum epa_status progress(struct epa_transport *t)
{
    (void)t;
    return EPA_OK;
}

static inline enum epa_status wait_signal(struct epa_transport *t, uint32_t signal,
                                          enum epa_compare compare, uint64_t value,
                                          uint64_t timeout_ns)
{
    (void)signal, (void)value, (void)timeout_ns;
    assert_int_equal(compare, EPA_GE);
    note(of(t), 'w');
    return EPA_OK;
}

/* Two workers, one after the other, so that shares are seen to meet. */
static inline enum epa_status two_workers(struct epa_backend *b,
                                          void (*fn)(void *, uint32_t, uint32_t), void *arg)
{
    (void)b;
    fn(arg, 0, 2);
    fn(arg, 1, 2);
    return EPA_OK;
}

static const struct epa_transport_ops transport_ops = {.put = put,
                                                       .put_signal = put_signal,
                                                       .signal = raise_signal,
                                                       .fence = fence,
                                                       .quiet = quiet,
                                                       .progress = progress,
                                                       .wait = wait_signal};
static const struct epa_backend_ops backend_ops = {.parallel = two_workers};

static inline void set_problem(struct fixture *f)
{
    f->problem = (struct epa_problem){.op = EPA_OP_MOE,
                                      .u.moe = {.max_tokens = TOKENS,
                                                .hidden = HIDDEN,
                                                .experts = EXPERTS,
                                                .topk = TOPK,
                                                .fp8_group_size = 128,
                                                .dtype = EPA_BF16,
                                                .tokens = TOKENS,
                                                .x_dtype = EPA_BF16,
                                                .x = f->x,
                                                .expert = f->expert,
                                                .weight = f->weight,
                                                .out = f->out}};
    for (uint32_t i = 0; i < TOKENS * TOPK; i++) {
        f->expert[i] = 2 + (int32_t)(i % TOPK);
        f->weight[i] = 1;
    }
    for (uint32_t t = 0; t < TOKENS; t++)
        f->x[(size_t)t * HIDDEN] = (uint16_t)(0x3f80 + t);
}

static inline enum epa_status try_create(struct fixture *f, uint32_t ranks, uint32_t flags,
                                         struct v1_config c, struct epa_error *err)
{
    struct epa_world world = {.size = ranks, .local_size = 1, .local_cores = 1};

    set_problem(f);
    f->c = c;
    assert_int_equal(v1_layout_make(&f->problem.u.moe, &world, flags, &f->c, &f->l, err), EPA_OK);
    f->backend = (struct epa_backend){.ops = &backend_ops, .memory = EPA_MEMORY_HOST};
    f->peer_heap[0] = aligned_alloc(4096, (f->l.heap_bytes + 4095) / 4096 * 4096);
    memset(f->peer_heap[0], 0, f->l.heap_bytes);
    f->t = (struct epa_transport){.ops = &transport_ops,
                                  .flags = flags,
                                  .size = ranks,
                                  .heap = f->peer_heap[0],
                                  .heap_bytes = f->l.heap_bytes,
                                  .peer_heap = f->peer_heap};
    return epa_plugin.create(&(struct epa_algorithm_params){.problem = &f->problem,
                                                            .world = world,
                                                            .transport = &f->t,
                                                            .backend = &f->backend,
                                                            .config = &f->c,
                                                            .transport_flags = flags,
                                                            .timeout_ns = 1000000},
                             &f->a, err);
}

static inline struct fixture *create(uint32_t ranks, struct v1_config c)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct epa_error err = {EPA_OK, ""};

    if (try_create(f, ranks, ranks > 1 ? EPA_TRANSPORT_HOST : EPA_TRANSPORT_LOAD_STORE, c, &err) !=
        EPA_OK)
        fail_msg("%s", err.text);
    return f;
}

static inline struct fixture *alone(uint32_t buffers)
{
    return create(
        1, (struct v1_config){.pdl = true, .dispatch_dtype = V1_DTYPE_NATIVE, .buffers = buffers});
}

static inline void finish(struct fixture *f)
{
    if (f->a != NULL)
        f->a->destroy(f->a);
    free(f->peer_heap[0]);
    free(f);
}

static inline enum epa_status run(struct fixture *f, uint32_t stage)
{
    f->puts = f->put_signals = f->signals = 0;
    f->row_bytes = f->splits_bytes = f->scales_bytes = f->output_bytes = 0;
    memset(f->trace, 0, sizeof(f->trace));
    return f->a->stages[stage].run(f->a, &f->problem);
}

static inline uint64_t dispatch(struct fixture *f)
{
    assert_int_equal(run(f, 0), EPA_OK);
    f->problem.u.moe.y = f->problem.u.moe.y_space;
    return f->problem.u.moe.epoch;
}

static inline enum epa_status combine(struct fixture *f, uint64_t epoch)
{
    f->problem.u.moe.epoch = epoch;
    return run(f, 1);
}

static inline void assert_explained(struct fixture *f, enum epa_status status, const char *why)
{
    struct epa_error err = {EPA_OK, ""};

    f->a->explain(f->a, &err);
    assert_int_equal(err.status, status);
    assert_words(err.text, why);
}

static inline uint32_t *out_splits(struct fixture *f, uint32_t peer, uint32_t start)
{
    return (uint32_t *)(void *)(f->t.heap + f->l.out_splits.at) + v1_splits_to(&f->l, peer, start);
}

/* What the peer sends in call `call`. */
static inline uint32_t *in_splits(struct fixture *f, uint64_t call)
{
    return (uint32_t *)(void *)(f->t.heap + f->l.splits.at +
                                f->l.splits.bytes * (call % V1_POSITIONS)) +
           f->l.split_words;
}

#endif
