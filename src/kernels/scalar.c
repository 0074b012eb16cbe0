/* The portable sets: the definitions of dtype.h in loops. The others are held to them. */
#include <string.h>

#include "base/dtype.h"
#include "kernels/sets.h"

INLINED void quantise_as(const uint16_t *x, uint32_t hidden, uint32_t group, const uint16_t *next,
                         uint8_t *q, float *scale, bool f16)
{
    (void)next;
    for (uint32_t h = 0; h < hidden; h += group)
        scale[h / group] = e4m3_group_of(f16, x + h, group, q + h);
}

static void spread(void *const *to, uint32_t n, const void *from, size_t bytes,
                   enum epa_store store)
{
    (void)store; /* the language has no stores that bypass the cache */
    for (uint32_t i = 0; i < n; i++)
        memcpy(to[i], from, bytes);
}

INLINED void reduce_as(const uint16_t *const *row, const float *weight, uint32_t n, uint32_t hidden,
                       enum epa_store how, bool f16, uint16_t *out)
{
    (void)how;
    for (uint32_t h = 0; h < hidden; h++) {
        float acc = 0.0f;

        for (uint32_t i = 0; i < n; i++)
            acc = fmaf(weight[i], float_of_word(f16, row[i][h]), acc);
        out[h] = word_of_float(f16, acc);
    }
}

INLINED void reduce_fp8_as(const uint8_t *const *row, const float *const *scale,
                           const float *weight, uint32_t n, uint32_t hidden, uint32_t group,
                           enum epa_store how, bool f16, uint16_t *out)
{
    (void)how;
    for (uint32_t h = 0; h < hidden; h++) {
        float acc = 0.0f;

        for (uint32_t i = 0; i < n; i++)
            acc = fmaf(weight[i], float_of_e4m3(row[i][h]) * scale[i][h / group], acc);
        out[h] = word_of_float(f16, acc);
    }
}

INLINED void output_fp8_as(const uint8_t *q, const float *scale, uint32_t hidden, uint32_t group,
                           float factor, bool f16, uint16_t *y)
{
    for (uint32_t h = 0; h < hidden; h++)
        y[h] = word_of_float(f16, float_of_e4m3(q[h]) * scale[h / group] * factor);
}

INLINED void output_as(const uint16_t *x, uint32_t hidden, float factor, bool f16, uint16_t *y)
{
    for (uint32_t h = 0; h < hidden; h++)
        y[h] = word_of_float(f16, float_of_word(f16, x[h]) * factor);
}

#define SET_ISA "scalar"
#define SET_BF16 kernels_scalar
#define SET_F16 kernels_scalar_f16
#include "kernels/of_both_types.h"
