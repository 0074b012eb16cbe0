/* Tests of ll_v1 without peers: heap layouts on hosts and GPUs, the permitted order of calls, and
 * invalid splits. tests/contract tests the arrival of rows with real ranks. */
#include "algorithm_peer.h"
#include "layouts.h"

#include "../../plugins/algorithm/ll_v1/ll_v1_layout.h"

LAYOUTS(v1_layout, v1_config, v1_layout_make)

/* ---- layouts ---- */

/* Checks that each region starts on its own page, in order, and inside the heap. */
static void check_regions(const struct v1_layout *l)
{
    const struct {
        struct v1_region r;
        uint32_t times;
    } region[] = {
        {l->splits, 2},          {l->out_splits, 1},    {l->starts, l->buffers},
        {l->token, 2},           {l->token_scales, 2},  {l->slot, 2},
        {l->slot_scales, 2},     {l->out, 1},           {l->out_scales, 1},
        {l->arrival, 2},         {l->recv, l->buffers}, {l->recv_scales, l->buffers},
        {l->origin, l->buffers}, {l->y, l->buffers},    {l->outputs, 2},
    };
    uint64_t end = 0;

    for (size_t i = 0; i < LENGTH(region); i++) {
        if (region[i].r.bytes == 0)
            continue;
        assert_int_equal(region[i].r.at % 4096, 0);
        assert_int_equal(region[i].r.bytes % (l->device ? 16 : V1_LINE), 0);
        assert_true(region[i].r.at >= end);
        end = region[i].r.at + region[i].r.bytes * region[i].times;
    }
    assert_true(end <= l->heap_bytes);
}

TEST(regions_never_overlap)
{
    static const uint32_t hidden[] = {16, 48, 1040, 2816, 7168, 20480, 131072};
    static const uint32_t groups[] = {128, 16, 256, 64};
    static const uint32_t overs[] = {OVER_LOADS, OVER_PUTS, OF_GPUS};

    for (uint32_t i = 0; i < LENGTH(hidden) * LENGTH(overs) * 128; i++) {
        struct v1_config c = {
            .pdl = true, .dispatch_dtype = (int)(i & 1), .buffers = 1 + (i >> 1 & 1)};
        struct epa_moe m = i % 128 != 127 ? decode : largest;
        struct v1_layout l;

        c.exchange = (int)(i >> 2 & 1);
        c.capacity = (i >> 3 & 1) != 0 ? 1.5 : 0;
        m.hidden = hidden[i / 128 / LENGTH(overs)];
        m.fp8_group_size = m.hidden % 256 == 0 ? groups[i >> 5 & 3] : 16;
        l = made(&m, (i >> 4 & 1) != 0 ? 32 : 1, overs[i / 128 % LENGTH(overs)], &c);
        check_regions(&l);
    }
}

TEST(an_impossible_shape_is_refused_with_the_reason)
{
    struct v1_config c = {.pdl = true, .exchange = V1_EXCHANGE_PULL, .buffers = 2};

    assert_refusals("ll_v1", &c);
    c.nontemporal = ALGO_NONTEMPORAL_OFF;
    assert_refused(&decode, 2, OF_GPUS, &c, "nontemporal is for hosts");
}

/* ---- calls ---- */

/* This rank has experts 0 and 1, the peer 2 and 3; all choices are experts of the peer. A bf16 row
 * has 32 KiB, so the 48 rows are sent nine at a time. */
enum { TOKENS = 24, HIDDEN = 16384, EXPERTS = 4, TOPK = 2, LOCAL = 2 };

static const struct shape far = {2, EPA_TRANSPORT_HOST, TOKENS, HIDDEN, EXPERTS, TOPK, 2};

static struct fixture *create(int dtype, uint32_t buffers)
{
    struct v1_config c = {.pdl = true, .dispatch_dtype = dtype, .buffers = buffers};
    struct fixture *f = fixture_of(far, &c);

    for (uint32_t i = 0; i < TOKENS * TOPK; i++) {
        f->expert[i] = 2 + (int32_t)(i % TOPK);
        f->weight[i] = 1;
    }
    return f;
}

TEST(calls_out_of_order_are_refused)
{
    static const struct {
        uint32_t buffers;
        const char *calls, *words;
    } cases[] = {
        {2, "d d C2 c1 c2", "combine/send .. dispatch 2 .. 1"},
        {2, "d c1 c1 c1 d C1 c2",
         "combine/send .. dispatch 1"}, /* combine repeats until the next dispatch */
        {2, "d d X1 x2 d c1 c3", "discard: .. dispatch 1"},
        {1, "d D", "dispatch/sort_and_quantise .. 1 .. algorithm.buffers"},
    };
    struct v1_config c = {.pdl = true, .dispatch_dtype = ALGO_DTYPE_FP8, .buffers = 1};

    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct fixture *f = create(ALGO_DTYPE_FP8, cases[i].buffers);

        assert_true(f->a->combines_again);
        run_calls(f, cases[i].calls, cases[i].words);
        finish(f);
    }
    assert_unreachable_peer_is_refused(far, &c);
}

static struct v1_layout layout_of(const struct fixture *f, int dtype)
{
    struct v1_config c = {.pdl = true, .dispatch_dtype = dtype, .buffers = 1};
    struct epa_world world = world_of(f->shape.ranks);
    struct v1_layout l;

    assert_int_equal(v1_layout_make(&f->problem.u.moe, &world, f->shape.flags, &c, &l, NULL), 0);
    return l;
}

/* Returns the splits from the peer for call `call`. The offset does not depend on `buffers`. */
static uint32_t *in_splits(struct fixture *f, uint64_t call)
{
    struct v1_layout l = layout_of(f, ALGO_DTYPE_NATIVE);

    return (uint32_t *)(void *)(f->t.heap + l.splits.at + l.splits.bytes * (call % V1_POSITIONS)) +
           l.split_words;
}

TEST(invalid_splits_fail_the_dispatch_with_the_reason)
{
    static const struct {
        uint32_t splits[4];
        const char *words;
    } cases[] = {
        {{40, 9, 0, 0}, "dispatch/postprocess .. rank 1 .. 49 .. 0 .. 48"},
        {{1, 0, 48, 0}, "dispatch/postprocess .. rank 1 .. 1 .. 48"},
        {{1, 0, 0, TOKENS}, "dispatch/postprocess .. rank 1"},
    };

    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct fixture *f = create(ALGO_DTYPE_NATIVE, 2);

        memcpy(in_splits(f, 1), cases[i].splits, sizeof(cases[i].splits));
        assert_int_equal(run(f, 0), EPA_ERR_MISMATCH);
        assert_explained(f, EPA_ERR_MISMATCH, cases[i].words);
        finish(f);
    }
}
