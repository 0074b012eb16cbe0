/* The reference of real experts: what a careful float32 computation gives is inside its
 * intervals, which is worked out here again without them, and what is computed wrongly is far
 * outside. */
#include "test.h"

#include <math.h>

#include "base/dtype.h"
#include "base/random.h"
#include "op/moe/check.h"

enum { HIDDEN = 256, FFN = 256, GROUPS = HIDDEN / 128, EXPERT = 5 };

struct shape {
    int dtype, kind, activation, values;
    uint32_t group, bits;
};

/* What is done wrongly. */
enum fault {
    NONE,
    OTHER_EXPERT,
    OTHER_TOKEN,
    SCALE_OF_NEIGHBOUR,   /* of a block of weights */
    SCALE_OF_OTHER_GROUP, /* of the token */
    LOST_BLOCK,           /* 128 of K of the down projection */
    GATE_FOR_UP,
    NOT_QUANTISED, /* the intermediate */
};

struct expert {
    struct weights w;
    bool f16, fp8;
    uint16_t token[2][HIDDEN];
    float x[HIDDEN], scale[GROUPS], y[HIDDEN], low[HIDDEN], high[HIDDEN];
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
    for (uint32_t i = 0; i < 2; i++)
        if (s->values == EXPERT_VALUES_INTEGERS)
            weights_token(&e->w, token * 2 + i, e->f16, e->token[i]);
        else
            random_words(token * 2 + i, HIDDEN, e->f16, e->token[i]);
    return e;
}

static void load_token(struct expert *e, uint32_t which)
{
    uint8_t q[HIDDEN];

    for (uint32_t i = 0; i < HIDDEN; i++)
        e->x[i] = float_of_word(e->f16, e->token[which][i]);
    for (uint32_t g = 0; e->fp8 && g < GROUPS; g++) {
        e->scale[g] = e4m3_group_of(e->f16, e->token[which] + g * 128, 128, q + g * 128);
        for (uint32_t i = g * 128; i < g * 128 + 128; i++)
            e->x[i] = float_of_e4m3(q[i]);
    }
}

static void reference(struct expert *e, const struct shape *s)
{
    struct reference *r = reference_create(&(struct reference_params){
        .weights = &e->w, .f16 = e->f16, .rounded = true, .fp8_sum_bits = s->bits, .rows = 1});

    load_token(e, 0);
    reference_expert(
        r, EXPERT, 1,
        &(struct reference_row){
            .x = e->x, .scale = e->fp8 ? e->scale : NULL, .low = e->low, .high = e->high});
    reference_destroy(r);
}

/* A float32 dot as struct epa_mlp lays it down, k backwards or forwards. */
static float dot(const struct expert *e, uint32_t expert, enum weights_matrix m, uint32_t row,
                 const float *x, const float *x_scale, uint32_t group, bool backwards,
                 enum fault fault)
{
    uint32_t n = weights_columns(&e->w, m), blocks = n / 128;
    float scale[8] = {1}, c = 0;
    uint16_t words[512];

    weights_row(&e->w, expert, m, row, words);
    if (e->fp8)
        weights_scales(&e->w, expert, m, row / 128, scale);
    for (uint32_t i = 0; i < n / group; i++) {
        uint32_t g = backwards ? n / group - 1 - i : i, b = g * group / 128;
        float p = 0;

        if (fault == LOST_BLOCK && m == WEIGHTS_DOWN && b == 0)
            continue;
        for (uint32_t k = 0; k < group; k++) {
            uint32_t at = g * group + (backwards ? group - 1 - k : k);
            float w = e->fp8 ? float_of_e4m3(((const uint8_t *)words)[at])
                             : float_of_word(e->f16, words[at]);

            p += x[at] * w;
        }
        if (fault == SCALE_OF_NEIGHBOUR)
            b = (b + 1) % blocks;
        if (fault == SCALE_OF_OTHER_GROUP && m == WEIGHTS_UP)
            g = (g + 1) % (n / group);
        c += e->fp8 ? p * (x_scale[g] * scale[b]) : p;
    }
    return c;
}

static void compute(struct expert *e, bool backwards, enum fault fault)
{
    const struct epa_mlp *m = &e->w.mlp;
    uint32_t expert = EXPERT + (fault == OTHER_EXPERT), group = e->fp8 ? m->fp8_group_size : 128;
    float a[FFN], a_scale[FFN / 64];

    load_token(e, fault == OTHER_TOKEN);
    for (uint32_t i = 0; i < FFN; i++) {
        float g = dot(e, expert, WEIGHTS_UP, i, e->x, e->scale, 128, backwards, fault), u;

        a[i] = g;
        if (m->activation == EPA_ACTIVATION_NONE)
            continue;
        u = fault == GATE_FOR_UP
                ? g
                : dot(e, expert, WEIGHTS_UP, FFN + i, e->x, e->scale, 128, backwards, fault);
        a[i] = g / (1 + expf(-g)) * u;
    }
    for (uint32_t i = 0; i < FFN && fault != NOT_QUANTISED; i += group) {
        float amax = 0;

        for (uint32_t k = i; k < i + group; k++)
            amax = fabsf(a[k]) > amax ? fabsf(a[k]) : amax;
        a_scale[i / group] = amax > 0 ? amax * (1.0f / 448.0f) : 1;
        for (uint32_t k = i; k < i + group; k++)
            a[k] = e->fp8 ? float_of_e4m3(e4m3_of_float(a[k] / a_scale[i / group]))
                          : float_of_word(e->f16, word_of_float(e->f16, a[k]));
    }
    for (uint32_t i = 0; fault == NOT_QUANTISED && i < FFN / group; i++)
        a_scale[i] = 1;
    for (uint32_t i = 0; i < HIDDEN; i++)
        e->y[i] =
            float_of_word(e->f16, word_of_float(e->f16, dot(e, expert, WEIGHTS_DOWN, i, a, a_scale,
                                                            group, backwards, fault)));
}

static uint32_t outside(const struct expert *e)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < HIDDEN; i++)
        n += !(e->y[i] >= e->low[i] && e->y[i] <= e->high[i]);
    return n;
}

static void each_shape(void (*fn)(const struct shape *))
{
    for (int i = 0; i < 64; i++) {
        struct shape s = {.dtype = (i & 1) != 0 ? EPA_F16 : EPA_BF16,
                          .kind = (i & 2) != 0 ? EXPERT_WEIGHTS_FP8 : EXPERT_WEIGHTS_NATIVE,
                          .activation = (i & 4) != 0 ? EPA_ACTIVATION_SWIGLU : EPA_ACTIVATION_NONE,
                          .values = (i & 8) != 0 ? EXPERT_VALUES_INTEGERS : EXPERT_VALUES_RANDOM,
                          .group = (i & 16) != 0 ? 64 : 128,
                          .bits = (i & 32) != 0 ? 13 : 0};

        if (s.kind == EXPERT_WEIGHTS_FP8 || (s.group == 128 && s.bits == 0))
            fn(&s);
    }
}

static void right_is_inside(const struct shape *s)
{
    for (uint64_t token = 0; token < 3; token++) {
        struct expert *e = expert_create(s, token);

        reference(e, s);
        for (int backwards = 0; backwards < 2; backwards++) {
            compute(e, backwards != 0, NONE);
            assert_int_equal(outside(e), 0);
        }
        free(e);
    }
}

TEST(what_is_right_is_inside_whatever_the_order)
{
    each_shape(right_is_inside);
}

static void integers_are_points(const struct shape *s)
{
    struct expert *e;

    if (s->values != EXPERT_VALUES_INTEGERS || s->activation != EPA_ACTIVATION_NONE)
        return;
    e = expert_create(s, 1);
    reference(e, s);
    compute(e, false, NONE);
    for (uint32_t i = 0; i < HIDDEN; i++) {
        assert_true(e->low[i] == e->high[i]);
        assert_true(e->y[i] == e->low[i]);
    }
    free(e);
}

TEST(integers_without_activation_are_known_to_the_bit)
{
    each_shape(integers_are_points);
}

static void wrong_is_outside(const struct shape *s)
{
    for (int fault = OTHER_EXPERT; fault <= NOT_QUANTISED; fault++) {
        struct expert *e;

        if (s->kind != EXPERT_WEIGHTS_FP8 &&
            (fault == SCALE_OF_NEIGHBOUR || fault == SCALE_OF_OTHER_GROUP))
            continue;
        if (s->activation == EPA_ACTIVATION_NONE && fault == GATE_FOR_UP)
            continue;
        if (fault == NOT_QUANTISED && s->kind != EXPERT_WEIGHTS_FP8)
            continue; /* a rounding to dtype, which the last one hides */
        /* What a tensor core may lose of dense sums is as much as a scale: that is what integers
         * are for. */
        if (s->bits != 0 && s->values == EXPERT_VALUES_RANDOM && fault != OTHER_EXPERT &&
            fault != OTHER_TOKEN && fault != GATE_FOR_UP)
            continue;
        e = expert_create(s, 2);
        reference(e, s);
        for (uint64_t token = 3; e->fp8 && e->scale[0] == e->scale[1]; token++) {
            free(e); /* integers: both have one scale often enough */
            e = expert_create(s, token);
            reference(e, s);
        }
        compute(e, false, (enum fault)fault);
        if (outside(e) < HIDDEN / 16)
            print_message("dtype %d, kind %d, activation %d, values %d, group %u, bits %u, fault "
                          "%d: %u outside\n",
                          s->dtype, s->kind, s->activation, s->values, s->group, s->bits, fault,
                          outside(e));
        assert_true(outside(e) >= HIDDEN / 16);
        free(e);
    }
}

TEST(what_is_wrong_is_outside)
{
    each_shape(wrong_is_outside);
}

/* How wide: a right output is distinguished from one that is off by a part of its size. */
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
    };

    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct expert *e = expert_create(&cases[i].shape, 3);
        double width = 0, size = 0;

        reference(e, &cases[i].shape);
        for (uint32_t h = 0; h < HIDDEN; h++) {
            width += (double)(e->high[h] - e->low[h]);
            size += fabs((double)e->high[h]);
        }
        print_message("case %zu: width %.4g of the size\n", i, width / size);
        assert_true(width / size < cases[i].most);
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
