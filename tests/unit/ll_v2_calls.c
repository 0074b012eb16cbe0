/* ll_v2: what one rank alone can show of its calls. The transport is a heap in this process,
 * and has no room for what goes to peers. */
#include "test.h"

#include "../../plugins/algorithm/ll_v2/ll_v2.h"

extern const struct epa_algorithm_plugin epa_plugin;

static struct ll_config config_of(uint32_t buffers)
{
    return (struct ll_config){.pdl = true,
                              .dispatch_dtype = LL_DTYPE_NATIVE,
                              .combine_dtype = LL_DTYPE_NATIVE,
                              .layout = EPA_LAYOUT_EXPERT,
                              .buffers = buffers};
}

enum { SMALL_TOKENS = 4, SMALL_HIDDEN = 32 };

struct fixture {
    struct epa_transport t;
    struct epa_backend backend;
    struct epa_algorithm *a;
    struct epa_problem problem;
    char *peer_heap[2];
    uint16_t x[SMALL_TOKENS * SMALL_HIDDEN], out[SMALL_TOKENS * SMALL_HIDDEN];
    int32_t expert[SMALL_TOKENS];
    float weight[SMALL_TOKENS];
};

static enum epa_status no_room(struct epa_transport *t, uint64_t dst, const void *src, size_t bytes,
                               uint32_t signal, uint64_t value, enum epa_signal_op op,
                               uint32_t peer)
{
    (void)t, (void)dst, (void)src, (void)bytes;
    (void)signal, (void)value, (void)op, (void)peer;
    return EPA_AGAIN;
}

static enum epa_status nothing_to_do(struct epa_transport *t)
{
    (void)t;
    return EPA_OK;
}

static enum epa_status one_worker(struct epa_backend *b, void (*fn)(void *, uint32_t, uint32_t),
                                  void *arg)
{
    (void)b;
    fn(arg, 0, 1);
    return EPA_OK;
}

static const struct epa_transport_ops transport_ops = {
    .put_signal = no_room, .quiet = nothing_to_do, .progress = nothing_to_do};
static const struct epa_backend_ops backend_ops = {.parallel = one_worker};

static enum epa_status create(struct fixture *f, uint32_t ranks, uint32_t flags,
                              struct ll_config *c, struct epa_error *err)
{
    struct epa_world world = {.size = ranks, .local_size = ranks, .local_cores = 1};
    struct epa_footprint plan;

    f->problem = (struct epa_problem){.op = EPA_OP_MOE,
                                      .u.moe = {.max_tokens = SMALL_TOKENS,
                                                .hidden = SMALL_HIDDEN,
                                                .experts = 2,
                                                .topk = 1,
                                                .fp8_group_size = 0,
                                                .dtype = EPA_BF16,
                                                .tokens = SMALL_TOKENS,
                                                .x_dtype = EPA_BF16,
                                                .x = f->x,
                                                .expert = f->expert,
                                                .weight = f->weight,
                                                .out = f->out}};
    assert_int_equal(epa_plugin.plan(&f->problem, &world, flags, c, &plan, err), EPA_OK);
    f->backend = (struct epa_backend){.ops = &backend_ops, .memory = EPA_MEMORY_HOST};
    f->peer_heap[0] = aligned_alloc(4096, (plan.heap_bytes + 4095) / 4096 * 4096);
    memset(f->peer_heap[0], 0, plan.heap_bytes);
    f->t = (struct epa_transport){.ops = &transport_ops,
                                  .flags = flags,
                                  .size = ranks,
                                  .heap = f->peer_heap[0],
                                  .heap_bytes = plan.heap_bytes,
                                  .peer_heap = f->peer_heap};
    return epa_plugin.create(&(struct epa_algorithm_params){.problem = &f->problem,
                                                            .world = world,
                                                            .transport = &f->t,
                                                            .backend = &f->backend,
                                                            .config = c,
                                                            .transport_flags = flags,
                                                            .timeout_ns = 1000000},
                             &f->a, err);
}

static struct fixture *alone_with(struct ll_config c)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct epa_error err = {EPA_OK, ""};

    if (create(f, 1, EPA_TRANSPORT_LOAD_STORE, &c, &err) != EPA_OK)
        fail_msg("%s", err.text);
    return f;
}

static struct fixture *alone(uint32_t buffers)
{
    return alone_with(config_of(buffers));
}

static void finish(struct fixture *f)
{
    if (f->a != NULL)
        f->a->destroy(f->a);
    free(f->peer_heap[0]);
    free(f);
}

static uint64_t dispatch(struct fixture *f)
{
    assert_int_equal(f->a->stages[0].run(f->a, &f->problem), EPA_OK);
    f->problem.u.moe.y = f->problem.u.moe.y_space;
    return f->problem.u.moe.epoch;
}

static enum epa_status combine(struct fixture *f, uint64_t epoch)
{
    f->problem.u.moe.epoch = epoch;
    return f->a->stages[1].run(f->a, &f->problem);
}

static void assert_explained(struct fixture *f, enum epa_status status, const char *why)
{
    struct epa_error err = {EPA_OK, ""};

    f->a->explain(f->a, &err);
    assert_int_equal(err.status, status);
    assert_words(err.text, why);
}

#define TEST_OF_CALLS(name, begin) TEST_OF(name, struct fixture, f, begin, finish)

TEST_OF_CALLS(bf16_needs_no_group, alone(1))
{
    assert_int_equal(combine(f, dispatch(f)), EPA_OK);
}

TEST_OF_CALLS(combines_go_in_the_order_of_dispatches, alone(2))
{
    uint64_t first = dispatch(f), second = dispatch(f);

    assert_int_equal(combine(f, second), EPA_ERR_CONFIG);
    assert_explained(f, EPA_ERR_CONFIG, "combine/copy_and_put .. dispatch 2 .. 1");
    assert_int_equal(combine(f, first), EPA_OK);
    assert_int_equal(combine(f, second), EPA_OK);
}

TEST_OF_CALLS(a_dispatch_is_combined_once, alone(2))
{
    uint64_t epoch = dispatch(f);

    assert_int_equal(combine(f, epoch), EPA_OK);
    assert_int_equal(combine(f, epoch), EPA_ERR_CONFIG);
    assert_explained(f, EPA_ERR_CONFIG, "combine/copy_and_put .. dispatch 1");
}

TEST_OF_CALLS(no_more_dispatches_are_open_than_there_are_sets, alone(1))
{
    (void)dispatch(f);
    assert_int_equal(f->a->stages[0].run(f->a, &f->problem), EPA_ERR_CONFIG);
    assert_explained(f, EPA_ERR_CONFIG, "dispatch/count_put .. 1");
}

TEST_OF_CALLS(alternating_calls_stay_in_one_set, alone(2))
{
    const void *recv;

    assert_int_equal(combine(f, dispatch(f)), EPA_OK);
    recv = f->problem.u.moe.recv;
    assert_int_equal(combine(f, dispatch(f)), EPA_OK);
    assert_ptr_equal(f->problem.u.moe.recv, recv);
}

TEST(a_transport_without_room_ends_in_a_timeout_that_says_so)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct ll_config c = config_of(2);
    struct epa_error err = {EPA_OK, ""};

    assert_int_equal(create(f, 2, EPA_TRANSPORT_HOST, &c, &err), EPA_OK);
    assert_int_equal(f->a->stages[0].run(f->a, &f->problem), EPA_ERR_TIMEOUT);
    assert_explained(f, EPA_ERR_TIMEOUT, "dispatch/count_put .. 0.001 .. rank 1");
    finish(f);
}

TEST(peers_out_of_reach_against_the_plan_are_refused)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct ll_config c = config_of(2);
    struct epa_error err = {EPA_OK, ""};

    assert_int_equal(create(f, 2, EPA_TRANSPORT_LOAD_STORE, &c, &err), EPA_ERR_UNSUPPORTED);
    assert_words(err.text, "ll_v2 .. rank 1");
    finish(f);
}

TEST(padded_experts_start_evenly_apart)
{
    struct ll_config c = config_of(1);
    struct fixture *f;

    c.recv_layout = LL_RECV_PADDED;
    f = alone_with(c);
    f->expert[1] = 1;
    (void)dispatch(f);
    assert_int_equal(f->problem.u.moe.recv_start[0], 0);
    assert_int_equal(f->problem.u.moe.recv_start[1], SMALL_TOKENS);
    assert_int_equal(f->problem.u.moe.recv_count[0], SMALL_TOKENS - 1);
    assert_int_equal(f->problem.u.moe.recv_count[1], 1);
    assert_int_equal(f->problem.u.moe.recv_entries, SMALL_TOKENS + 1);
    finish(f);
}

/* A word of the heap that changes once the workers have sent all rows. */
static struct {
    char *heap;
    uint64_t at;
    bool done;
    uint32_t value;
} spoil;

static enum epa_status one_worker_then_spoil(struct epa_backend *b,
                                             void (*fn)(void *, uint32_t, uint32_t), void *arg)
{
    (void)b;
    fn(arg, 0, 1);
    if (!spoil.done)
        memcpy(spoil.heap + spoil.at, &spoil.value, sizeof(spoil.value));
    spoil.done = true;
    return EPA_OK;
}

static void spoilt_choices_end_a_dispatch(int layout, bool entry, const char *why)
{
    static const struct epa_backend_ops ops = {.parallel = one_worker_then_spoil};
    struct ll_config c = config_of(1);
    struct fixture *f;
    struct ll_layout l;
    struct epa_error err = {EPA_OK, ""};
    struct epa_world world = {.size = 1, .local_size = 1, .local_cores = 1};
    uint64_t row;

    c.layout = layout;
    c.dedup = true;
    f = alone_with(c);
    assert_int_equal(
        ll_layout_make(&f->problem.u.moe, &world, EPA_TRANSPORT_LOAD_STORE, &c, &l, &err), EPA_OK);
    row = (layout == EPA_LAYOUT_RANK ? l.recv_at : l.arrival_at) + 2 * l.message_bytes;
    spoil.heap = f->peer_heap[0];
    spoil.at = row + (entry ? l.choices_at + offsetof(struct ll_choice, entry)
                            : offsetof(struct ll_meta, choices));
    spoil.value = 99;
    spoil.done = false;
    f->backend.ops = &ops;
    assert_int_equal(f->a->stages[0].run(f->a, &f->problem), EPA_ERR_MISMATCH);
    assert_explained(f, EPA_ERR_MISMATCH, why);
    finish(f);
}

TEST(choices_that_cannot_be_end_a_dispatch_in_words)
{
    static const int layouts[] = {EPA_LAYOUT_EXPERT, EPA_LAYOUT_RANK};

    for (int i = 0; i < 2; i++) {
        spoilt_choices_end_a_dispatch(layouts[i], true,
                                      "dispatch/postprocess: row 2 says it has 1 choices, "
                                      "entry 99");
        spoilt_choices_end_a_dispatch(layouts[i], false,
                                      "dispatch/postprocess: row 2 says it has 99 choices, "
                                      "entry 2");
    }
}
