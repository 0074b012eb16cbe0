/* Tests of ll_v2 without peers: heap layouts on hosts and GPUs, the permitted order of calls, and
 * invalid choices. The shapes are larger than the runs of tests/contract, and the refusals are out
 * of reach of experiments. */
#include "algorithm_peer.h"
#include "layouts.h"

#include "base/dtype.h"
#include "../../plugins/algorithm/ll_v2/ll_v2_layout.h"
#include "../../plugins/common/algo_host.h"
#include "../../plugins/common/algo_store.h"
#include <epa2a/both.h>

LAYOUTS(ll_layout, ll_config, ll_layout_make)

static struct ll_config config_of(int wire, int layout, uint32_t buffers)
{
    return (struct ll_config){.pdl = true,
                              .combine_dedup = true,
                              .dispatch_dtype = wire,
                              .combine_dtype = ALGO_DTYPE_NATIVE,
                              .layout = layout,
                              .buffers = buffers};
}

/* ---- layouts ---- */

/* Checks that each region starts on its own page and inside the heap. */
static void check_regions(const struct ll_layout *l)
{
    const struct {
        uint64_t at, bytes, times;
    } region[] = {
        {l->counts_at, l->counts_bytes, l->buffers},
        {l->routes_at, l->routes_bytes, l->published ? 2 : l->buffers},
        {l->recv_at, l->recv_bytes, l->buffers},
        {l->y_at, l->y_bytes, l->buffers},
        {l->staging_at, l->staging_bytes, l->buffers},
        {l->outputs_at, l->outputs_bytes, l->device ? 2 : l->buffers},
        {l->totals_at, l->totals_bytes, l->buffers},
        {l->arrival_at, l->arrival_bytes, l->buffers},
        {l->outbox_at, l->outbox_bytes, l->buffers},
    };

    for (size_t i = 0; i < LENGTH(region); i++) {
        uint64_t end = region[i].at + region[i].bytes * region[i].times;

        assert_int_equal(region[i].at % 4096, 0);
        assert_int_equal(region[i].bytes % (l->device ? 16 : LL_LINE), 0);
        assert_true(end <= l->heap_bytes);
        for (size_t k = 0; k < LENGTH(region) && region[i].bytes != 0; k++)
            assert_true(k == i || region[k].bytes == 0 || region[k].at >= end ||
                        region[k].at < region[i].at);
    }
}

TEST(regions_never_overlap)
{
    static const uint32_t hidden[] = {16, 48, 1040, 2880, 7168, 20480, 131072};
    static const uint32_t overs[] = {OVER_LOADS, OVER_PUTS, OF_GPUS};

    for (uint32_t i = 0; i < LENGTH(hidden) * LENGTH(overs) * 128; i++) {
        struct ll_config c = config_of((int)(i & 1), (int)(i >> 1 & 1), 1 + (i >> 2 & 1));
        uint32_t over = overs[i / 128 % LENGTH(overs)];
        uint32_t ranks = (i >> 3 & 1) == 0 ? 1 : over == OF_GPUS ? 32 : 64;
        struct epa_moe m = i % 128 < 120 ? decode : largest;
        struct ll_layout l;

        m.hidden = hidden[i / 128 / LENGTH(overs)];
        m.fp8_group_size = m.hidden % 128 == 0 ? 128 : 16;
        c.dedup = (i >> 4 & 1) != 0;
        c.recv_layout = (i >> 5 & 1) != 0 ? LL_RECV_PADDED : LL_RECV_PACKED;
        c.combine_dtype = (i >> 6 & 1) != 0 ? ALGO_DTYPE_FP8 : ALGO_DTYPE_NATIVE;
        if (over == OF_GPUS && c.dedup && c.layout == EPA_LAYOUT_EXPERT)
            c.combine_dedup = (i >> 2 & 1) != 0;
        if (over == OF_GPUS && c.layout == EPA_LAYOUT_RANK) /* in place of recv_layout */
            c.row_order = (i >> 5 & 1) != 0 ? EPA_ROWS_PACKED : EPA_ROWS_ANY;
        if (make(&m, ranks, over, &c, &l) != EPA_OK) {
            assert_int_equal(over, OF_GPUS); /* GPUs lack some combinations */
            continue;
        }
        check_regions(&l);
    }
}

TEST(unsupported_shapes_are_refused_with_the_reason)
{
    struct ll_config c = config_of(ALGO_DTYPE_FP8, EPA_LAYOUT_EXPERT, 2);

    assert_refusals("ll_v2", &c);
    assert_refused(&decode, 64, OF_GPUS, &c, "on GPUs takes 1 to 32 ranks, not 64");
    c.nontemporal = ALGO_NONTEMPORAL_ON;
    assert_refused(&decode, 2, OF_GPUS, &c, "nontemporal is for hosts");
    c = config_of(ALGO_DTYPE_FP8, EPA_LAYOUT_EXPERT, 2);
    c.fuse_expert = true;
    c.combine_dtype = ALGO_DTYPE_FP8;
    assert_refused(&decode, 4, OF_GPUS, &c,
                   "fuse_expert: true .. combine_dtype: native .. fuse_expert: false");
    c = config_of(ALGO_DTYPE_FP8, EPA_LAYOUT_EXPERT, 2);
    c.combine_mode = LL_COMBINE_PULL;
    c.dedup = true;
    assert_refused(&decode, 4, OF_GPUS, &c,
                   "combine_mode: pull .. dedup: true .. combine_dtype: fp8 .. combine_mode: auto");
    c = config_of(ALGO_DTYPE_FP8, EPA_LAYOUT_EXPERT, 2);
    c.combine_dedup = false;
    assert_refused(&decode, 4, OF_GPUS, &c, "combine_dedup: false needs .. dedup: true");
    c.dedup = true;
    assert_refused(&decode, 4, OVER_LOADS, &c, "combine_dedup is for GPUs");
    c = config_of(ALGO_DTYPE_FP8, EPA_LAYOUT_EXPERT, 2);
    c.row_order = EPA_ROWS_PACKED;
    assert_refused(&decode, 4, OF_GPUS, &c, "row_order is for layout: rank");
    c.layout = EPA_LAYOUT_RANK;
    assert_refused(&decode, 4, OVER_LOADS, &c, "row_order is for GPUs");
}

/* ---- arithmetic of GPU sends, on the host ---- */

/* For each amax of one binade in `of` and each x up to it: the quotient rounds to the same FP8 code
 * as the division, and it equals the division wherever FP8 can show a difference. */
static void compare_quotients(bool f16, uint32_t of)
{
    uint32_t bits = f16 ? 10 : 7, infinity = f16 ? 0x7c00 : 0x7f80;

    for (uint32_t amax = 1; amax < infinity; amax++) {
        float scale = float_of_word(f16, (uint16_t)amax) * (1.0f / 448.0f), inverse = 1.0f / scale;

        if ((amax >> bits) % of != 7 % of)
            continue;
        if (!(scale >= EPA_QUOTIENT_LEAST && scale <= EPA_QUOTIENT_MOST)) {
            assert_false(f16); /* all scales of f16 are in the range */
            continue;
        }
        for (uint32_t x = 0; x <= amax; x++) {
            float value = float_of_word(f16, (uint16_t)x), right = value / scale;
            float is = epa_quotient(value, scale, inverse);

            if (e4m3_of_float(is) != e4m3_of_float(right) ||
                (right > 0x1p-30f && bits_of_float(is) != bits_of_float(right)))
                fail_msg("x 0x%04x, amax 0x%04x: %a, not %a", x, amax, (double)is, (double)right);
        }
    }
}

TEST(the_quotient_is_the_division)
{
    compare_quotients(false, 12);
    compare_quotients(true, 8);
}

/* ---- calls of a rank ---- */

enum { ALONE_TOKENS = 4 };

static struct fixture *alone(struct ll_config c)
{
    return fixture_of((struct shape){1, EPA_TRANSPORT_LOAD_STORE, ALONE_TOKENS, 32, 2, 1, 1}, &c);
}

static struct ll_layout layout_of(const struct fixture *f, struct ll_config c)
{
    struct epa_world world = world_of(f->shape.ranks);
    struct ll_layout l;

    assert_int_equal(ll_layout_make(&f->problem.u.moe, &world, f->shape.flags, &c, &l, NULL), 0);
    return l;
}

TEST(calls_out_of_order_are_refused)
{
    static const struct {
        uint32_t buffers;
        const char *calls, *words;
    } cases[] = {
        {2, "d d C2 c1 c2", "combine/copy_and_put .. dispatch 2 .. 1"},
        {2, "d c1 C1 d c2", "combine/copy_and_put .. dispatch 1"},
        {1, "d D", "dispatch/count_put .. 1"},
    };

    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct fixture *f = alone(config_of(ALGO_DTYPE_NATIVE, 0, cases[i].buffers));

        run_calls(f, cases[i].calls, cases[i].words);
        finish(f);
    }
}

/* A word of the heap that changes after the workers have sent all rows. */
static struct {
    char *heap;
    uint64_t at;
    bool done;
} spoil;

static enum epa_status one_worker_then_spoil(struct epa_backend *b,
                                             void (*fn)(void *, uint32_t, uint32_t), void *arg)
{
    const uint32_t value = 99;

    fn(arg, 0, 1);
    if (!spoil.done)
        memcpy(spoil.heap + spoil.at, &value, sizeof(value));
    spoil.done = true;
    return EPA_OK;
}

TEST(invalid_choices_fail_the_dispatch_with_the_reason)
{
    static const struct epa_backend_ops ops = {.parallel = one_worker_then_spoil};

    for (int i = 0; i < 4; i++) {
        struct ll_config c =
            config_of(ALGO_DTYPE_NATIVE, i / 2 != 0 ? EPA_LAYOUT_RANK : EPA_LAYOUT_EXPERT, 1);
        struct fixture *f;
        struct ll_layout l;

        c.dedup = true;
        f = alone(c);
        l = layout_of(f, c);
        spoil.heap = f->peer_heap[0];
        spoil.at = (i / 2 != 0 ? l.recv_at : l.arrival_at) + 2 * l.message_bytes;
        spoil.at += i % 2 != 0 ? l.choices_at + offsetof(struct ll_choice, entry)
                               : offsetof(struct ll_meta, choices);
        spoil.done = false;
        f->backend.ops = &ops;
        assert_int_equal(run(f, 0), EPA_ERR_MISMATCH);
        assert_explained(f, EPA_ERR_MISMATCH,
                         i % 2 != 0 ? "dispatch/postprocess: .. row 2 .. 1 choices, entry 99"
                                    : "dispatch/postprocess: .. row 2 .. 99 choices, entry 2");
        finish(f);
    }
}

TEST(a_full_transport_times_out_with_its_own_message)
{
    struct ll_config c = config_of(ALGO_DTYPE_NATIVE, EPA_LAYOUT_EXPERT, 1);
    struct fixture *f =
        fixture_of((struct shape){2, EPA_TRANSPORT_HOST, ALONE_TOKENS, 32, 2, 1, 1}, &c);

    f->no_room = true;
    assert_int_equal(run(f, 0), EPA_ERR_TIMEOUT);
    assert_explained(f, EPA_ERR_TIMEOUT, "dispatch/count_put .. 0.001 .. rank 1");
    finish(f);
}

/* Returns the number of the trial: rows to peers and own rows cached (0), none cached (1), own rows
 * cached (2). */
static uint32_t way_of(const struct algo_host *h)
{
    return h->store == EPA_STORE_CACHED ? 0 : h->own_store == EPA_STORE_CACHED ? 2 : 1;
}

/* Time per token of each way to store. */
struct way_times {
    double dispatch[ALGO_WAYS], combine[ALGO_WAYS]; /* 0: not timed */
    double first[ALGO_WAYS];                        /* additional time in the first cycle */
};

/* Makes one trial in epoch `epoch`. Returns false once the choice is final or failed. */
static bool try_way(struct algo_host *h, const struct way_times *x, uint32_t trials[ALGO_WAYS],
                    uint64_t epoch)
{
    enum epa_status status = algo_set_store(h, epoch);
    uint32_t way = way_of(h);
    uint64_t trial = epoch - h->tuner.first;

    assert_int_equal(status, EPA_OK);
    if (h->tuner.ways == 0)
        return false;
    h->tuner.ns[ALGO_DISPATCH][trial] = x->dispatch[way];
    h->tuner.ns[ALGO_DISPATCH][trial] += h->tuner.cycles == 0 ? x->first[way] : 0;
    h->tuner.ns[ALGO_COMBINE][trial] = x->combine[way];
    trials[way]++;
    return true;
}

static void try_ways(struct algo_host *h, const struct way_times *x, uint32_t trials[ALGO_WAYS])
{
    algo_choose_store(h, ALGO_NONTEMPORAL_AUTO, 1, true, 0);
    for (uint64_t epoch = 1; try_way(h, x, trials, epoch); epoch++)
        ;
}

TEST(stores_are_chosen_by_the_time_of_dispatch_and_combine_together)
{
    static const struct {
        struct way_times times;
        uint32_t way;
    } cases[] = {
        {{{425, 480, 500}, {0}, {0}}, 0}, /* combine is not timed */
        {{{425, 480, 500}, {665, 520, 520}, {0}}, 1},
        {{{425, 480, 500}, {665, 520, 480}, {0}}, 2},
        {{{425, 480, 500}, {520, 665, 480}, {0}}, 0},
    };

    for (size_t i = 0; i < LENGTH(cases); i++) {
        uint32_t trials[ALGO_WAYS] = {0};
        struct algo_host h = {0};

        try_ways(&h, &cases[i].times, trials);
        assert_int_equal(way_of(&h), cases[i].way);
    }
}

/* A way that seems slightly slower is tried again; one that is far behind is not. */
TEST(ways_to_store_with_similar_times_are_tried_again)
{
    static const struct way_times times = {{60, 80, 67}, {40, 80, 40}, {4, 0, -7}};
    uint32_t trials[ALGO_WAYS] = {0};
    struct algo_host h = {0};

    try_ways(&h, &times, trials);
    assert_int_equal(way_of(&h), 0);
    assert_int_equal(trials[1], 2 * ALGO_TURN);
    assert_int_equal(trials[0], 2 * ALGO_TURN * ALGO_CYCLES);
}

/* Ranks of one node and the signals between them. A waiting rank runs the other one. */
enum { TUNERS = 2 };

struct tuner {
    struct epa_transport t; /* first member */
    struct algo_host h;
    struct way_times times;
    uint64_t epoch, word[ALGO_WAYS * TUNERS];
};

static struct tuner tuners[TUNERS];

static bool tuner_goes_on(struct tuner *x)
{
    uint32_t trials[ALGO_WAYS] = {0};

    return try_way(&x->h, &x->times, trials, ++x->epoch);
}

static enum epa_status signal_tuner(struct epa_transport *t, uint32_t signal, uint64_t value,
                                    enum epa_signal_op op, uint32_t peer)
{
    tuners[peer].word[signal] = value;
    return EPA_OK;
}

static uint64_t read_tuner(struct epa_transport *t, uint32_t signal)
{
    return ((struct tuner *)t)->word[signal];
}

static enum epa_status wait_tuner(struct epa_transport *t, uint32_t signal,
                                  enum epa_compare compare, uint64_t value, uint64_t timeout_ns)
{
    while (read_tuner(t, signal) < value && tuner_goes_on(&tuners[1 - t->rank]))
        ;
    return EPA_OK;
}

TEST(ranks_of_a_node_choose_the_store_by_the_sum_of_their_times)
{
    static const struct epa_transport_ops ops = {
        .signal = signal_tuner, .read = read_tuner, .wait = wait_tuner};
    static const struct {
        struct way_times times[TUNERS]; /* 0: the rank had no tokens */
        uint32_t way;
    } cases[] = {
        {{{.dispatch = {400, 500, 600}}, {.dispatch = {900, 500, 600}}}, 1},
        {{{.dispatch = {400, 500, 600}}, {.dispatch = {600, 500, 450}}}, 0},
        {{{.dispatch = {400, 500, 401}}, {.dispatch = {600, 500, 450}}}, 2},
        {{{{0}, {0}, {0}}, {.dispatch = {600, 500, 550}}}, 1},
        {{{{0}, {0}, {0}}, {{0}, {0}, {0}}}, 0},
    };

    for (size_t i = 0; i < LENGTH(cases); i++) {
        for (uint32_t r = 0; r < TUNERS; r++) {
            struct tuner *x = &tuners[r];

            *x = (struct tuner){.t = {.ops = &ops, .rank = r, .size = TUNERS},
                                .h = {.t = &x->t, .world = {.rank = r, .size = TUNERS}},
                                .times = cases[i].times[r]};
            algo_choose_store(&x->h, ALGO_NONTEMPORAL_AUTO, 1, true, 0);
        }
        for (uint32_t r = 0; r < TUNERS; r++) {
            while (tuner_goes_on(&tuners[r]))
                ;
            assert_int_equal(way_of(&tuners[r].h), cases[i].way);
        }
    }
}
