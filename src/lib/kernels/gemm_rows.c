/* Loops that compilers vectorise. Products and sums are rounded one by one, except in the sum of
 * outputs, so that all instruction sets agree. GEMM_ROWS: the name of the set. QUANTISE_INT8 and
 * ROUND_LOGFMT: its functions of other files. */
#include "kernels/rows.h"

#include <math.h>

#include "base/dtype.h"
#include "kernels/quantise_int8.h"
#include "kernels/quantise_int8_avx512.h"
#include "kernels/round_logfmt.h"
#include "kernels/sets.h"

enum { GROUP = 128, STEP = 32, LINE = 16 };

/* Returns exp(x) to 2 ulp for x up to 88, which covers x / (1 + exp(-x)): above 88 the result is
 * infinite; below -87 it is the value at -87, which is negligible beside 1. */
static inline float exp_of(float x)
{
    float y = x < -87.0f ? -87.0f : x;
    float n = (y * 0x1.715476p+0f + 0x1.8p23f) - 0x1.8p23f;
    float r = (y - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
    float p = 0x1.6c16c2p-10f;
    int32_t exponent = (int32_t)(n < 128.0f ? n : 127.0f);

    p = p * r + 0x1.111112p-7f;
    p = p * r + 0x1.555556p-5f;
    p = p * r + 0x1.555556p-3f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    p *= float_of_bits((uint32_t)(exponent + 127) << 23);
    return y > 88.0f ? float_of_bits(0x7f800000u) : p;
}

static inline void activated(const float *restrict gate, const float *restrict up, uint32_t n,
                             float *restrict a)
{
    if (up == NULL) {
        for (uint32_t i = 0; i < n; i++)
            a[i] = gate[i];
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        a[i] = gate[i] / (1.0f + exp_of(-gate[i])) * up[i];
}

/* Returns the scale of up to GROUP values. Compilers vectorise maxima of halves, but not a maximum of all
 * values, whose order of comparisons they keep. */
static inline float scale_of(const float *restrict a, uint32_t n)
{
    float most[GROUP] = {0}, amax;

    for (uint32_t i = 0; i < n; i++) {
        float magnitude = fabsf(a[i]);

        most[i] = magnitude < float_of_bits(0x7f800000u) ? magnitude : 0.0f;
    }
#pragma GCC unroll 7
    for (uint32_t half = GROUP / 2; half > 0; half /= 2)
        for (uint32_t i = 0; i < half; i++)
            most[i] = most[i + half] > most[i] ? most[i + half] : most[i];
    amax = most[0] * (1.0f / 448.0f);
    return amax > 0 ? amax : 1.0f; /* also where the product underflows: 0 / 0 would be NaN */
}

/* Returns e4m3 of f with the rounding of dtype.h, as bf16, which is exact. */
static inline uint16_t code_of(float f)
{
    uint32_t u = bits_of_float(f), a = u & 0x7fffffffu, sign = u >> 16 & 0x8000u;
    uint32_t normal = (a + 0x7ffffu + (a >> 20 & 1u)) & ~0xfffffu;
    uint32_t small = bits_of_float((float_of_bits(a) + 16384.0f) - 16384.0f);
    uint32_t below = 0u - (a < 0x3c800000u), above = 0u - (a >= 0x43e00000u);
    uint32_t nan = 0u - (a > 0x7f800000u);
    uint32_t v = (small & below) | (normal & ~below);

    v = (v & ~above) | (0x43e00000u & above);
    v = (v & ~nan) | (0x7fc00000u & nan);
    return (uint16_t)(sign | v >> 16);
}

static inline uint16_t *panel_at(const struct gemm_tile_out *t, uint32_t row, uint32_t column,
                                 uint32_t columns)
{
    return (uint16_t *)(void *)((char *)t->to + epa_gemm_a_at(t->row + row, column, columns));
}

/* Writes the codes and the scale of a group. */
static inline void write_codes(const struct gemm_tile_out *t, uint32_t row, uint32_t column,
                               const float *restrict a, uint32_t group)
{
    uint32_t at = t->k0 + column;
    float scale = scale_of(a, group);

    t->scale[(size_t)(t->row + row) * (t->k / group) + at / group] = scale;
    for (uint32_t j = 0; j < group; j += STEP) {
        uint16_t *restrict to = panel_at(t, row, at + j, t->k);

        for (uint32_t i = 0; i < STEP; i++)
            to[i] = code_of(a[j + i] / scale);
    }
}

static inline void write_words(const struct gemm_tile_out *t, uint32_t row, uint32_t column,
                               const float *restrict a, uint32_t n)
{
    for (uint32_t j = 0; j < n; j += STEP) {
        uint16_t *restrict to =
            t->plain ? (uint16_t *)t->to + (size_t)(t->row + row) * t->k + t->k0 + column + j
                     : panel_at(t, row, t->k0 + column + j, t->k);

        if (t->dtype == EPA_F16) {
            for (uint32_t i = 0; i < STEP; i++)
                to[i] = f16_of_float(a[j + i]);
        } else {
            for (uint32_t i = 0; i < STEP; i++)
                to[i] = bf16_of_float(a[j + i]);
        }
    }
}

/* Computes the activation of up to GROUP columns. */
INLINED void activate_columns(const struct gemm_tile_out *t, uint32_t row, uint32_t column,
                              uint32_t n)
{
    size_t at = row * t->ld + column;
    float a[GROUP];

    activated(t->gate + at, t->up == NULL ? NULL : t->up + at, n, a);
    if (t->weights != EPA_FP8_E4M3)
        write_words(t, row, column, a, n);
    else if (t->group == GROUP)
        write_codes(t, row, column, a, GROUP);
    else
        for (uint32_t i = 0; i < n; i += GROUP / 2)
            write_codes(t, row, column + i, a + i, GROUP / 2);
}

/* Loops of GROUP columns have a constant length, which compilers vectorise better. */
static void activate(const struct gemm_tile_out *t)
{
    for (uint32_t row = 0; row < t->m; row++) {
        uint32_t column = 0;

        for (; column + GROUP <= t->n; column += GROUP)
            activate_columns(t, row, column, GROUP);
        if (column < t->n)
            activate_columns(t, row, column, t->n - column);
    }
}

/* Sums up to GROUP channels from h on. */
INLINED void sum_channels(const float *const *row, const float *weight, uint32_t rows, uint32_t h,
                          uint32_t n, bool more, enum epa_dtype dtype, uint16_t *restrict to)
{
    float acc[GROUP] = {0};

    for (uint32_t i = 0; i < rows; i++) {
        const float *restrict from = row[i] + h;
        float w = weight[i];

        /* Rows are too short for the hardware prefetcher. */
        for (uint32_t j = 0; more && j < GROUP; j += LINE)
            __builtin_prefetch(from + GROUP + j);
        for (uint32_t j = 0; j < n; j++)
            acc[j] = fmaf(w, from[j], acc[j]);
    }
    if (dtype == EPA_F16) {
        for (uint32_t j = 0; j < n; j++)
            to[j] = f16_of_float(acc[j]);
    } else {
        for (uint32_t j = 0; j < n; j++)
            to[j] = bf16_of_float(acc[j]);
    }
}

static void sum(const float *const *row, const float *weight, uint32_t n, uint32_t hidden,
                enum epa_dtype dtype, uint16_t *restrict out)
{
    uint32_t h = 0;

    for (; h + GROUP <= hidden; h += GROUP)
        sum_channels(row, weight, n, h, GROUP, h + GROUP < hidden, dtype, out + h);
    if (h < hidden)
        sum_channels(row, weight, n, h, hidden - h, false, dtype, out + h);
}

/* Quantises up to GROUP channels and returns their scale. */
INLINED float quantise_channels(const float *restrict x, const float *restrict add, uint32_t n,
                                uint8_t *restrict q)
{
    float v[GROUP], scale;

    for (uint32_t i = 0; i < n; i++)
        v[i] = x[i];
    for (uint32_t i = 0; i < n && add != NULL; i++)
        v[i] += add[i];
    scale = scale_of(v, n);
    for (uint32_t i = 0; i < n; i++)
        q[i] = e4m3_of_float(v[i] / scale);
    return scale;
}

static void quantise(const float *x, const float *add, uint32_t n, uint8_t *q, float *scale)
{
    uint32_t h = 0;

    for (; h + GROUP <= n; h += GROUP)
        scale[h / GROUP] = quantise_channels(x + h, add == NULL ? NULL : add + h, GROUP, q + h);
    if (h < n)
        scale[h / GROUP] = quantise_channels(x + h, add == NULL ? NULL : add + h, n - h, q + h);
}

const struct gemm_rows GEMM_ROWS = {.activate = activate,
                                    .sum = sum,
                                    .quantise = quantise,
                                    .quantise_int8 = QUANTISE_INT8,
                                    .round_logfmt = ROUND_LOGFMT};
