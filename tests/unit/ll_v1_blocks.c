/* ll_v1: how a rank sorts, what it puts to a peer that loads and stores do not reach, and what it
 * makes of what comes. */
#include "ll_v1_peer.h"

#define TEST_OF_BLOCKS(name, begin) TEST_OF(name, struct fixture, f, begin, finish)

TEST_OF_BLOCKS(a_slice_is_sorted_by_expert_then_token,
               create(2, (struct v1_config){
                             .pdl = true, .dispatch_dtype = V1_DTYPE_NATIVE, .buffers = 1}))
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

TEST_OF_BLOCKS(rows_stand_by_expert_then_source_then_token,
               create(2, (struct v1_config){
                             .pdl = true, .dispatch_dtype = V1_DTYPE_NATIVE, .buffers = 1}))
{
    struct epa_moe *m = &f->problem.u.moe;
    const uint32_t splits[] = {1, 2, 5, 7, 3, 9}; /* of the peer: counts, start, tokens */
    const struct epa_origin expected[] = {{0, 1}, {1, 7}, {0, 0}, {1, 3}, {1, 9}};
    char *slot = f->t.heap + f->l.slot.at + f->l.slot.bytes + f->l.max_m * f->l.row_bytes;

    m->tokens = 2;
    memcpy(f->expert, (int32_t[]){1, 2, 0, 3}, 4 * sizeof(int32_t));
    memcpy(in_splits(f, 1), splits, sizeof(splits));
    for (uint16_t i = 0; i < 3; i++)
        *(uint16_t *)(void *)(slot + i * f->l.row_bytes) = (uint16_t)(0x100 + i);
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
    struct fixture *f =
        create(2, (struct v1_config){.pdl = true, .dispatch_dtype = V1_DTYPE_NATIVE, .buffers = 2});

    memcpy(in_splits(f, 1), (uint32_t[]){40, 9, 0}, 12);
    assert_int_equal(run(f, 0), EPA_ERR_MISMATCH);
    assert_explained(f, EPA_ERR_MISMATCH, "dispatch/postprocess .. rank 1 .. 49 .. 0 .. 48");
    memcpy(in_splits(f, 2), (uint32_t[]){1, 0, 48}, 12);
    assert_int_equal(run(f, 0), EPA_ERR_MISMATCH);
    assert_explained(f, EPA_ERR_MISMATCH, "dispatch/postprocess .. rank 1 .. 1 .. 48");
    finish(f);
    f = create(2, (struct v1_config){.pdl = true, .dispatch_dtype = V1_DTYPE_NATIVE, .buffers = 2});
    memcpy(in_splits(f, 1), (uint32_t[]){1, 0, 0, TOKENS}, 16);
    assert_int_equal(run(f, 0), EPA_ERR_MISMATCH);
    assert_explained(f, EPA_ERR_MISMATCH, "dispatch/postprocess .. rank 1");
    finish(f);
}

TEST_OF_BLOCKS(more_rows_than_max_m_end_a_dispatch_in_words,
               create(2, (struct v1_config){.pdl = true,
                                            .dispatch_dtype = V1_DTYPE_NATIVE,
                                            .buffers = 1,
                                            .capacity = 1}))
{
    assert_int_equal(run(f, 0), EPA_ERR_CONFIG);
    assert_explained(
        f, EPA_ERR_CONFIG,
        "dispatch/sort_and_quantise .. rank 0 .. 48 .. rank 1 .. 25 .. algorithm.capacity .. 0");
}

/* ---- blocks ---- */

/* A row in bf16 is 32 KiB: 48 of them leave nine at a time. */
TEST_OF_BLOCKS(a_block_is_one_stretch_with_splits_then_a_signal,
               create(2, (struct v1_config){
                             .pdl = true, .dispatch_dtype = V1_DTYPE_NATIVE, .buffers = 1}))
{
    (void)dispatch(f);
    assert_int_equal(f->row_bytes, 48 * 2 * HIDDEN);
    assert_int_equal(f->splits_bytes, (LOCAL + 1 + 48) * 4);
    assert_int_equal(f->scales_bytes, 0);
    assert_string_equal(f->trace, "ppppppp" /* 6 pieces, splits */ "fswq");
    assert_int_equal(f->signalled[v1_signal_of(2, V1_DISPATCH, 1, 0)], 1);
}

TEST_OF_BLOCKS(scales_bring_the_signal_after_a_fence,
               create(2, (struct v1_config){
                             .pdl = true, .dispatch_dtype = V1_DTYPE_FP8, .buffers = 1}))
{
    (void)dispatch(f);
    assert_int_equal(f->row_bytes, 48 * HIDDEN);
    assert_int_equal(f->scales_bytes, 48 * HIDDEN / 128 * 4);
    assert_string_equal(f->trace, "pppp" /* 3 pieces, splits */ "fPwq");
    assert_int_equal(f->signalled[v1_signal_of(2, V1_DISPATCH, 1, 0)], 1);
}

TEST_OF_BLOCKS(who_gets_no_rows_is_reported_all_the_same,
               create(2, (struct v1_config){
                             .pdl = true, .dispatch_dtype = V1_DTYPE_FP8, .buffers = 1}))
{
    f->problem.u.moe.tokens = 0;
    assert_int_equal(combine(f, dispatch(f)), EPA_OK);
    assert_string_equal(f->trace, "fswq");
    assert_int_equal(f->signalled[v1_signal_of(2, V1_DISPATCH, 1, 0)], 1);
    assert_int_equal(f->signalled[v1_signal_of(2, V1_COMBINE, 1, 0)], 1);
}

/* The peer sent rows 5 to 7 of what it had sorted. */
TEST_OF_BLOCKS(outputs_return_side_by_side_from_recv_offset_on,
               create(2, (struct v1_config){
                             .pdl = true, .dispatch_dtype = V1_DTYPE_NATIVE, .buffers = 1}))
{
    memcpy(in_splits(f, 1), (uint32_t[]){1, 2, 5, 7, 3, 9}, 24);
    assert_int_equal(combine(f, dispatch(f)), EPA_OK);
    assert_int_equal(f->output_bytes, 3 * 2 * HIDDEN);
    assert_string_equal(f->trace, "pp" /* an expert each */ "fswq");
}

TEST_OF_BLOCKS(outputs_are_taken_from_where_the_slice_began,
               create(2, (struct v1_config){
                             .pdl = true, .dispatch_dtype = V1_DTYPE_NATIVE, .buffers = 1}))
{
    uint64_t epoch;

    epoch = dispatch(f);
    for (uint32_t i = 0; i < 48; i++) /* token i of expert 2, then of expert 3 */
        *(uint16_t *)(void *)(f->t.heap + f->l.outputs.at + f->l.outputs.bytes +
                              i * f->l.output_bytes) = i == 24 + 5 ? 0x4000 : 0;
    assert_int_equal(combine(f, epoch), EPA_OK);
    for (uint32_t t = 0; t < TOKENS; t++)
        assert_int_equal(f->out[(size_t)t * HIDDEN], t == 5 ? 0x4000 : 0);
}

TEST_OF_BLOCKS(nothing_is_held_back_when_a_call_has_ended,
               create(2, (struct v1_config){
                             .pdl = true, .dispatch_dtype = V1_DTYPE_FP8, .buffers = 1}))
{
    uint64_t epoch = dispatch(f);

    assert_int_equal(f->held, 0);
    assert_int_equal(combine(f, epoch), EPA_OK);
    assert_int_equal(f->held, 0);
}

TEST_OF_BLOCKS(a_transport_without_room_ends_in_a_timeout_that_says_so,
               create(2, (struct v1_config){
                             .pdl = true, .dispatch_dtype = V1_DTYPE_FP8, .buffers = 1}))
{
    f->no_room = true;
    assert_int_equal(run(f, 0), EPA_ERR_TIMEOUT);
    assert_explained(f, EPA_ERR_TIMEOUT, "dispatch/send .. 0.001 .. rank 1");
}
