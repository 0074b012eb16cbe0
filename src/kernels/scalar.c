/* The portable set: the definitions of dtype.h in loops. The others are held to it. */
#include <string.h>

#include "base/dtype.h"
#include "kernels/sets.h"

static void quantise(const uint16_t *x, uint32_t hidden, uint32_t group,
                     const uint16_t *next, uint8_t *q, float *scale)
{
    (void)next;
    for (uint32_t h = 0; h < hidden; h += group)
        scale[h / group] = e4m3_group(x + h, group, q + h);
}

static void spread(void *const *to, uint32_t n, const void *from, size_t bytes,
                   enum kernels_store store)
{
    (void)store; /* the language knows no way past the cache */
    for (uint32_t i = 0; i < n; i++)
        memcpy(to[i], from, bytes);
}

static void reduce(const uint16_t *const *row, const float *weight, uint32_t n,
                   uint32_t hidden, enum kernels_store how, uint16_t *out)
{
    (void)how;
    for (uint32_t h = 0; h < hidden; h++) {
        float acc = 0.0f;

        for (uint32_t i = 0; i < n; i++)
            acc = fmaf(weight[i], float_of_bf16(row[i][h]), acc);
        out[h] = bf16_of_float(acc);
    }
}

static void reduce_fp8(const uint8_t *const *row, const float *const *scale,
                       const float *weight, uint32_t n, uint32_t hidden, uint32_t group,
                       enum kernels_store how, uint16_t *out)
{
    (void)how;
    for (uint32_t h = 0; h < hidden; h++) {
        float acc = 0.0f;

        for (uint32_t i = 0; i < n; i++)
            acc = fmaf(weight[i], float_of_e4m3(row[i][h]) * scale[i][h / group], acc);
        out[h] = bf16_of_float(acc);
    }
}

static void answer_fp8(const uint8_t *q, const float *scale, uint32_t hidden,
                       uint32_t group, float factor, uint16_t *y)
{
    for (uint32_t h = 0; h < hidden; h++)
        y[h] = bf16_of_float(float_of_e4m3(q[h]) * scale[h / group] * factor);
}

static void answer_bf16(const uint16_t *x, uint32_t hidden, float factor, uint16_t *y)
{
    for (uint32_t h = 0; h < hidden; h++)
        y[h] = bf16_of_float(float_of_bf16(x[h]) * factor);
}

const struct kernels kernels_scalar = {
    .isa = "scalar",
    .quantise = quantise,
    .spread = spread,
    .reduce = reduce,
    .reduce_fp8 = reduce_fp8,
    .answer_fp8 = answer_fp8,
    .answer_bf16 = answer_bf16,
};
