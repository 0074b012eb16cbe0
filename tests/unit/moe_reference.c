/* Tests of real experts: weights depend only on their position and have the values and scales that
 * the exact check needs, and the intervals of the reference are narrow. verify and tests/oracle
 * show that correct outputs lie inside the intervals; the mutants of fused show that wrong outputs
 * lie outside. */
#include "test.h"

#include <math.h>

#include "base/dtype.h"
#include "base/random.h"
#include "op/moe/reference.h"
#include "op/moe/weights.h"

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

static struct weights weights_of(const struct shape *s, uint64_t seed, uint32_t ffn)
{
    struct problem_params x = {
        .seed = seed,
        .moe = {.hidden = HIDDEN, .fp8_group_size = 128, .dtype = s->dtype},
        .expert = {.kind = EXPERT_MLP,
                   .ffn = ffn,
                   .activation = s->activation,
                   .weights = s->kind,
                   .fp8_group_size = s->group,
                   .values = s->values},
    };
    struct weights w;

    weights_init(&x, &w);
    return w;
}

static struct expert *expert_create(const struct shape *s, uint64_t token)
{
    struct expert *e = calloc(1, sizeof(*e));

    e->w = weights_of(s, 9, FFN);
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
    if (s->kind == EXPERT_WEIGHTS_INT8)
        e->scale[0] = reference_quantise_int8(e->x, e->x, HIDDEN, e->x, e->x).low;
    for (uint32_t g = 0; e->fp8 && g < GROUPS; g++) {
        e->scale[g] = e4m3_group_of(e->f16, e->token + g * 128, 128, q + g * 128);
        for (uint32_t i = g * 128; i < g * 128 + 128; i++)
            e->x[i] = float_of_e4m3(q[i]);
    }
    reference_expert(
        r, EXPERT, 1,
        &(struct reference_row){.x = e->x,
                                .scale = s->kind >= EXPERT_WEIGHTS_FP8 ? e->scale : NULL,
                                .low = e->low,
                                .high = e->high});
    reference_destroy(r);
}

/* Narrow intervals tell a correct output from one that is off by a fraction of its size. Integers
 * without activation have intervals of width 0. */
TEST(intervals_are_narrow)
{
    static const struct {
        struct shape shape;
        double most; /* limit of mean width / mean size */
    } cases[] = {
        {{EPA_BF16, EXPERT_WEIGHTS_NATIVE, EPA_ACTIVATION_SWIGLU, EXPERT_VALUES_RANDOM, 128, 0},
         0.05},
        {{EPA_F16, EXPERT_WEIGHTS_NATIVE, EPA_ACTIVATION_SWIGLU, EXPERT_VALUES_RANDOM, 128, 0},
         0.02},
        {{EPA_BF16, EXPERT_WEIGHTS_FP8, EPA_ACTIVATION_SWIGLU, EXPERT_VALUES_RANDOM, 128, 0}, 0.1},
        {{EPA_BF16, EXPERT_WEIGHTS_FP8, EPA_ACTIVATION_SWIGLU, EXPERT_VALUES_RANDOM, 128, 13}, 1.5},
        {{EPA_BF16, EXPERT_WEIGHTS_NATIVE, EPA_ACTIVATION_SWIGLU, EXPERT_VALUES_INTEGERS, 128, 0},
         0.02},
        {{EPA_BF16, EXPERT_WEIGHTS_INT8, EPA_ACTIVATION_SWIGLU, EXPERT_VALUES_RANDOM, 128, 0},
         0.001},
        {{EPA_F16, EXPERT_WEIGHTS_INT8, EPA_ACTIVATION_NONE, EXPERT_VALUES_INTEGERS, 128, 0},
         0.001},
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

/* The golden value shows that other compilers and machines make the same weights. */
TEST(weights_are_the_same_bits_everywhere)
{
    uint16_t row[512];
    uint64_t sum = 0;

    for (int kind = EXPERT_WEIGHTS_NATIVE; kind <= EXPERT_WEIGHTS_FP8; kind += 3)
        for (int values = EXPERT_VALUES_RANDOM; values <= EXPERT_VALUES_INTEGERS; values++) {
            const struct shape shape = {EPA_BF16, kind, EPA_ACTIVATION_NONE, values, 64, 0};
            struct weights w = weights_of(&shape, 5, 384);
            uint8_t bytes[sizeof(row)];

            for (uint32_t r = 0; r < 384; r++) {
                weights_row(&w, 2, MLP_UP, r, row);
                memcpy(bytes, row, sizeof(bytes));
                for (size_t i = 0; i < 256 * mlp_element(&w.shape); i++)
                    sum = sum * 31 + bytes[i];
            }
        }
    assert_int_equal(sum, UINT64_C(0x36dd1bb9784a9574));
}
