/* Weights of real experts: a function of where they are, with the values and the scales that
 * the exact check needs. */
#include "test.h"

#include <math.h>

#include "base/dtype.h"
#include "op/moe/weights.h"

static struct weights weights_of(int kind, int activation, int values)
{
    struct experiment x = {
        .seed = 5,
        .moe = {.hidden = 256, .fp8_group_size = 128, .dtype = EPA_BF16},
        .expert = {.kind = EXPERT_MLP,
                   .ffn = 384,
                   .activation = activation,
                   .weights = kind,
                   .fp8_group_size = 64,
                   .values = values},
    };
    struct weights w;

    weights_init(&x, &w);
    return w;
}

static float element(const struct weights *w, const void *row, uint32_t i)
{
    if (w->mlp.dtype == EPA_FP8_E4M3)
        return float_of_e4m3(((const uint8_t *)row)[i]);
    return float_of_word(w->mlp.dtype == EPA_F16, ((const uint16_t *)row)[i]);
}

/* Sum, sum of squares and count of zeros of all rows of a matrix, scales in. */
struct sums {
    double sum, squares;
    uint32_t n, zeros, most_in_row;
};

static struct sums sums_of(const struct weights *w, uint32_t expert, enum weights_matrix m)
{
    uint32_t rows = weights_rows(w, m), columns = weights_columns(w, m);
    float scale[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    struct sums s = {0};
    uint16_t row[512];

    for (uint32_t r = 0; r < rows; r++) {
        uint32_t in_row = 0;

        if (w->mlp.dtype == EPA_FP8_E4M3 && r % 128 == 0)
            weights_scales(w, expert, m, r / 128, scale);
        weights_row(w, expert, m, r, row);
        for (uint32_t c = 0; c < columns; c++) {
            double v = (double)element(w, row, c) * (double)scale[c / 128];

            assert_true(isfinite(v));
            s.sum += v;
            s.squares += v * v;
            in_row += v != 0;
        }
        s.zeros += columns - in_row;
        s.most_in_row = in_row > s.most_in_row ? in_row : s.most_in_row;
        s.n += columns;
    }
    return s;
}

TEST(random_weights_keep_the_size_of_tokens_and_have_no_mean)
{
    for (int kind = EXPERT_WEIGHTS_NATIVE; kind <= EXPERT_WEIGHTS_FP8; kind++)
        for (int m = WEIGHTS_UP; m <= WEIGHTS_DOWN; m++) {
            struct weights w = weights_of(kind, EPA_ACTIVATION_SWIGLU, EXPERT_VALUES_RANDOM);
            struct sums s = sums_of(&w, 3, (enum weights_matrix)m);
            double root = sqrt(s.squares / s.n) * sqrt(weights_columns(&w, (enum weights_matrix)m));

            assert_true(root > 0.4 && root < 2.5);
            assert_true(fabs(s.sum) < 6 * sqrt(s.squares));
            assert_int_equal(s.zeros, 0);
        }
}

TEST(neighbours_have_other_weights_and_the_same_place_has_the_same)
{
    struct weights w = weights_of(EXPERT_WEIGHTS_FP8, EPA_ACTIVATION_SWIGLU, EXPERT_VALUES_RANDOM);
    uint8_t a[384] = {0}, b[384] = {0};
    float s[2], t[2];

    weights_row(&w, 3, WEIGHTS_UP, 7, a);
    weights_row(&w, 3, WEIGHTS_UP, 7, b);
    assert_memory_equal(a, b, sizeof(a));
    weights_row(&w, 3, WEIGHTS_UP, 8, b);
    assert_memory_not_equal(a, b, sizeof(a));
    weights_row(&w, 4, WEIGHTS_UP, 7, b);
    assert_memory_not_equal(a, b, sizeof(a));
    weights_row(&w, 3, WEIGHTS_DOWN, 7, b);
    assert_memory_not_equal(a, b, sizeof(a));
    weights_scales(&w, 3, WEIGHTS_UP, 0, s);
    weights_scales(&w, 3, WEIGHTS_UP, 1, t);
    assert_true(s[0] != s[1] && s[0] != t[0]);
    w.seed++;
    weights_row(&w, 3, WEIGHTS_UP, 7, b);
    assert_memory_not_equal(a, b, sizeof(a));
}

/* All that a golden value can say: other compilers and machines make the same. */
TEST(weights_are_the_same_bits_everywhere)
{
    uint16_t row[512];
    uint64_t sum = 0;

    for (int kind = EXPERT_WEIGHTS_NATIVE; kind <= EXPERT_WEIGHTS_FP8; kind += 3)
        for (int values = EXPERT_VALUES_RANDOM; values <= EXPERT_VALUES_INTEGERS; values++) {
            struct weights w = weights_of(kind, EPA_ACTIVATION_NONE, values);
            uint8_t bytes[sizeof(row)];

            for (uint32_t r = 0; r < 384; r++) {
                weights_row(&w, 2, WEIGHTS_UP, r, row);
                memcpy(bytes, row, sizeof(bytes));
                for (size_t i = 0; i < 256 * weights_element(&w); i++)
                    sum = sum * 31 + bytes[i];
            }
        }
    assert_int_equal(sum, UINT64_C(0x36dd1bb9784a9574));
}

TEST(a_row_of_integers_has_sixteen_entries_or_fewer)
{
    for (int kind = EXPERT_WEIGHTS_NATIVE; kind <= EXPERT_WEIGHTS_FP8; kind++)
        for (int m = WEIGHTS_UP; m <= WEIGHTS_DOWN; m++) {
            struct weights w = weights_of(kind, EPA_ACTIVATION_NONE, EXPERT_VALUES_INTEGERS);
            struct sums s = sums_of(&w, 1, (enum weights_matrix)m);
            uint32_t rows = weights_rows(&w, (enum weights_matrix)m);

            assert_int_equal(s.most_in_row, WEIGHTS_ENTRIES);
            assert_true(s.n - s.zeros > rows * 14);
        }
}

/* Scales are powers of two: of tokens, and of the intermediate, whichever tokens and expert. */
TEST(integers_have_scales_that_are_powers_of_two)
{
    struct weights w = weights_of(EXPERT_WEIGHTS_FP8, EPA_ACTIVATION_NONE, EXPERT_VALUES_INTEGERS);
    bool scales[2] = {false, false};

    for (uint64_t token = 0; token < 20; token++) {
        uint32_t expert = (uint32_t)token % 3;
        uint16_t x[256];
        uint8_t q[256], row[256];
        float scale[3], s[2], amax = 0;

        weights_token(&w, token, false, x);
        for (uint32_t g = 0; g < 2; g++) {
            s[g] = e4m3_group(x + g * 128, 128, q + g * 128);
            assert_true(s[g] == 0x1p-9f || s[g] == 0x1p-8f);
            scales[s[g] == 0x1p-8f] = true;
            for (uint32_t i = g * 128; i < g * 128 + 128; i++) /* nothing is rounded */
                assert_true(float_of_e4m3(q[i]) * s[g] == float_of_bf16(x[i]));
        }
        for (uint32_t i = 0; i < 384; i++) {
            float sum = 0;

            if (i % 128 == 0)
                weights_scales(&w, expert, WEIGHTS_UP, i / 128, scale);
            weights_row(&w, expert, WEIGHTS_UP, i, row);
            for (uint32_t k = 0; k < 256; k++)
                sum += float_of_bf16(x[k]) * float_of_e4m3(row[k]) * scale[k / 128];
            amax = fabsf(sum) > amax ? fabsf(sum) : amax;
            if (i % 64 != 63)
                continue;
            assert_true(amax == 28 || amax == 56);
            assert_true(amax * (1.0f / 448.0f) == amax / 448);
            amax = 0;
        }
    }
    assert_true(scales[0] && scales[1]);
}

/* A neighbour block's scale is another one, often enough to show. */
TEST(blocks_of_integers_have_several_scales)
{
    struct weights w = weights_of(EXPERT_WEIGHTS_FP8, EPA_ACTIVATION_NONE, EXPERT_VALUES_INTEGERS);
    uint32_t seen = 0;

    for (uint32_t expert = 0; expert < 8; expert++) {
        float s[3];

        weights_scales(&w, expert, WEIGHTS_DOWN, 0, s);
        for (uint32_t i = 0; i < 3; i++)
            seen |= 1u << ilogbf(s[i] * 8);
    }
    assert_int_equal(seen, 7);
}
