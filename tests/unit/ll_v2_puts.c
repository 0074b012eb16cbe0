/* ll_v2: what a rank puts to a peer that loads and stores do not reach. The transport only
 * notes what it is asked for; the peer is made up: it has no tokens, is always there, and
 * all that this rank has goes to it. */
#include "test.h"

#include "../../plugins/algorithm/ll_v2/ll_v2.h"

extern const struct epa_algorithm_plugin epa_plugin;

enum { TOKENS = 24, HIDDEN = 16384, EXPERTS = 4, TOPK = 2 };

/* The peer's experts are 2 and 3. */
struct fixture {
    struct epa_transport t; /* first: a pointer to it is one to all of this */
    struct epa_backend backend;
    struct epa_algorithm *a;
    struct epa_problem problem;
    struct ll_layout l;
    char *peer_heap[2];
    uint32_t puts, put_signals, signals, fences; /* so far */
    uint32_t held;                               /* since the last quiet() */
    uint64_t bytes;                              /* put */
    bool full;                                   /* the next call has no room */
    uint16_t x[TOKENS * HIDDEN], out[TOKENS * HIDDEN];
    int32_t expert[TOKENS * TOPK];
    float weight[TOKENS * TOPK];
};

static struct fixture *of(struct epa_transport *t)
{
    return (struct fixture *)t;
}

/* Every call is refused once. */
static bool has_room(struct fixture *f)
{
    f->full = !f->full;
    f->held += !f->full;
    return !f->full;
}

static enum epa_status put(struct epa_transport *t, uint64_t dst, const void *src, size_t bytes,
                           uint32_t peer)
{
    struct fixture *f = of(t);

    (void)src, (void)dst;
    assert_int_equal(peer, 1);
    if (!has_room(f))
        return EPA_AGAIN;
    f->puts++;
    f->bytes += bytes;
    return EPA_OK;
}

static enum epa_status put_signal(struct epa_transport *t, uint64_t dst, const void *src,
                                  size_t bytes, uint32_t signal, uint64_t value,
                                  enum epa_signal_op op, uint32_t peer)
{
    struct fixture *f = of(t);

    (void)src, (void)dst, (void)signal, (void)op, (void)value;
    assert_int_equal(peer, 1);
    if (!has_room(f))
        return EPA_AGAIN;
    f->put_signals++;
    f->bytes += bytes;
    return EPA_OK;
}

static enum epa_status raise_signal(struct epa_transport *t, uint32_t signal, uint64_t value,
                                    enum epa_signal_op op, uint32_t peer)
{
    struct fixture *f = of(t);

    (void)signal, (void)value, (void)op;
    assert_int_equal(peer, 1);
    if (!has_room(f))
        return EPA_AGAIN;
    f->signals++;
    return EPA_OK;
}

static enum epa_status fence(struct epa_transport *t, uint32_t peer)
{
    (void)peer;
    of(t)->fences++;
    return EPA_OK;
}

static enum epa_status quiet(struct epa_transport *t)
{
    of(t)->held = 0;
    return EPA_OK;
}

static enum epa_status progress(struct epa_transport *t)
{
    (void)t;
    return EPA_OK;
}

static enum epa_status wait_signal(struct epa_transport *t, uint32_t signal,
                                   enum epa_compare compare, uint64_t value, uint64_t timeout_ns)
{
    (void)t, (void)signal, (void)compare, (void)value, (void)timeout_ns;
    return EPA_OK;
}

static enum epa_status one_worker(struct epa_backend *b, void (*fn)(void *, uint32_t, uint32_t),
                                  void *arg)
{
    (void)b;
    fn(arg, 0, 1);
    return EPA_OK;
}

static const struct epa_transport_ops transport_ops = {.put = put,
                                                       .put_signal = put_signal,
                                                       .signal = raise_signal,
                                                       .fence = fence,
                                                       .quiet = quiet,
                                                       .progress = progress,
                                                       .wait = wait_signal};
static const struct epa_backend_ops backend_ops = {.parallel = one_worker};

static void set_problem(struct fixture *f)
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
    for (uint32_t i = 0; i < TOKENS * TOPK; i++)
        f->expert[i] = 2 + (int32_t)(i % TOPK);
}

/* bf16: a row is a little more than 32 KiB, and eight are a slice. */
static struct fixture *create(struct ll_config c)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct epa_world world = {.size = 2, .local_size = 1, .local_cores = 1};
    struct epa_error err = {EPA_OK, ""};

    c.dispatch_dtype = LL_DTYPE_NATIVE;
    c.buffers = 1;
    set_problem(f);
    assert_int_equal(ll_layout_make(&f->problem.u.moe, &world,
                                    EPA_TRANSPORT_HOST | EPA_TRANSPORT_NODES, &c, &f->l, &err),
                     EPA_OK);
    f->backend = (struct epa_backend){.ops = &backend_ops, .memory = EPA_MEMORY_HOST};
    f->peer_heap[0] = aligned_alloc(4096, (f->l.heap_bytes + 4095) / 4096 * 4096);
    memset(f->peer_heap[0], 0, f->l.heap_bytes);
    f->t = (struct epa_transport){.ops = &transport_ops,
                                  .flags = EPA_TRANSPORT_HOST | EPA_TRANSPORT_NODES,
                                  .size = 2,
                                  .heap = f->peer_heap[0],
                                  .heap_bytes = f->l.heap_bytes,
                                  .peer_heap = f->peer_heap};
    if (epa_plugin.create(&(struct epa_algorithm_params){.problem = &f->problem,
                                                         .world = world,
                                                         .transport = &f->t,
                                                         .backend = &f->backend,
                                                         .config = &c,
                                                         .transport_flags = f->t.flags,
                                                         .timeout_ns = 1000000000},
                          &f->a, &err) != EPA_OK)
        fail_msg("%s", err.text);
    return f;
}

static void finish(struct fixture *f)
{
    f->a->destroy(f->a);
    free(f->peer_heap[0]);
    free(f);
}

/* Runs a stage and leaves only what it has put in the counts. */
static void run(struct fixture *f, uint32_t stage)
{
    f->puts = f->put_signals = f->signals = f->fences = 0;
    f->bytes = 0;
    assert_int_equal(f->a->stages[stage].run(f->a, &f->problem), EPA_OK);
    f->problem.u.moe.y = f->problem.u.moe.y_space;
}

/* The counts leave in a put_signal of their own. */
static void assert_dispatch_puts(struct ll_config c, uint32_t puts, uint32_t rows)
{
    struct fixture *f = create(c);

    run(f, 0);
    assert_int_equal(f->puts + f->put_signals - 1, puts);
    assert_int_equal(f->bytes, rows * f->l.message_bytes + f->l.count_words * 4);
    assert_int_equal(f->signals, 0); /* the last put has told */
    finish(f);
}

TEST(rows_leave_each_for_itself)
{
    assert_dispatch_puts((struct ll_config){.pdl = true}, TOKENS * TOPK, TOKENS * TOPK);
}

/* 24 tokens are three slices, in each a block for the rank. */
TEST(rows_of_a_slice_leave_together_where_a_token_crosses_once)
{
    assert_dispatch_puts((struct ll_config){.pdl = true, .dedup = true}, 3, TOKENS);
    assert_dispatch_puts((struct ll_config){.pdl = true, .layout = EPA_LAYOUT_RANK}, 3, TOKENS);
}

#define TEST_OF_PUTS(name, begin) TEST_OF(name, struct fixture, f, begin, finish)

TEST_OF_PUTS(who_gets_no_rows_is_reported_all_the_same, create((struct ll_config){.pdl = true, 0}))
{
    f->problem.u.moe.tokens = 0;
    run(f, 0);
    assert_int_equal(f->puts, 0);
    assert_int_equal(f->put_signals, 1); /* counts */
    assert_int_equal(f->signals, 1);
    run(f, 1);
    assert_int_equal(f->puts + f->put_signals, 0);
    assert_int_equal(f->signals, 1);
}

TEST_OF_PUTS(nothing_is_held_back_when_a_stage_has_ended,
             create((struct ll_config){.pdl = true, 0}))
{
    run(f, 0);
    assert_int_equal(f->held, 0);
    run(f, 1);
    assert_int_equal(f->held, 0);
}

TEST_OF_PUTS(every_signal_has_a_fence_before_it_but_that_of_counts,
             create((struct ll_config){.pdl = true, 0}))
{
    run(f, 0);
    assert_int_equal(f->fences, 1);
    run(f, 1);
    assert_int_equal(f->fences, 1);
}
