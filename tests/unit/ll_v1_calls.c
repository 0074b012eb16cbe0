/* ll_v1: which calls a rank may make, in which order; how it sorts, what it puts to a peer that
 * loads and stores do not reach, and what it makes of what comes. */
#include "algorithm_peer.h"

#include "../../plugins/algorithm/ll_v1/ll_v1.h"

/* This rank has experts 0 and 1, its peer 2 and 3. A row in bf16 is 32 KiB: 48 of them leave nine
 * at a time. */
enum { TOKENS = 24, HIDDEN = 16384, EXPERTS = 4, TOPK = 2, LOCAL = 2 };

static struct v1_config config_of(int dtype, uint32_t buffers)
{
    return (struct v1_config){.pdl = true, .dispatch_dtype = dtype, .buffers = buffers};
}

static struct fixture *create_with(uint32_t ranks, struct v1_config c)
{
    struct fixture *f =
        fixture_of((struct shape){ranks, ranks > 1 ? EPA_TRANSPORT_HOST : EPA_TRANSPORT_LOAD_STORE,
                                  TOKENS, HIDDEN, EXPERTS, TOPK, 2},
                   &c);

    for (uint32_t i = 0; i < TOKENS * TOPK; i++) {
        f->expert[i] = 2 + (int32_t)(i % TOPK);
        f->weight[i] = 1;
    }
    for (uint32_t t = 0; t < TOKENS; t++)
        f->x[(size_t)t * HIDDEN] = (uint16_t)(0x3f80 + t);
    return f;
}

static struct fixture *create(uint32_t ranks, int dtype, uint32_t buffers)
{
    return create_with(ranks, config_of(dtype, buffers));
}

TEST_OF_CALLS(calls_of_a_mode_take_positions_in_turn, create(2, ALGO_DTYPE_FP8, 1))
{
    for (uint64_t call = 1; call <= 4; call++) {
        assert_int_equal(combine(f, dispatch(f)), EPA_OK);
        assert_int_equal(f->signalled[v1_signal_of(2, V1_DISPATCH, call, 0)], call);
        assert_int_equal(f->signalled[v1_signal_of(2, V1_COMBINE, call, 0)], call);
    }
}

TEST_OF_CALLS(combines_go_in_the_order_of_dispatches, create(1, ALGO_DTYPE_NATIVE, 2))
{
    uint64_t first, second;

    memset(f->expert, 0, TOKENS * TOPK * sizeof(*f->expert));
    first = dispatch(f);
    second = dispatch(f);
    assert_int_equal(combine(f, second), EPA_ERR_CONFIG);
    assert_explained(f, EPA_ERR_CONFIG, "combine/send .. dispatch 2 .. 1");
    assert_int_equal(combine(f, first), EPA_OK);
    assert_int_equal(combine(f, second), EPA_OK);
}

TEST_OF_CALLS(a_combine_may_be_called_again_until_the_next_dispatch, create(2, ALGO_DTYPE_FP8, 2))
{
    uint64_t first, second;

    assert_true(f->a->combines_again);
    first = dispatch(f);
    assert_int_equal(combine(f, first), EPA_OK);
    assert_int_equal(combine(f, first), EPA_OK);
    assert_int_equal(combine(f, first), EPA_OK);
    assert_int_equal(f->signalled[v1_signal_of(2, V1_COMBINE, 3, 0)], 3);
    second = dispatch(f);
    assert_int_equal(combine(f, first), EPA_ERR_CONFIG);
    assert_explained(f, EPA_ERR_CONFIG, "combine/send .. dispatch 1");
    assert_int_equal(combine(f, second), EPA_OK);
}

TEST_OF_CALLS(only_the_last_dispatch_is_discarded_and_its_set_is_free, create(2, ALGO_DTYPE_FP8, 2))
{
    uint64_t first = dispatch(f);

    (void)dispatch(f);
    f->problem.u.moe.epoch = first;
    assert_int_equal(f->a->discard(f->a, &f->problem), EPA_ERR_CONFIG);
    assert_explained(f, EPA_ERR_CONFIG, "discard: .. dispatch 1");
    f->problem.u.moe.epoch = 2;
    memset(f->trace, 0, sizeof(f->trace));
    assert_int_equal(f->a->discard(f->a, &f->problem), EPA_OK);
    assert_string_equal(f->trace, "");
    (void)dispatch(f);
    assert_int_equal(combine(f, first), EPA_OK);
    assert_int_equal(combine(f, 3), EPA_OK);
}

TEST_OF_CALLS(no_more_dispatches_are_open_than_buffers, create(2, ALGO_DTYPE_FP8, 1))
{
    (void)dispatch(f);
    assert_int_equal(run(f, 0), EPA_ERR_CONFIG);
    assert_explained(f, EPA_ERR_CONFIG, "dispatch/sort_and_quantise .. 1 .. algorithm.buffers");
}

TEST(peers_out_of_reach_against_the_plan_are_refused)
{
    struct v1_config c = config_of(ALGO_DTYPE_FP8, 1);

    assert_unreachable_peer_is_refused((struct shape){2, 0, TOKENS, HIDDEN, EXPERTS, TOPK, 2}, &c);
}

/* ---- what is sorted, sent, and made of what comes ---- */

static struct v1_layout layout_of(const struct fixture *f, int dtype, uint32_t buffers)
{
    struct epa_world world = world_of(f->shape.ranks);
    struct v1_config c = config_of(dtype, buffers);
    struct epa_error err = {EPA_OK, ""};
    struct v1_layout l;

    assert_int_equal(v1_layout_make(&f->problem.u.moe, &world, f->shape.flags, &c, &l, &err),
                     EPA_OK);
    return l;
}

static uint32_t *out_splits(struct fixture *f, uint32_t peer, uint32_t start)
{
    struct v1_layout l = layout_of(f, ALGO_DTYPE_NATIVE, 1);

    return (uint32_t *)(void *)(f->t.heap + l.out_splits.at) + v1_splits_to(&l, peer, start);
}

/* What the peer sends in call `call`; nothing before it in the heap hangs on `buffers`. */
static uint32_t *in_splits(struct fixture *f, uint64_t call)
{
    struct v1_layout l = layout_of(f, ALGO_DTYPE_NATIVE, 1);

    return (uint32_t *)(void *)(f->t.heap + l.splits.at + l.splits.bytes * (call % V1_POSITIONS)) +
           l.split_words;
}

static uint64_t put_to(const struct fixture *f, const struct v1_region *r)
{
    return bytes_to(f, r->at, r->bytes * V1_POSITIONS);
}

TEST_OF_CALLS(a_slice_is_sorted_by_expert_then_token, create(2, ALGO_DTYPE_NATIVE, 1))
{
    const uint32_t *mine, *peers;

    f->problem.u.moe.tokens = 3;
    memcpy(f->expert, (int32_t[]){3, 1, 2, 3, -1, 1}, 6 * sizeof(int32_t));
    (void)dispatch(f);
    mine = out_splits(f, 0, 0);
    peers = out_splits(f, 1, 2);
    assert_memory_equal(mine, ((uint32_t[]){0, 2, 0, 0, 2}), 5 * sizeof(*mine));
    assert_memory_equal(peers, ((uint32_t[]){1, 2, 2, 1, 0, 1}), 6 * sizeof(*peers));
}

TEST_OF_CALLS(rows_stand_by_expert_then_source_then_token, create(2, ALGO_DTYPE_NATIVE, 1))
{
    struct v1_layout l = layout_of(f, ALGO_DTYPE_NATIVE, 1);
    struct epa_moe *m = &f->problem.u.moe;
    const uint32_t splits[] = {1, 2, 5, 7, 3, 9}; /* of the peer: counts, start, tokens */
    const struct epa_origin expected[] = {{0, 1}, {1, 7}, {0, 0}, {1, 3}, {1, 9}};
    char *slot = f->t.heap + l.slot.at + l.slot.bytes + l.max_m * l.row_bytes;

    m->tokens = 2;
    memcpy(f->expert, (int32_t[]){1, 2, 0, 3}, 4 * sizeof(int32_t));
    memcpy(in_splits(f, 1), splits, sizeof(splits));
    for (uint16_t i = 0; i < 3; i++)
        *(uint16_t *)(void *)(slot + i * l.row_bytes) = (uint16_t)(0x100 + i);
    (void)dispatch(f);
    assert_int_equal(m->recv_entries, 5);
    assert_int_equal(m->recv_count[0], 2);
    assert_int_equal(m->recv_count[1], 3);
    assert_int_equal(m->recv_start[1], 2);
    assert_memory_equal(m->origin, expected, sizeof(expected));
    for (uint32_t i = 0; i < 5; i++) {
        uint16_t first =
            *(const uint16_t *)(const void *)((const char *)m->recv + i * m->recv_stride);

        assert_int_equal(first, i == 1   ? 0x100
                                : i == 3 ? 0x101
                                : i == 4 ? 0x102
                                         : 0x3f80 + expected[i].token);
    }
}

TEST(splits_that_cannot_be_end_a_dispatch_in_words)
{
    struct fixture *f = create(2, ALGO_DTYPE_NATIVE, 2);

    memcpy(in_splits(f, 1), (uint32_t[]){40, 9, 0}, 12);
    assert_int_equal(run(f, 0), EPA_ERR_MISMATCH);
    assert_explained(f, EPA_ERR_MISMATCH, "dispatch/postprocess .. rank 1 .. 49 .. 0 .. 48");
    memcpy(in_splits(f, 2), (uint32_t[]){1, 0, 48}, 12);
    assert_int_equal(run(f, 0), EPA_ERR_MISMATCH);
    assert_explained(f, EPA_ERR_MISMATCH, "dispatch/postprocess .. rank 1 .. 1 .. 48");
    finish(f);
    f = create(2, ALGO_DTYPE_NATIVE, 2);
    memcpy(in_splits(f, 1), (uint32_t[]){1, 0, 0, TOKENS}, 16);
    assert_int_equal(run(f, 0), EPA_ERR_MISMATCH);
    assert_explained(f, EPA_ERR_MISMATCH, "dispatch/postprocess .. rank 1");
    finish(f);
}

TEST_OF_CALLS(more_rows_than_max_m_end_a_dispatch_in_words,
              create_with(2, (struct v1_config){.pdl = true,
                                                .dispatch_dtype = ALGO_DTYPE_NATIVE,
                                                .buffers = 1,
                                                .capacity = 1}))
{
    assert_int_equal(run(f, 0), EPA_ERR_CONFIG);
    assert_explained(
        f, EPA_ERR_CONFIG,
        "dispatch/sort_and_quantise .. rank 0 .. 48 .. rank 1 .. 25 .. algorithm.capacity .. 0");
}

TEST_OF_CALLS(a_block_is_one_stretch_with_splits_then_a_signal, create(2, ALGO_DTYPE_NATIVE, 1))
{
    struct v1_layout l = layout_of(f, ALGO_DTYPE_NATIVE, 1);

    (void)dispatch(f);
    assert_int_equal(put_to(f, &l.slot), 48 * 2 * HIDDEN);
    assert_int_equal(put_to(f, &l.splits), (LOCAL + 1 + 48) * 4);
    assert_int_equal(put_to(f, &l.slot_scales), 0);
    assert_string_equal(f->trace, "ppppppp" /* 6 pieces, splits */ "fswq");
    assert_int_equal(f->signalled[v1_signal_of(2, V1_DISPATCH, 1, 0)], 1);
}

TEST_OF_CALLS(scales_bring_the_signal_after_a_fence, create(2, ALGO_DTYPE_FP8, 1))
{
    struct v1_layout l = layout_of(f, ALGO_DTYPE_FP8, 1);

    (void)dispatch(f);
    assert_int_equal(put_to(f, &l.slot), 48 * HIDDEN);
    assert_int_equal(put_to(f, &l.slot_scales), 48 * HIDDEN / 128 * 4);
    assert_string_equal(f->trace, "pppp" /* 3 pieces, splits */ "fPwq");
    assert_int_equal(f->signalled[v1_signal_of(2, V1_DISPATCH, 1, 0)], 1);
}

TEST_OF_CALLS(who_gets_no_rows_is_reported_all_the_same, create(2, ALGO_DTYPE_FP8, 1))
{
    f->problem.u.moe.tokens = 0;
    assert_int_equal(combine(f, dispatch(f)), EPA_OK);
    assert_string_equal(f->trace, "fswq");
    assert_int_equal(f->signalled[v1_signal_of(2, V1_DISPATCH, 1, 0)], 1);
    assert_int_equal(f->signalled[v1_signal_of(2, V1_COMBINE, 1, 0)], 1);
}

/* The peer sent rows 5 to 7 of what it had sorted. */
TEST_OF_CALLS(outputs_return_side_by_side_from_recv_offset_on, create(2, ALGO_DTYPE_NATIVE, 1))
{
    struct v1_layout l = layout_of(f, ALGO_DTYPE_NATIVE, 1);

    memcpy(in_splits(f, 1), (uint32_t[]){1, 2, 5, 7, 3, 9}, 24);
    assert_int_equal(combine(f, dispatch(f)), EPA_OK);
    assert_int_equal(put_to(f, &l.outputs), 3 * 2 * HIDDEN);
    assert_string_equal(f->trace, "pp" /* an expert each */ "fswq");
}

TEST_OF_CALLS(outputs_are_taken_from_where_the_slice_began, create(2, ALGO_DTYPE_NATIVE, 1))
{
    struct v1_layout l = layout_of(f, ALGO_DTYPE_NATIVE, 1);
    uint64_t epoch;

    epoch = dispatch(f);
    for (uint32_t i = 0; i < 48; i++) /* token i of expert 2, then of expert 3 */
        *(uint16_t *)(void *)(f->t.heap + l.outputs.at + l.outputs.bytes + i * l.output_bytes) =
            i == 24 + 5 ? 0x4000 : 0;
    assert_int_equal(combine(f, epoch), EPA_OK);
    for (uint32_t t = 0; t < TOKENS; t++)
        assert_int_equal(f->out[(size_t)t * HIDDEN], t == 5 ? 0x4000 : 0);
}

TEST_OF_CALLS(nothing_is_held_back_when_a_call_has_ended, create(2, ALGO_DTYPE_FP8, 1))
{
    uint64_t epoch = dispatch(f);

    assert_int_equal(f->held, 0);
    assert_int_equal(combine(f, epoch), EPA_OK);
    assert_int_equal(f->held, 0);
}

TEST_OF_CALLS(a_transport_without_room_ends_in_a_timeout_that_says_so, create(2, ALGO_DTYPE_FP8, 1))
{
    f->no_room = true;
    assert_int_equal(run(f, 0), EPA_ERR_TIMEOUT);
    assert_explained(f, EPA_ERR_TIMEOUT, "dispatch/send .. 0.001 .. rank 1");
}
