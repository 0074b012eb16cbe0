/* The kernels other than the quantiser (kernels_exact.c), each set held to a loop over the
 * definitions in dtype.h, and how a set is chosen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/dtype.h"
#include "kernels/kernels.h"

static const char *const isas[] = {"scalar", "avx2", "avx512"};

enum {
    ISAS = sizeof(isas) / sizeof(isas[0]),
    MOST = 64,          /* rows */
    HIDDEN = 7168,      /* at most */
    GUARD = 0x5a5a,     /* behind the last channel */
    ROW = HIDDEN + 128, /* with room to start anywhere and to look behind the end */
};

struct rows {
    uint16_t x[MOST][ROW];
    float weight[MOST], scale[MOST][HIDDEN];
    uint16_t want[ROW], got[ROW];
};

static const uint32_t widths[] = {16,  32,  48,  64,  80,   96,   112,
                                  128, 144, 208, 256, 1008, 2048, 7168};

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Numbers of all signs near 1, at times tiny, denormal or large; no NaN. */
static uint16_t random_bf16(uint64_t *seed)
{
    uint64_t r = next_random(seed);
    uint16_t exponent = (uint16_t)(120 + (r >> 32) % 10);

    if (r >> 58 == 0)
        exponent = (uint16_t)((r >> 40) % 255);
    return (uint16_t)((r & 0x807fu) | (uint32_t)exponent << 7);
}

static int make_rows(void **state)
{
    struct rows *rows = test_calloc(1, sizeof(*rows));
    uint64_t seed = 4;

    for (uint32_t i = 0; i < MOST; i++) {
        for (uint32_t h = 0; h < ROW; h++)
            rows->x[i][h] = random_bf16(&seed);
        for (uint32_t g = 0; g < HIDDEN; g++)
            rows->scale[i][g] = float_of_bf16(random_bf16(&seed)) * 1.01f;
        rows->weight[i] = (float)(next_random(&seed) >> 40) * 0x1p-24f - 0.25f;
    }
    *state = rows;
    return 0;
}

static int free_rows(void **state)
{
    test_free(*state);
    return 0;
}

/* To the bit, but for which NaN it is where several met. */
static void hold_channels(const char *what, const struct rows *rows, uint32_t hidden)
{
    for (uint32_t h = 0; h < hidden; h++) {
        uint16_t got = rows->got[h], want = rows->want[h];

        if (got != want && !(isnan(float_of_bf16(got)) && isnan(float_of_bf16(want))))
            fail_msg("%s, hidden %u: [%u] is 0x%04x, not 0x%04x", what, hidden, h, got,
                     want);
    }
    for (uint32_t h = hidden; h < hidden + 64; h++)
        assert_int_equal(rows->got[h], GUARD);
}

static void forget(struct rows *rows)
{
    for (uint32_t h = 0; h < ROW; h++)
        rows->got[h] = GUARD;
}

static void hold_reduce(struct rows *rows, uint32_t n, uint32_t hidden, uint32_t shift)
{
    const uint16_t *row[MOST];

    for (uint32_t i = 0; i < n; i++)
        row[i] = rows->x[i] + shift;
    for (uint32_t h = 0; h < hidden; h++) {
        float acc = 0.0f;

        for (uint32_t i = 0; i < n; i++)
            acc = fmaf(rows->weight[i], float_of_bf16(row[i][h]), acc);
        rows->want[h] = bf16_of_float(acc);
    }
    for (uint32_t k = 0; k < ISAS; k++) {
        const struct kernels *set = kernels_by_name(isas[k]);

        if (set == NULL)
            continue;
        forget(rows);
        set->reduce(row, rows->weight, n, hidden, KERNELS_STORE_CACHED, rows->got);
        hold_channels(isas[k], rows, hidden);
        forget(rows);
        set->reduce(row, rows->weight, n, hidden, KERNELS_STORE_STREAM, rows->got);
        kernels_drain();
        hold_channels(isas[k], rows, hidden);
    }
}

static void reduce_adds_any_number_of_rows_in_order(void **state)
{
    for (uint32_t n = 0; n <= MOST; n++)
        hold_reduce(*state, n, n % 4 == 0 ? 2048 : 144, 0);
}

static void reduce_takes_any_width_and_place(void **state)
{
    static const uint32_t ns[] = {0, 1, 2, 3, 8, 9};

    for (size_t w = 0; w < sizeof(widths) / sizeof(widths[0]); w++) {
        for (size_t n = 0; n < sizeof(ns) / sizeof(ns[0]); n++)
            hold_reduce(*state, ns[n], widths[w], (uint32_t)(w + n) % 8);
    }
}

static void reduce_keeps_nan_infinity_denormals_and_signs_of_zero(void **state)
{
    static const uint16_t odd[] = {0x7fc0, 0xffc1, 0x7f80, 0xff80, 0x7f81, 1,
                                   0x8001, 0x7f,   0x80,   0x8000, 0,      0x7f7f};
    struct rows *rows = *state;

    for (uint32_t h = 0; h < 144; h++) {
        rows->x[0][h] = odd[h % 12];
        rows->x[1][h] = odd[h / 12];
    }
    hold_reduce(rows, 1, 144, 0);
    hold_reduce(rows, 2, 144, 0);
    rows->weight[0] = 1.0f;
    hold_reduce(rows, 1, 144, 0);
    rows->weight[0] = 0.0f; /* times infinity: NaN */
    hold_reduce(rows, 2, 144, 0);
    rows->weight[0] = -1.0f;
    hold_reduce(rows, 2, 144, 0);
}

static void reduce_of_no_rows_is_zero(void **state)
{
    struct rows *rows = *state;

    for (uint32_t k = 0; k < ISAS; k++) {
        const struct kernels *set = kernels_by_name(isas[k]);

        if (set == NULL)
            continue;
        forget(rows);
        set->reduce(NULL, NULL, 0, 48, KERNELS_STORE_CACHED, rows->got);
        for (uint32_t h = 0; h < 48; h++)
            assert_int_equal(rows->got[h], 0);
    }
}

/* Each sum needs its exact product: with a rounded one it comes out as 0. */
static void reduce_fuses_multiplication_and_addition(void **state)
{
    struct rows *rows = *state;
    const uint16_t *row[2] = {rows->x[0], rows->x[1]};
    float third = 1.0f / 3.0f, product = third * 1.0078125f;
    float left = (float)((double)third * 1.0078125 - (double)product);

    assert_true(left != 0.0f);
    for (uint32_t h = 0; h < 32; h++) {
        rows->x[0][h] = 0xbf80; /* -1 */
        rows->x[1][h] = 0x3f81; /* 1.0078125 */
    }
    rows->weight[0] = product;
    rows->weight[1] = third;
    for (uint32_t k = 0; k < ISAS; k++) {
        const struct kernels *set = kernels_by_name(isas[k]);

        if (set == NULL)
            continue;
        set->reduce(row, rows->weight, 2, 32, KERNELS_STORE_CACHED, rows->got);
        for (uint32_t h = 0; h < 32; h++)
            assert_int_equal(rows->got[h], bf16_of_float(left));
    }
}

/* As reduce, of rows and scales that quantise() could not all have made: any code, any scale. */
static void hold_reduce_fp8(struct rows *rows, uint32_t n, uint32_t hidden, uint32_t group)
{
    const uint8_t *row[MOST];
    const float *scale[MOST];

    for (uint32_t i = 0; i < n; i++) {
        row[i] = (const uint8_t *)rows->x[i] + i % 3;
        scale[i] = rows->scale[i];
    }
    for (uint32_t h = 0; h < hidden; h++) {
        float acc = 0.0f;

        for (uint32_t i = 0; i < n; i++) {
            float value = float_of_e4m3(row[i][h]) * scale[i][h / group];

            acc = fmaf(rows->weight[i], value, acc);
        }
        rows->want[h] = bf16_of_float(acc);
    }
    for (uint32_t k = 0; k < ISAS; k++) {
        const struct kernels *set = kernels_by_name(isas[k]);

        for (int how = KERNELS_STORE_CACHED; set != NULL && how <= KERNELS_STORE_STREAM;
             how++) {
            forget(rows);
            set->reduce_fp8(row, scale, rows->weight, n, hidden, group,
                            (enum kernels_store)how, rows->got);
            kernels_drain();
            hold_channels(isas[k], rows, hidden);
        }
    }
}

static void reduce_fp8_adds_any_number_of_rows_in_order(void **state)
{
    for (uint32_t n = 0; n <= MOST; n++)
        hold_reduce_fp8(*state, n, n % 4 == 0 ? 2048 : 256, 128);
}

static void reduce_fp8_takes_any_width_and_group(void **state)
{
    static const uint32_t groups[] = {1,  3,  16,  17,  32,  40,  48, 64,
                                      80, 96, 100, 112, 128, 160, 256};
    static const uint32_t ns[] = {0, 1, 2, 8};

    for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++) {
        for (size_t n = 0; n < sizeof(ns) / sizeof(ns[0]); n++) {
            hold_reduce_fp8(*state, ns[n], groups[g] * 16, groups[g]);
            hold_reduce_fp8(*state, ns[n], groups[g], groups[g]);
        }
    }
}

static void reduce_fp8_decodes_every_code_under_odd_scales(void **state)
{
    static const float odd[] = {0x1p-149f, 0x1p-126f, 1.0f, 0x1.fffffep127f,
                                0.0f,      INFINITY,  NAN,  -1.5f};
    struct rows *rows = *state;
    uint8_t *codes = (uint8_t *)rows->x[0];

    for (uint32_t h = 0; h < 2048; h++) {
        codes[h] = (uint8_t)h;
        rows->scale[0][h / 256] = odd[h / 256];
    }
    hold_reduce_fp8(rows, 1, 2048, 256);
    rows->weight[0] = 1.0f;
    hold_reduce_fp8(rows, 1, 2048, 256);
    rows->weight[0] = 0.0f; /* times infinity: NaN */
    hold_reduce_fp8(rows, 2, 2048, 256);
}

/* 3 * scale has no float32; what its rounding cut off must not come back in the sum. */
static void reduce_fp8_rounds_each_value_before_it_is_added(void **state)
{
    struct rows *rows = *state;
    uint8_t three[64], one[64];
    float scale = 0x1.555556p0f, whole = 3 * scale; /* 4 and a bit */
    const uint8_t *row[2] = {one, three};
    const float *scales[2] = {&whole, &scale};
    const float weight[2] = {-1.0f, 1.0f};

    assert_true((double)whole != 3.0 * (double)scale);
    memset(one, 0x38, sizeof(one));
    memset(three, 0x44, sizeof(three));
    for (uint32_t k = 0; k < ISAS; k++) {
        const struct kernels *set = kernels_by_name(isas[k]);

        if (set == NULL)
            continue;
        set->reduce_fp8(row, scales, weight, 2, 64, 64, KERNELS_STORE_CACHED, rows->got);
        for (uint32_t h = 0; h < 64; h++)
            assert_int_equal(rows->got[h], 0);
    }
}

static void hold_answer_fp8(struct rows *rows, uint32_t hidden, uint32_t group,
                            float factor)
{
    uint8_t q[HIDDEN + 1];
    float scale[HIDDEN];

    for (uint32_t h = 0; h < hidden; h++) {
        q[1 + h] = (uint8_t)(h * 5 + h / 256);
        scale[h / group] = float_of_bf16(rows->x[9][h / group] & 0x7fffu) * 1.01f;
    }
    for (uint32_t h = 0; h < hidden; h++) {
        float value = float_of_e4m3(q[1 + h]) * scale[h / group];

        rows->want[h] = bf16_of_float(value * factor);
    }
    for (uint32_t k = 0; k < ISAS; k++) {
        const struct kernels *set = kernels_by_name(isas[k]);

        if (set == NULL)
            continue;
        forget(rows);
        set->answer_fp8(q + 1, scale, hidden, group, factor, rows->got);
        hold_channels(isas[k], rows, hidden);
    }
}

static void answer_from_fp8_rounds_twice_and_then_to_bf16(void **state)
{
    static const uint32_t groups[] = {1, 3, 16, 40, 64, 100, 128, 256, 448};

    for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++) {
        for (uint32_t n = 1; n <= 16; n += 5) {
            hold_answer_fp8(*state, groups[g] * n, groups[g], expert_factor(n));
            hold_answer_fp8(*state, groups[g] * n, groups[g], -0.3f);
        }
    }
}

/* Scale times factor would be infinite; the product that comes first is not. */
static void answer_from_fp8_multiplies_by_the_scale_first(void **state)
{
    struct rows *rows = *state;
    uint8_t q[112];
    float scale = 0x1p127f;

    memset(q, 1, sizeof(q)); /* 2^-9 */
    for (uint32_t h = 0; h < 112; h++)
        rows->want[h] = bf16_of_float(0x1p126f);
    for (uint32_t k = 0; k < ISAS; k++) {
        const struct kernels *set = kernels_by_name(isas[k]);

        if (set == NULL)
            continue;
        forget(rows);
        set->answer_fp8(q, &scale, 112, 112, 256.0f, rows->got);
        hold_channels(isas[k], rows, 112);
    }
}

static void answer_from_bf16_rounds_once(void **state)
{
    struct rows *rows = *state;

    for (size_t w = 0; w < sizeof(widths) / sizeof(widths[0]); w++) {
        const uint16_t *x = rows->x[w] + w % 3;
        float factor = expert_factor((uint32_t)w) * 1.37f;

        rows->x[w][5] = 0xffc0; /* NaN */
        for (uint32_t h = 0; h < widths[w]; h++)
            rows->want[h] = bf16_of_float(float_of_bf16(x[h]) * factor);
        for (uint32_t k = 0; k < ISAS; k++) {
            const struct kernels *set = kernels_by_name(isas[k]);

            if (set == NULL)
                continue;
            forget(rows);
            set->answer_bf16(x, widths[w], factor, rows->got);
            hold_channels(isas[k], rows, widths[w]);
        }
    }
}

static void hold_spread(const struct kernels *set, uint32_t n, size_t bytes,
                        enum kernels_store store)
{
    enum { SLOT = 7424 + 64 };
    char *from = aligned_alloc(64, SLOT), *space = aligned_alloc(64, SLOT * 9);
    void *to[9];

    assert_non_null(from);
    assert_non_null(space);
    memset(space, 0x33, SLOT * 9);
    for (size_t i = 0; i < SLOT; i++)
        from[i] = (char)(i * 7 + i / 256);
    for (uint32_t i = 0; i < n; i++)
        to[i] = space + SLOT * (size_t)((i * 4) % 9); /* not in order */
    set->spread(to, n, from, bytes, store);
    kernels_drain();
    for (uint32_t i = 0; i < n; i++) {
        const char *got = to[i];

        assert_memory_equal(got, from, bytes);
        for (size_t b = bytes; b < SLOT; b++)
            assert_int_equal(got[b], 0x33);
    }
    for (uint32_t i = n; i < 9; i++)
        assert_int_equal(space[SLOT * (size_t)((i * 4) % 9)], 0x33);
    free(space);
    free(from);
}

static void spread_copies_to_each_and_no_further(void **state)
{
    static const size_t sizes[] = {0, 64, 128, 192, 256, 320, 1024, 7360, 7424};

    (void)state;
    for (uint32_t k = 0; k < ISAS; k++) {
        const struct kernels *set = kernels_by_name(isas[k]);

        for (size_t s = 0; set != NULL && s < sizeof(sizes) / sizeof(sizes[0]); s++) {
            for (uint32_t n = 0; n <= 9; n++) {
                hold_spread(set, n, sizes[s], KERNELS_STORE_CACHED);
                hold_spread(set, n, sizes[s], KERNELS_STORE_STREAM);
            }
        }
    }
}

static void environment_chooses_a_set_and_a_wrong_one_is_named(void **state)
{
    const char *refused = "before";
    const struct kernels *best;

    (void)state;
    unsetenv("EPA2A_ISA");
    best = kernels_get(&refused);
    assert_null(refused);
    setenv("EPA2A_ISA", "scalar", 1);
    assert_string_equal(kernels_get(&refused)->isa, "scalar");
    assert_null(refused);
    setenv("EPA2A_ISA", "sse9", 1);
    assert_ptr_equal(kernels_get(&refused), best);
    assert_string_equal(refused, "sse9");
    assert_ptr_equal(kernels_get(NULL), best);
    setenv("EPA2A_ISA", "", 1);
    assert_ptr_equal(kernels_get(&refused), best);
    assert_null(refused);
    unsetenv("EPA2A_ISA");
}

static void every_set_carries_its_name_and_all_kernels(void **state)
{
    (void)state;
    assert_non_null(kernels_by_name("scalar"));
    assert_null(kernels_by_name("avx"));
    for (uint32_t k = 0; k < ISAS; k++) {
        const struct kernels *set = kernels_by_name(isas[k]);

        if (set == NULL)
            continue;
        assert_string_equal(set->isa, isas[k]);
        assert_true(set->quantise != NULL && set->spread != NULL && set->reduce != NULL);
        assert_non_null(set->reduce_fp8);
        assert_true(set->answer_fp8 != NULL && set->answer_bf16 != NULL);
    }
}

#define WITH_ROWS(test) cmocka_unit_test_setup_teardown(test, make_rows, free_rows)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_ROWS(reduce_adds_any_number_of_rows_in_order),
        WITH_ROWS(reduce_takes_any_width_and_place),
        WITH_ROWS(reduce_keeps_nan_infinity_denormals_and_signs_of_zero),
        WITH_ROWS(reduce_of_no_rows_is_zero),
        WITH_ROWS(reduce_fuses_multiplication_and_addition),
        WITH_ROWS(reduce_fp8_adds_any_number_of_rows_in_order),
        WITH_ROWS(reduce_fp8_takes_any_width_and_group),
        WITH_ROWS(reduce_fp8_decodes_every_code_under_odd_scales),
        WITH_ROWS(reduce_fp8_rounds_each_value_before_it_is_added),
        WITH_ROWS(answer_from_fp8_rounds_twice_and_then_to_bf16),
        WITH_ROWS(answer_from_fp8_multiplies_by_the_scale_first),
        WITH_ROWS(answer_from_bf16_rounds_once),
        cmocka_unit_test(spread_copies_to_each_and_no_further),
        cmocka_unit_test(environment_chooses_a_set_and_a_wrong_one_is_named),
        cmocka_unit_test(every_set_carries_its_name_and_all_kernels),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
