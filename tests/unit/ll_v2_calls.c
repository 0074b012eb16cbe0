/* ll_v2: which calls a rank may make, in which order, and what it puts to a peer that loads and
 * stores do not reach. */
#include "algorithm_peer.h"

#include "../../plugins/algorithm/ll_v2/ll_v2.h"
#include "../../plugins/common/algo_host.h"

enum { SMALL_TOKENS = 4, TOKENS = 24, TOPK = 2 };

static const struct shape small = {1, EPA_TRANSPORT_LOAD_STORE, SMALL_TOKENS, 32, 2, 1, 1};

static struct ll_config config_of(uint32_t buffers)
{
    return (struct ll_config){.pdl = true,
                              .dispatch_dtype = ALGO_DTYPE_NATIVE,
                              .combine_dtype = ALGO_DTYPE_NATIVE,
                              .layout = EPA_LAYOUT_EXPERT,
                              .buffers = buffers};
}

static struct fixture *create(uint32_t flags, struct ll_config c)
{
    struct shape s = small;

    s.flags = flags;
    s.ranks = flags == EPA_TRANSPORT_HOST ? 2 : 1;
    return fixture_of(s, &c);
}

static struct fixture *alone_with(struct ll_config c)
{
    return create(EPA_TRANSPORT_LOAD_STORE, c);
}

static struct fixture *alone(uint32_t buffers)
{
    return alone_with(config_of(buffers));
}

static struct ll_layout layout_of(const struct fixture *f, struct ll_config c)
{
    struct epa_world world = world_of(f->shape.ranks);
    struct epa_error err = {EPA_OK, ""};
    struct ll_layout l;

    assert_int_equal(ll_layout_make(&f->problem.u.moe, &world, f->shape.flags, &c, &l, &err),
                     EPA_OK);
    return l;
}

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
    assert_int_equal(run(f, 0), EPA_ERR_CONFIG);
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

TEST_OF_CALLS(a_transport_without_room_ends_in_a_timeout_that_says_so,
              create(EPA_TRANSPORT_HOST, config_of(2)))
{
    f->no_room = true;
    assert_int_equal(run(f, 0), EPA_ERR_TIMEOUT);
    assert_explained(f, EPA_ERR_TIMEOUT, "dispatch/count_put .. 0.001 .. rank 1");
}

/* What a token takes in all trials: rows to peers and rows of this rank cached, neither, own
 * alone. */
static void note_trials(struct algo_host *h, enum algo_half half, double cached, double past,
                        double own)
{
    h->tuner.ways = ALGO_WAYS;
    for (uint64_t i = 0; i < ALGO_TRIALS; i++) {
        algo_set_store(h, i + 1);
        h->tuner.ns[half][i] = h->store == EPA_STORE_CACHED       ? cached
                               : h->own_store == EPA_STORE_CACHED ? own
                                                                  : past;
    }
}

static void assert_chosen(struct algo_host *h, enum epa_store store, enum epa_store own)
{
    algo_set_store(h, ALGO_TRIALS + 1);
    assert_int_equal(h->store, store);
    assert_int_equal(h->own_store, own);
    assert_int_equal(h->tuner.ways, 0);
}

TEST(stores_are_chosen_by_what_dispatch_and_combine_take_together)
{
    struct algo_host h = {0};

    note_trials(&h, ALGO_DISPATCH, 425, 480, 500); /* and no combine is timed */
    assert_chosen(&h, EPA_STORE_CACHED, EPA_STORE_CACHED);
    note_trials(&h, ALGO_COMBINE, 665, 520, 520);
    assert_chosen(&h, EPA_STORE_NONTEMPORAL, EPA_STORE_NONTEMPORAL);
    note_trials(&h, ALGO_COMBINE, 665, 520, 480);
    assert_chosen(&h, EPA_STORE_NONTEMPORAL, EPA_STORE_CACHED);
    note_trials(&h, ALGO_COMBINE, 520, 665, 480);
    assert_chosen(&h, EPA_STORE_CACHED, EPA_STORE_CACHED);
}

TEST(peers_out_of_reach_against_the_plan_are_refused)
{
    struct ll_config c = config_of(2);

    assert_unreachable_peer_is_refused(small, &c);
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
    uint64_t row;

    c.layout = layout;
    c.dedup = true;
    f = alone_with(c);
    l = layout_of(f, c);
    row = (layout == EPA_LAYOUT_RANK ? l.recv_at : l.arrival_at) + 2 * l.message_bytes;
    spoil.heap = f->peer_heap[0];
    spoil.at = row + (entry ? l.choices_at + offsetof(struct ll_choice, entry)
                            : offsetof(struct ll_meta, choices));
    spoil.value = 99;
    spoil.done = false;
    f->backend.ops = &ops;
    assert_int_equal(run(f, 0), EPA_ERR_MISMATCH);
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

/* ---- puts: all that this rank has goes to its peer ---- */

/* bf16: a row is a little more than 32 KiB, and eight are a slice. */
static struct fixture *far(struct ll_config c)
{
    struct fixture *f = fixture_of(
        (struct shape){2, EPA_TRANSPORT_HOST | EPA_TRANSPORT_NODES, TOKENS, 16384, 4, TOPK, 1}, &c);

    for (uint32_t i = 0; i < TOKENS * TOPK; i++)
        f->expert[i] = 2 + (int32_t)(i % TOPK);
    return f;
}

/* The counts leave in a put_signal of their own. */
static void assert_dispatch_puts(struct ll_config c, uint32_t puts, uint32_t rows)
{
    struct fixture *f = far(c);
    struct ll_layout l = layout_of(f, c);

    (void)dispatch(f);
    assert_int_equal(f->puts - 1, puts);
    assert_int_equal(bytes_to(f, 0, UINT64_MAX), rows * l.message_bytes + l.count_words * 4);
    assert_int_equal(times(f, 's'), 0); /* the last put has signalled */
    finish(f);
}

TEST(rows_leave_each_for_itself)
{
    assert_dispatch_puts(config_of(1), TOKENS * TOPK, TOKENS * TOPK);
}

/* 24 tokens are three slices, in each a block for the rank. */
TEST(rows_of_a_slice_leave_together_where_a_token_crosses_once)
{
    struct ll_config c = config_of(1);

    c.dedup = true;
    assert_dispatch_puts(c, 3, TOKENS);
    c.dedup = false;
    c.layout = EPA_LAYOUT_RANK;
    assert_dispatch_puts(c, 3, TOKENS);
}

TEST_OF_CALLS(who_gets_no_rows_is_reported_all_the_same, far(config_of(1)))
{
    f->problem.u.moe.tokens = 0;
    (void)dispatch(f);
    assert_string_equal(f->trace, "Pwfswq"); /* counts */
    assert_int_equal(combine(f, 1), EPA_OK);
    assert_string_equal(f->trace, "fswq");
}

TEST_OF_CALLS(nothing_is_held_back_when_a_stage_has_ended, far(config_of(1)))
{
    (void)dispatch(f);
    assert_int_equal(f->held, 0);
    assert_int_equal(combine(f, 1), EPA_OK);
    assert_int_equal(f->held, 0);
}

TEST_OF_CALLS(every_signal_has_a_fence_before_it_but_that_of_counts, far(config_of(1)))
{
    (void)dispatch(f);
    assert_int_equal(times(f, 'f'), 1);
    assert_int_equal(combine(f, 1), EPA_OK);
    assert_int_equal(times(f, 'f'), 1);
}
