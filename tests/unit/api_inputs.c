/* Tests of src/lib/api: shapes and tokens of a caller become the inputs of an algorithm, or are
 * refused with the name of the field. */
#include "test.h"

#include <string.h>

#include "api/shape.h"
#include "api/tokens.h"

enum { TOKENS = 3, HIDDEN = 32, EXPERTS = 8, TOPK = 3, GROUP = 16, RANKS = 4 };

static struct epa2a_moe_shape shape_of_test(void)
{
    return (struct epa2a_moe_shape){.size = sizeof(struct epa2a_moe_shape),
                                    .max_tokens = TOKENS,
                                    .hidden = HIDDEN,
                                    .experts = EXPERTS,
                                    .topk = TOPK,
                                    .dtype = EPA2A_F16,
                                    .fp8_group = GROUP};
}

static struct epa_moe moe_of_test(void)
{
    const struct epa2a_moe_shape s = shape_of_test();
    struct epa2a_moe_shape read;
    struct epa_moe moe;

    assert_status(shape_read(&s, RANKS, &read, &moe, test_error()), EPA_OK, "");
    return moe;
}

TEST(zeros_in_a_shape_are_defaults)
{
    const struct epa2a_moe_shape s = {
        .size = sizeof(s), .max_tokens = 1, .hidden = 16, .experts = 4, .topk = 1};
    struct epa2a_moe_shape out;
    struct epa_moe moe;

    assert_status(shape_read(&s, RANKS, &out, &moe, test_error()), EPA_OK, "");
    assert_int_equal(out.dtype, EPA2A_BF16);
    assert_int_equal(out.recv_dtype, EPA2A_BF16);
    assert_int_equal(out.fp8_group, 128);
    assert_int_equal(out.in_flight, 1);
    assert_int_equal(moe.fp8_group_size, 128);
    assert_int_equal(moe.dtype, EPA_BF16);
}

TEST(wrong_shapes_name_the_field)
{
    static const struct {
        size_t offset;
        uint32_t value;
        const char *text;
    } wrong[] = {
#define FIELD(name) offsetof(struct epa2a_moe_shape, name)
        {FIELD(max_tokens), 0, "max_tokens is 0"},
        {FIELD(max_tokens), 40000, "max_tokens is 40000"},
        {FIELD(hidden), 0, "hidden is 0 .. 16"},
        {FIELD(hidden), 24, "hidden is 24 .. 16"},
        {FIELD(experts), 0, "experts is 0 .. 4"},
        {FIELD(experts), 6, "experts is 6 .. ranks (4)"},
        {FIELD(experts), 8192, "experts is 8192 .. 4096"},
        {FIELD(topk), 0, "topk is 0 .. 1 to 8"},
        {FIELD(topk), 9, "topk is 9 .. 1 to 8"},
        {FIELD(dtype), EPA2A_FP8_E4M3, "dtype is 2 .. EPA2A_BF16"},
        {FIELD(recv_dtype), EPA2A_BF16, "recv_dtype is 1"},
        {FIELD(layout), 4, "layout is 4"},
        {FIELD(in_flight), 3, "in_flight is 3"},
#undef FIELD
    };
    struct epa2a_moe_shape out;
    struct epa_moe moe;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct epa2a_moe_shape s = shape_of_test();

        memcpy((char *)&s + wrong[i].offset, &wrong[i].value, sizeof(wrong[i].value));
        assert_status(shape_read(&s, RANKS, &out, &moe, test_error()), EPA_ERR_CONFIG,
                      wrong[i].text);
    }
}

static const int32_t good[TOKENS * TOPK] = {0, 7, -1, -1, -1, -1, 3, 2, 1};
static uint16_t rows[TOKENS][HIDDEN + 8];

static struct epa2a_tokens tokens_of_test(const int32_t *expert)
{
    return (struct epa2a_tokens){.size = sizeof(struct epa2a_tokens),
                                 .tokens = TOKENS,
                                 .x = rows,
                                 .topk_idx = expert,
                                 .topk_idx_bytes = 4};
}

/* Reads the indices as 4 and as 8 bytes. */
static void assert_refused(const int32_t *expert, const char *text)
{
    struct epa_moe moe = moe_of_test();
    struct epa2a_tokens in = tokens_of_test(expert), read;
    struct tokens t;
    int64_t wide[TOKENS * TOPK];

    assert_status(tokens_init(&t, &moe, EPA_MEMORY_HOST, test_error()), EPA_OK, "");
    assert_status(tokens_read(&t, &in, &read, &moe, test_error()), EPA_ERR_CONFIG, text);
    for (uint32_t i = 0; i < TOKENS * TOPK; i++)
        wide[i] = expert[i];
    in.topk_idx = wide;
    in.topk_idx_bytes = 8;
    assert_status(tokens_read(&t, &in, &read, &moe, test_error()), EPA_ERR_CONFIG, text);
    tokens_finish(&t);
}

TEST(wrong_indices_name_token_and_choice)
{
    static const int32_t wrong[] = {8, -2, INT32_MAX, INT32_MIN};
    int32_t expert[TOKENS * TOPK];

    for (uint32_t at = 0; at < TOKENS * TOPK; at++)
        for (uint32_t i = 0; i < 4; i++) {
            char text[80];

            memcpy(expert, good, sizeof(good));
            expert[at] = wrong[i];
            snprintf(text, sizeof(text), "choice %u of token %u is expert %d .. 0 to 7", at % TOPK,
                     at / TOPK, wrong[i]);
            assert_refused(expert, text);
        }
    memcpy(expert, good, sizeof(good));
    expert[8] = 3;
    assert_refused(expert, "token 2 selects expert 3 twice (choices 0 and 2)");
}

TEST(indices_of_8_bytes_beyond_32_bits_are_refused)
{
    struct epa_moe moe = moe_of_test();
    const int64_t wide[] = {1, 2, INT64_C(1) << 32};
    int32_t to[TOPK];
    const int32_t *out;
    struct tokens t;

    assert_status(tokens_init(&t, &moe, EPA_MEMORY_HOST, test_error()), EPA_OK, "");
    assert_status(tokens_read_experts(&t, &moe, 1, wide, 8, to, &out, test_error()), EPA_ERR_CONFIG,
                  "choice 2 of token 0 is expert 4294967296");
    tokens_finish(&t);
}

/* Experts 0 and 64 differ, although their lowest bits are equal. */
TEST(different_experts_are_no_repetition)
{
    struct epa_moe moe = {.max_tokens = 2, .experts = 256, .topk = 4};
    const int32_t expert[] = {0, 64, 128, 255, 0, -1, -1, 64};
    int32_t to[8];
    const int32_t *out;
    struct tokens t;

    assert_status(tokens_init(&t, &moe, EPA_MEMORY_HOST, test_error()), EPA_OK, "");
    for (int turn = 0; turn < 2; turn++) { /* a call does not remember the tokens of the last one */
        assert_status(tokens_read_experts(&t, &moe, 2, expert, 4, to, &out, test_error()), EPA_OK,
                      "");
        assert_ptr_equal(out, expert);
    }
    tokens_finish(&t);
}

/* Each number of choices, and each pair of places. */
TEST(each_repetition_is_found)
{
    enum { MOST = 16 };

    for (uint32_t topk = 1; topk <= MOST; topk++) {
        struct epa_moe moe = {.max_tokens = TOKENS, .experts = 64, .topk = topk};
        int32_t expert[TOKENS * MOST], to[TOKENS * MOST];
        const int32_t *out;
        struct tokens t;

        assert_status(tokens_init(&t, &moe, EPA_MEMORY_HOST, test_error()), EPA_OK, "");
        for (uint32_t i = 0; i < TOKENS * topk; i++)
            expert[i] = (int32_t)(i % topk) * 3; /* all tokens select the same experts */
        for (uint32_t k = 1; k < topk; k++)
            for (uint32_t i = 0; i < k; i++) {
                int32_t *last = expert + (size_t)(TOKENS - 1) * topk, was = last[k];

                assert_status(
                    tokens_read_experts(&t, &moe, TOKENS, expert, 4, to, &out, test_error()),
                    EPA_OK, "");
                last[k] = last[i];
                assert_status(
                    tokens_read_experts(&t, &moe, TOKENS, expert, 4, to, &out, test_error()),
                    EPA_ERR_CONFIG, "token 2 selects expert");
                last[k] = last[i] = -1; /* dropped choices may be equal */
                assert_status(
                    tokens_read_experts(&t, &moe, TOKENS, expert, 4, to, &out, test_error()),
                    EPA_OK, "");
                last[k] = was;
                last[i] = (int32_t)i * 3;
            }
        tokens_finish(&t);
    }
}

TEST(inputs_reach_the_algorithm)
{
    struct epa_moe moe = moe_of_test();
    struct epa2a_tokens in = tokens_of_test(good), read;
    float weight[TOKENS * TOPK] = {0}, scale[TOKENS][HIDDEN / GROUP + 1];
    int64_t wide[TOKENS * TOPK];
    struct tokens t;

    for (uint32_t i = 0; i < TOKENS * TOPK; i++)
        wide[i] = good[i];
    for (uint32_t i = 0; i < TOKENS; i++)
        for (uint32_t h = 0; h < HIDDEN; h++)
            rows[i][h] = (uint16_t)(i * 100 + h);
    in.topk_idx = wide;
    in.topk_idx_bytes = 8;
    in.x_stride = sizeof(rows[0]);
    in.topk_weight = weight;
    assert_status(tokens_init(&t, &moe, EPA_MEMORY_HOST, test_error()), EPA_OK, "");
    assert_status(tokens_read(&t, &in, &read, &moe, test_error()), EPA_OK, "");
    assert_int_equal(moe.tokens, TOKENS);
    assert_memory_equal(moe.expert, good, sizeof(good));
    assert_ptr_equal(moe.weight, weight);
    assert_int_equal(moe.x_dtype, EPA_F16);
    for (uint32_t i = 0; i < TOKENS; i++)
        assert_memory_equal((const uint16_t *)moe.x + i * HIDDEN, rows[i], HIDDEN * 2);

    for (uint32_t i = 0; i < TOKENS; i++)
        for (uint32_t g = 0; g < HIDDEN / GROUP; g++)
            scale[i][g] = (float)(i * 10 + g);
    in.x_stride = 0;
    in.x_scale = scale[0];
    in.x_scale_stride = sizeof(scale[0]);
    assert_status(tokens_read(&t, &in, &read, &moe, test_error()), EPA_OK, "");
    assert_int_equal(moe.x_dtype, EPA_FP8_E4M3);
    assert_null(moe.x);
    assert_ptr_equal(moe.x_fp8, rows);
    for (uint32_t i = 0; i < TOKENS; i++)
        assert_memory_equal(moe.x_scale + i * (HIDDEN / GROUP), scale[i], sizeof(float) * 2);
    tokens_finish(&t);
}

TEST(wrong_tokens_name_the_field)
{
    struct epa_moe moe = moe_of_test();
    struct epa2a_tokens read;
    struct tokens t;

    assert_status(tokens_init(&t, &moe, EPA_MEMORY_HOST, test_error()), EPA_OK, "");
    for (uint32_t i = 0; i < 5; i++) {
        struct epa2a_tokens in = tokens_of_test(good);
        static const char *const text[] = {"4 tokens .. max_tokens of the shape (3)",
                                           "topk_idx_bytes is 2", "x is NULL", "topk_idx is NULL",
                                           "x_stride is 8 bytes .. 64"};

        in.tokens = i == 0 ? TOKENS + 1 : TOKENS;
        in.topk_idx_bytes = i == 1 ? 2 : 4;
        in.x = i == 2 ? NULL : rows;
        in.topk_idx = i == 3 ? NULL : good;
        in.x_stride = i == 4 ? 8 : 0;
        assert_status(tokens_read(&t, &in, &read, &moe, test_error()), EPA_ERR_CONFIG, text[i]);
    }
    /* A rank without tokens needs no arrays. */
    assert_status(tokens_read(&t, &(struct epa2a_tokens){.size = sizeof(read), .topk_idx_bytes = 8},
                              &read, &moe, test_error()),
                  EPA_OK, "");
    assert_int_equal(moe.tokens, 0);
    tokens_finish(&t);
}
