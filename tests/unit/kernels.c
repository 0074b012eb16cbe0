/* The arithmetic of the kernels other than the quantiser (kernels_exact.c, kernels_f16.c),
 * for both types: each set held to a loop over the definitions in dtype.h. */
#include "test.h"

#include "base/dtype.h"
#include "epa2a/quant.h"

static const char *const isas[] = {"scalar", "avx2", "avx512"};

enum {
    ISAS = LENGTH(isas),
    MOST = 64,          /* rows */
    HIDDEN = 7168,      /* at most */
    GUARD = 0x5a5a,     /* behind the last channel */
    ROW = HIDDEN + 128, /* with room to start anywhere and to look behind the end */
};

/* In bf16 or f16. */
struct rows {
    bool f16;
    enum epa_dtype dtype;
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
static uint16_t random_word(bool f16, uint64_t *seed)
{
    uint64_t r = next_random(seed);
    uint32_t mantissa = f16 ? 10 : 7, exponents = f16 ? 31 : 255, near = f16 ? 8 : 120;
    uint32_t exponent = near + (uint32_t)(r >> 32) % 10;

    if (r >> 58 == 0)
        exponent = (uint32_t)(r >> 40) % exponents;
    return (uint16_t)((r & (0x8000u | ((1u << mantissa) - 1))) | exponent << mantissa);
}

static int make_rows(void **state, bool f16)
{
    struct rows *rows = test_calloc(1, sizeof(*rows));
    uint64_t seed = 4;

    rows->f16 = f16;
    rows->dtype = f16 ? EPA_F16 : EPA_BF16;
    for (uint32_t i = 0; i < MOST; i++) {
        for (uint32_t h = 0; h < ROW; h++)
            rows->x[i][h] = random_word(f16, &seed);
        for (uint32_t g = 0; g < HIDDEN; g++)
            rows->scale[i][g] = float_of_word(f16, random_word(f16, &seed)) * 1.01f;
        rows->weight[i] = (float)(next_random(&seed) >> 40) * 0x1p-24f - 0.25f;
    }
    *state = rows;
    return 0;
}

static int make_bf16_rows(void **state)
{
    return make_rows(state, false);
}

static int make_f16_rows(void **state)
{
    return make_rows(state, true);
}

static int free_rows(void **state)
{
    test_free(*state);
    return 0;
}

/* A test for bf16 and one for f16. */
#define TEST_OF_ROWS(name) \
    static void name(struct rows *rows); \
    TEST_IN(make_bf16_rows, free_rows, name##_of_bf16) \
    { \
        name(*state); \
    } \
    TEST_IN(make_f16_rows, free_rows, name##_of_f16) \
    { \
        name(*state); \
    } \
    static void name(struct rows *rows)

/* To the bit, but for which NaN it is where several met. */
static void hold_channels(const char *what, const struct rows *rows, uint32_t hidden)
{
    for (uint32_t h = 0; h < hidden; h++) {
        uint16_t got = rows->got[h], want = rows->want[h];

        if (got != want &&
            !(isnan(float_of_word(rows->f16, got)) && isnan(float_of_word(rows->f16, want))))
            fail_msg("%s %s, hidden %u: [%u] is 0x%04x, not 0x%04x", what,
                     rows->f16 ? "f16" : "bf16", hidden, h, got, want);
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
            acc = fmaf(rows->weight[i], float_of_word(rows->f16, row[i][h]), acc);
        rows->want[h] = word_of_float(rows->f16, acc);
    }
    for (uint32_t k = 0; k < ISAS; k++) {
        const struct epa_kernels *set = epa_kernels_by_name(isas[k], rows->dtype);

        if (set == NULL)
            continue;
        forget(rows);
        set->reduce(row, rows->weight, n, hidden, EPA_STORE_CACHED, rows->got);
        hold_channels(isas[k], rows, hidden);
        forget(rows);
        set->reduce(row, rows->weight, n, hidden, EPA_STORE_NONTEMPORAL, rows->got);
        epa_store_drain();
        hold_channels(isas[k], rows, hidden);
    }
}

TEST_OF_ROWS(reduce_adds_any_number_of_rows_in_order)
{
    for (uint32_t n = 0; n <= MOST; n++)
        hold_reduce(rows, n, n % 4 == 0 ? 2048 : 144, 0);
}

TEST_OF_ROWS(reduce_takes_any_width_and_place)
{
    static const uint32_t ns[] = {0, 1, 2, 3, 8, 9};

    for (size_t w = 0; w < LENGTH(widths); w++) {
        for (size_t n = 0; n < LENGTH(ns); n++)
            hold_reduce(rows, ns[n], widths[w], (uint32_t)(w + n) % 8);
    }
}

TEST_OF_ROWS(reduce_keeps_nan_infinity_denormals_and_signs_of_zero)
{
    static const uint16_t odds[2][12] = {
        {0x7fc0, 0xffc1, 0x7f80, 0xff80, 0x7f81, 1, 0x8001, 0x7f, 0x80, 0x8000, 0, 0x7f7f},
        {0x7e00, 0xfe01, 0x7c00, 0xfc00, 0x7c01, 1, 0x8001, 0x3ff, 0x400, 0x8000, 0, 0x7bff},
    };
    const uint16_t *odd = odds[rows->f16];

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

TEST_OF_ROWS(reduce_of_no_rows_is_zero)
{

    for (uint32_t k = 0; k < ISAS; k++) {
        const struct epa_kernels *set = epa_kernels_by_name(isas[k], rows->dtype);

        if (set == NULL)
            continue;
        forget(rows);
        set->reduce(NULL, NULL, 0, 48, EPA_STORE_CACHED, rows->got);
        for (uint32_t h = 0; h < 48; h++)
            assert_int_equal(rows->got[h], 0);
    }
}

/* Each sum needs its exact product: with a rounded one it comes out as 0. */
TEST_OF_ROWS(reduce_fuses_multiplication_and_addition)
{
    const uint16_t *row[2] = {rows->x[0], rows->x[1]};
    float third = 1.0f / 3.0f, product = third * 1.0078125f;
    float left = (float)((double)third * 1.0078125 - (double)product);

    assert_true(left != 0.0f);
    for (uint32_t h = 0; h < 32; h++) {
        rows->x[0][h] = word_of_float(rows->f16, -1.0f);
        rows->x[1][h] = word_of_float(rows->f16, 1.0078125f);
    }
    rows->weight[0] = product;
    rows->weight[1] = third;
    for (uint32_t k = 0; k < ISAS; k++) {
        const struct epa_kernels *set = epa_kernels_by_name(isas[k], rows->dtype);

        if (set == NULL)
            continue;
        set->reduce(row, rows->weight, 2, 32, EPA_STORE_CACHED, rows->got);
        for (uint32_t h = 0; h < 32; h++)
            assert_int_equal(rows->got[h], word_of_float(rows->f16, left));
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
        rows->want[h] = word_of_float(rows->f16, acc);
    }
    for (uint32_t k = 0; k < ISAS; k++) {
        const struct epa_kernels *set = epa_kernels_by_name(isas[k], rows->dtype);

        for (int how = EPA_STORE_CACHED; set != NULL && how <= EPA_STORE_NONTEMPORAL; how++) {
            forget(rows);
            set->reduce_fp8(row, scale, rows->weight, n, hidden, group, (enum epa_store)how,
                            rows->got);
            epa_store_drain();
            hold_channels(isas[k], rows, hidden);
        }
    }
}

TEST_OF_ROWS(reduce_fp8_adds_any_number_of_rows_in_order)
{
    for (uint32_t n = 0; n <= MOST; n++)
        hold_reduce_fp8(rows, n, n % 4 == 0 ? 2048 : 256, 128);
}

TEST_OF_ROWS(reduce_fp8_takes_any_width_and_group)
{
    static const uint32_t groups[] = {1,  3,  16,  17,  32,  40,  48, 64,
                                      80, 96, 100, 112, 128, 160, 256};
    static const uint32_t ns[] = {0, 1, 2, 8};

    for (size_t g = 0; g < LENGTH(groups); g++) {
        for (size_t n = 0; n < LENGTH(ns); n++) {
            hold_reduce_fp8(rows, ns[n], groups[g] * 16, groups[g]);
            hold_reduce_fp8(rows, ns[n], groups[g], groups[g]);
        }
    }
}

TEST_OF_ROWS(reduce_fp8_decodes_every_code_under_odd_scales)
{
    static const float odd[] = {0x1p-149f, 0x1p-126f, 1.0f, 0x1.fffffep127f,
                                0.0f,      INFINITY,  NAN,  -1.5f};
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
TEST_OF_ROWS(reduce_fp8_rounds_each_value_before_it_is_added)
{
    uint8_t three[64], one[64];
    float scale = 0x1.555556p0f, whole = 3 * scale; /* 4 and a bit */
    const uint8_t *row[2] = {one, three};
    const float *scales[2] = {&whole, &scale};
    const float weight[2] = {-1.0f, 1.0f};

    assert_true((double)whole != 3.0 * (double)scale);
    memset(one, 0x38, sizeof(one));
    memset(three, 0x44, sizeof(three));
    for (uint32_t k = 0; k < ISAS; k++) {
        const struct epa_kernels *set = epa_kernels_by_name(isas[k], rows->dtype);

        if (set == NULL)
            continue;
        set->reduce_fp8(row, scales, weight, 2, 64, 64, EPA_STORE_CACHED, rows->got);
        for (uint32_t h = 0; h < 64; h++)
            assert_int_equal(rows->got[h], 0);
    }
}

static void hold_output_fp8(struct rows *rows, uint32_t hidden, uint32_t group, float factor)
{
    uint8_t q[HIDDEN + 1];
    float scale[HIDDEN];

    for (uint32_t h = 0; h < hidden; h++) {
        q[1 + h] = (uint8_t)(h * 5 + h / 256);
        scale[h / group] = float_of_word(rows->f16, rows->x[9][h / group] & 0x7fffu) * 1.01f;
    }
    for (uint32_t h = 0; h < hidden; h++) {
        float value = float_of_e4m3(q[1 + h]) * scale[h / group];

        rows->want[h] = word_of_float(rows->f16, value * factor);
    }
    for (uint32_t k = 0; k < ISAS; k++) {
        const struct epa_kernels *set = epa_kernels_by_name(isas[k], rows->dtype);

        if (set == NULL)
            continue;
        forget(rows);
        set->output_fp8(q + 1, scale, hidden, group, factor, rows->got);
        hold_channels(isas[k], rows, hidden);
    }
}

TEST_OF_ROWS(output_from_fp8_rounds_twice_and_then_to_dtype)
{
    static const uint32_t groups[] = {1, 3, 16, 40, 64, 100, 128, 256, 448};

    for (size_t g = 0; g < LENGTH(groups); g++) {
        for (uint32_t n = 1; n <= 16; n += 5) {
            hold_output_fp8(rows, groups[g] * n, groups[g], expert_factor(n));
            hold_output_fp8(rows, groups[g] * n, groups[g], -0.3f);
        }
    }
}

/* 1.5 times the least float32 rounds to twice that; 1.5 times scale * factor would not. */
TEST_OF_ROWS(output_from_fp8_multiplies_by_the_scale_first)
{
    float scale = 0x1p-149f;
    uint8_t q[112];

    memset(q, 0x3c, sizeof(q)); /* 1.5 */
    for (uint32_t h = 0; h < 112; h++)
        rows->want[h] = word_of_float(rows->f16, 0x1p-21f);
    for (uint32_t k = 0; k < ISAS; k++) {
        const struct epa_kernels *set = epa_kernels_by_name(isas[k], rows->dtype);

        if (set == NULL)
            continue;
        forget(rows);
        set->output_fp8(q, &scale, 112, 112, 0x1p127f, rows->got);
        hold_channels(isas[k], rows, 112);
    }
}

TEST_OF_ROWS(output_from_dtype_rounds_once)
{

    for (size_t w = 0; w < LENGTH(widths); w++) {
        const uint16_t *x = rows->x[w] + w % 3;
        float factor = expert_factor((uint32_t)w) * 1.37f;

        rows->x[w][5] = 0xffff; /* NaN */
        for (uint32_t h = 0; h < widths[w]; h++)
            rows->want[h] = word_of_float(rows->f16, float_of_word(rows->f16, x[h]) * factor);
        for (uint32_t k = 0; k < ISAS; k++) {
            const struct epa_kernels *set = epa_kernels_by_name(isas[k], rows->dtype);

            if (set == NULL)
                continue;
            forget(rows);
            set->output(x, widths[w], factor, rows->got);
            hold_channels(isas[k], rows, widths[w]);
        }
    }
}

TEST_OF_ROWS(round_adds_and_rounds_in_every_set)
{
    enum { N = 101 };
    uint64_t seed = 7;
    float x[N], add[N];

    for (uint32_t h = 0; h < N; h++) {
        x[h] = float_of_bits((uint32_t)next_random(&seed));
        add[h] = x[h] * (float)(h % 3) * 0x1p-9f;
    }
    x[5] = float_of_bits(0x3f808000u); /* halfway between two of bf16, */
    x[6] = float_of_bits(0x3f801000u); /* and of f16 */
    add[5] = add[6] = 0;
    for (uint32_t with = 0; with < 2; with++) {
        for (uint32_t h = 0; h < N; h++)
            rows->want[h] = word_of_float(rows->f16, with ? x[h] + add[h] : x[h]);
        for (uint32_t k = 0; k < ISAS; k++) {
            const struct epa_kernels *set = epa_kernels_by_name(isas[k], rows->dtype);

            if (set == NULL)
                continue;
            forget(rows);
            set->round(x, with ? add : NULL, N, rows->got);
            hold_channels(isas[k], rows, N);
        }
    }
}

#define WITH_ROWS(test) \
    cmocka_unit_test_setup_teardown(test, make_bf16_rows, free_rows), \
        cmocka_unit_test_setup_teardown(test, make_f16_rows, free_rows)
