/* Real experts: weights that are a function of where they are, with the values and the scales
 * that the exact check needs, and how narrow the intervals of the reference are. That right outputs
 * are inside verify and tests/oracle show, that wrong ones are outside the mutants of fused. */
#include "test.h"

#include <math.h>

#include "base/dtype.h"
#include "base/random.h"
#include "op/moe/moe.h"

enum { HIDDEN = 256, FFN = 256, GROUPS = HIDDEN / 128, EXPERT = 5 };

struct shape {
    int dtype, kind, activation, values;
    uint32_t group, bits;
};

struct expert {
    struct weights w;
    bool f16, fp8;
    uint16_t token[HIDDEN];
    float x[HIDDEN], scale[GROUPS], low[HIDDEN], high[HIDDEN];
};

static struct expert *expert_create(const struct shape *s, uint64_t token)
{
    struct experiment x = {
        .seed = 9,
        .moe = {.hidden = HIDDEN, .fp8_group_size = 128, .dtype = s->dtype},
        .expert = {.kind = EXPERT_MLP,
                   .ffn = FFN,
                   .activation = s->activation,
                   .weights = s->kind,
                   .fp8_group_size = s->group,
                   .values = s->values},
    };
    struct expert *e = calloc(1, sizeof(*e));

    weights_init(&x, &e->w);
    e->f16 = s->dtype == EPA_F16;
    e->fp8 = s->kind == EXPERT_WEIGHTS_FP8;
    if (s->values == EXPERT_VALUES_INTEGERS)
        weights_token(&e->w, token, e->f16, e->token);
    else
        random_words(token, HIDDEN, e->f16, e->token);
    return e;
}

static void reference(struct expert *e, const struct shape *s)
{
    struct reference *r = reference_create(&(struct reference_params){
        .weights = &e->w, .f16 = e->f16, .rounded = true, .fp8_sum_bits = s->bits, .rows = 1});
    uint8_t q[HIDDEN];

    for (uint32_t i = 0; i < HIDDEN; i++)
        e->x[i] = float_of_word(e->f16, e->token[i]);
    for (uint32_t g = 0; e->fp8 && g < GROUPS; g++) {
        e->scale[g] = e4m3_group_of(e->f16, e->token + g * 128, 128, q + g * 128);
        for (uint32_t i = g * 128; i < g * 128 + 128; i++)
            e->x[i] = float_of_e4m3(q[i]);
    }
    reference_expert(
        r, EXPERT, 1,
        &(struct reference_row){
            .x = e->x, .scale = e->fp8 ? e->scale : NULL, .low = e->low, .high = e->high});
    reference_destroy(r);
}

/* How wide: a right output is distinguished from one that is off by a part of its size; integers
 * without activation are known to the bit. */
TEST(intervals_are_narrow)
{
    static const struct {
        struct shape shape;
        double most; /* mean width by mean size */
    } cases[] = {
        {{EPA_BF16, EXPERT_WEIGHTS_NATIVE, EPA_ACTIVATION_SWIGLU, EXPERT_VALUES_RANDOM, 128, 0},
         0.05},
        {{EPA_F16, EXPERT_WEIGHTS_NATIVE, EPA_ACTIVATION_SWIGLU, EXPERT_VALUES_RANDOM, 128, 0},
         0.02},
        {{EPA_BF16, EXPERT_WEIGHTS_FP8, EPA_ACTIVATION_SWIGLU, EXPERT_VALUES_RANDOM, 128, 0}, 0.1},
        {{EPA_BF16, EXPERT_WEIGHTS_FP8, EPA_ACTIVATION_SWIGLU, EXPERT_VALUES_RANDOM, 128, 13}, 1.5},
        {{EPA_BF16, EXPERT_WEIGHTS_NATIVE, EPA_ACTIVATION_SWIGLU, EXPERT_VALUES_INTEGERS, 128, 0},
         0.02},
        {{EPA_BF16, EXPERT_WEIGHTS_NATIVE, EPA_ACTIVATION_NONE, EXPERT_VALUES_INTEGERS, 128, 0}, 0},
        {{EPA_F16, EXPERT_WEIGHTS_FP8, EPA_ACTIVATION_NONE, EXPERT_VALUES_INTEGERS, 64, 13}, 0},
    };

    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct expert *e = expert_create(&cases[i].shape, 3);
        double width = 0, size = 0;

        reference(e, &cases[i].shape);
        for (uint32_t h = 0; h < HIDDEN; h++) {
            width += (double)(e->high[h] - e->low[h]);
            size += fabs((double)e->high[h]);
        }
        assert_true(size > 0 && width / size <= cases[i].most);
        free(e);
    }
}

/* The codes of any values within ends are within the codes of the ends. */
TEST(quantised_intervals_hold_what_is_quantised)
{
    struct random r = {.key = 17};

    for (uint32_t turn = 0; turn < 200; turn++) {
        float low[16], high[16], v[16], q_low[16], q_high[16], amax = 0, scale;
        struct reference_scale s;

        for (uint32_t i = 0; i < 16; i++) {
            float a = (float)(random_unit(&r) - 0.5), width = (float)(random_unit(&r) * 0.05);
            float at = (float)random_unit(&r);

            low[i] = a;
            high[i] = turn % 2 == 0 ? a : a + width;
            v[i] = at < 0.3f ? low[i] : at > 0.7f ? high[i] : low[i] / 2 + high[i] / 2;
            amax = fabsf(v[i]) > amax ? fabsf(v[i]) : amax;
        }
        scale = amax * (1.0f / 448.0f);
        s = reference_quantise(low, high, 16, q_low, q_high);
        assert_true(scale >= s.low && scale <= s.high);
        assert_true(turn % 2 != 0 || s.low == s.high);
        for (uint32_t i = 0; i < 16; i++) {
            float q = float_of_e4m3(e4m3_of_float(v[i] / scale));

            assert_true(q >= q_low[i] && q <= q_high[i]);
        }
    }
}

/* ---- weights ---- */

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
