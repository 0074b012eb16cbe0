/* Tests of token_flag without peers: layout on hosts and GPUs, signals, the order of rows, refused
 * configurations, and calls out of order. */
#include "algorithm_peer.h"
#include "layouts.h"

#include "../../plugins/algorithm/token_flag/token_flag_layout.h"

/* The largest supported shape that an experiment can have. */
enum { RANKS = 64, TOKENS = 4096, HIDDEN = 131072 };

static struct tf_config config_of(int lock, uint32_t buffers)
{
    return (struct tf_config){.dispatch_dtype = ALGO_DTYPE_NATIVE,
                              .flag_granularity = lock,
                              .chunks = 1,
                              .buffers = buffers};
}

LAYOUTS(tf_layout, tf_config, tf_layout_make)

TEST(counts_and_epoch_form_one_increasing_word)
{
    assert_true(tf_count_flag(1, 0) > 0);
    assert_true(tf_count_flag(2, 0) > tf_count_flag(1, (1u << TF_ROW_BITS) - 2));
    assert_true(tf_count_flag(1ull << 32, 0) > tf_count_flag(UINT32_MAX, 5));
    assert_int_equal(tf_rows_of_flag(tf_count_flag(1ull << 32, 5)), 5);
    assert_int_equal(tf_rows_of_flag(tf_count_flag(7, 12)), 12);
}

/* Counts, rows and expert outputs of all sets use distinct words within the limit. */
TEST(each_flag_has_its_own_signal)
{
    struct tf_config c = config_of(TF_FLAG_PER_TOKEN, 2);
    struct epa_moe m = decode;
    struct tf_layout l;
    uint8_t *used;

    m.max_tokens = 5;
    l = made(&m, 4, OVER_PUTS, &c);
    used = calloc(l.signals, 1);
    assert_non_null(used);
    for (uint32_t source = 0; source < 4; source++)
        for (uint64_t epoch = 8; epoch < 10; epoch++)
            assert_int_equal(used[tf_count_signal(&l, epoch, source)]++, 0);
    for (uint32_t set = 0; set < 2; set++) {
        for (uint32_t i = 0; i < 4 * l.source_rows; i++)
            assert_int_equal(used[tf_row_signal(&l, set, i / l.source_rows, i % l.source_rows)]++,
                             0);
        for (uint32_t i = 0; i < 5 * 8; i++)
            assert_int_equal(used[tf_output_signal(&l, set, i / 8, i % 8)]++, 0);
    }
    for (uint32_t i = 0; i < l.signals; i++)
        assert_int_equal(used[i], 1);
    free(used);
}

/* A layer with any number of tokens; more parts than tokens leave some parts empty. */
TEST(parts_of_a_layer_cover_all_tokens_in_order)
{
    static uint16_t x[9 * 7168];
    struct tf_config c = config_of(TF_FLAG_PER_TOKEN, 2);
    struct epa_problem whole = {.op = EPA_OP_MOE, .u.moe = decode}, part;

    whole.u.moe.max_tokens = 9;
    whole.u.moe.mlp.ffn = 128;
    whole.u.moe.x = x;
    for (c.parts = 1; c.parts <= 12; c.parts++) {
        struct tf_layout l = made(&whole.u.moe, 4, OVER_PUTS, &c);

        assert_int_equal(l.parts, c.parts < 9 ? c.parts : 9);
        assert_int_equal(l.buffers, l.parts < TF_HOST_SETS ? l.parts : TF_HOST_SETS);
        for (uint32_t tokens = 0; tokens <= 9; tokens++) {
            uint32_t done = 0;

            whole.u.moe.tokens = tokens;
            for (uint32_t n = 0; n < l.parts; n++, done += part.u.moe.tokens) {
                tf_set_part(&l, &whole, n, &part);
                assert_ptr_equal(part.u.moe.x, x + (size_t)done * whole.u.moe.hidden);
                assert_null(part.u.moe.x_fp8);
                assert_true(part.u.moe.tokens <= l.max_tokens);
            }
            assert_int_equal(done, tokens);
        }
    }
}

TEST(the_largest_shape_fits_into_64_bits)
{
    struct tf_config c = config_of(TF_FLAG_PER_TOKEN, 2);
    struct epa_moe m = decode;
    struct tf_layout l;

    m.max_tokens = TOKENS;
    m.hidden = HIDDEN;
    m.topk = TF_TOPK;
    m.experts = RANKS * TF_TOPK;
    l = made(&m, RANKS, OVER_PUTS, &c);
    assert_int_equal(l.rows, (uint64_t)RANKS * TOKENS * TF_TOPK);
    assert_true(l.heap_bytes > 2 * l.rows * 6 * HIDDEN);
    assert_int_equal(tf_output_signal(&l, 1, TOKENS - 1, TF_TOPK - 1), l.signals - 1);
}

TEST(unsupported_shapes_are_refused_with_the_reason)
{
    struct tf_config c = {.dispatch_dtype = ALGO_DTYPE_FP8, .buffers = 2, .chunks = 1};
    struct epa_moe m = decode;

    assert_refusals("token_flag", &c);
    c.dispatch_dtype = ALGO_DTYPE_NATIVE;
    m.experts = 1 << 20;
    assert_refused(&m, 8, OVER_LOADS, &c, "takes up to 65536 experts a rank, not 131072");
    m = decode;
    m.hidden = 65536;
    assert_refused(&m, 8, OF_GPUS, &c, "token_flag .. 98304 .. moe.hidden .. 65536 .. 139904");
    m = decode;
    m.max_tokens = 1 << 20;
    m.topk = 32;
    assert_refused(&m, 8, OF_GPUS, &c, "32 .. 268435456 .. 8 .. moe.max_tokens .. moe.topk");
    c.nontemporal = TF_NONTEMPORAL_ON;
    assert_refused(&decode, 8, OF_GPUS, &c, "token_flag: nontemporal is for hosts; leave it out");
}

/* ---- on GPUs ---- */

/* Checks the order of rows: each row of every source appears once, rows of a source ascend, and no
 * source with remaining rows falls behind another by more than one. */
static void check_order(uint32_t size, const uint32_t *n)
{
    uint32_t next[EPA_DEVICE_RANKS] = {0}, all = 0, source, row;

    for (uint32_t s = 0; s < size; s++)
        all += n[s];
    for (uint32_t i = 0; i < all; i++) {
        tf_row_at(size, size / 2, n, i, &source, &row);
        assert_in_range(source, 0, size - 1);
        assert_int_equal(row, next[source]);
        next[source]++;
        for (uint32_t s = 0; s < size; s++)
            assert_true(next[s] == n[s] || next[s] + 1 >= next[source]);
    }
    for (uint32_t s = 0; s < size; s++)
        assert_int_equal(next[s], n[s]);
}

TEST(rows_alternate_between_sources_of_any_length)
{
    uint32_t n[EPA_DEVICE_RANKS], random = 1;

    check_order(1, (uint32_t[]){5});
    check_order(3, (uint32_t[]){0, 0, 0});
    check_order(4, (uint32_t[]){0, 7, 0, 7});
    check_order(4, (uint32_t[]){9, 1, 0, 4});
    for (uint32_t i = 0; i < 200; i++) {
        for (uint32_t s = 0; s < EPA_DEVICE_RANKS; s++) {
            random = random * 1664525u + 1013904223u;
            n[s] = random >> 16 & 15;
        }
        check_order(1 + i % EPA_DEVICE_RANKS, n);
    }
}

/* ---- calls out of order: one rank, with a transport that the test replaces ---- */

static struct fixture *alone(uint32_t buffers)
{
    struct tf_config c = config_of(TF_FLAG_PER_TOKEN, buffers);

    return fixture_try((struct shape){1, OVER_LOADS, 1, 64, 1, 1, 1}, &c, 0xff, EPA_OK, "");
}

static void assert_says(struct fixture *f, uint32_t stage, const char *words)
{
    assert_int_equal(run(f, stage), EPA_ERR_CONFIG);
    assert_explained(f, EPA_ERR_CONFIG, words);
}

TEST_OF_CALLS(each_half_needs_the_one_before, alone(2))
{
    f->problem.u.moe.epoch = 1;
    assert_says(f, 1, "dispatch_recv/counts: .. dispatch 1 .. no dispatch is sent");
    assert_says(f, 2, "no dispatch is received");
    assert_says(f, 3, "no dispatch is returned");
    assert_int_equal(run(f, 0), EPA_OK);
    assert_says(f, 0, "dispatch 1 .. dispatch_recv");
}

TEST(open_dispatches_never_exceed_the_sets)
{
    for (uint32_t buffers = 1; buffers <= 2; buffers++) {
        struct fixture *f = alone(buffers);

        for (uint32_t i = 0; i < buffers; i++) {
            assert_int_equal(run(f, 0), EPA_OK);
            assert_int_equal(run(f, 1), EPA_OK);
        }
        assert_says(f, 0, "combine one first");
        if (buffers == 2)
            assert_says(f, 2, "dispatch 2 .. 1 is the oldest that is received");
        finish(f);
    }
}
