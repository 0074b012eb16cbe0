/* The portable sets: the definitions of dtype.h in loops. The others are held to them. The
 * loops are written once, for conversions that are constants when all is inlined. */
#include <string.h>

#include "base/dtype.h"
#include "kernels/round.h"
#include "kernels/sets.h"

struct conversion {
    float (*widen)(uint16_t);
    uint16_t (*narrow)(float);
};

static const struct conversion bf16 = {float_of_bf16, bf16_of_float};
static const struct conversion f16 = {float_of_f16, f16_of_float};

static void quantise(const uint16_t *x, uint32_t hidden, uint32_t group, const uint16_t *next,
                     uint8_t *q, float *scale)
{
    (void)next;
    for (uint32_t h = 0; h < hidden; h += group)
        scale[h / group] = e4m3_group(x + h, group, q + h);
}

static void quantise_f16(const uint16_t *x, uint32_t hidden, uint32_t group, const uint16_t *next,
                         uint8_t *q, float *scale)
{
    (void)next;
    for (uint32_t h = 0; h < hidden; h += group)
        scale[h / group] = e4m3_group_f16(x + h, group, q + h);
}

static void spread(void *const *to, uint32_t n, const void *from, size_t bytes,
                   enum epa_store store)
{
    (void)store; /* the language knows no way past the cache */
    for (uint32_t i = 0; i < n; i++)
        memcpy(to[i], from, bytes);
}

INLINED void reduce_as(struct conversion to, const uint16_t *const *row, const float *weight,
                       uint32_t n, uint32_t hidden, uint16_t *out)
{
    for (uint32_t h = 0; h < hidden; h++) {
        float acc = 0.0f;

        for (uint32_t i = 0; i < n; i++)
            acc = fmaf(weight[i], to.widen(row[i][h]), acc);
        out[h] = to.narrow(acc);
    }
}

static void reduce(const uint16_t *const *row, const float *weight, uint32_t n, uint32_t hidden,
                   enum epa_store how, uint16_t *out)
{
    (void)how;
    reduce_as(bf16, row, weight, n, hidden, out);
}

static void reduce_f16(const uint16_t *const *row, const float *weight, uint32_t n, uint32_t hidden,
                       enum epa_store how, uint16_t *out)
{
    (void)how;
    reduce_as(f16, row, weight, n, hidden, out);
}

INLINED void reduce_fp8_as(struct conversion to, const uint8_t *const *row,
                           const float *const *scale, const float *weight, uint32_t n,
                           uint32_t hidden, uint32_t group, uint16_t *out)
{
    for (uint32_t h = 0; h < hidden; h++) {
        float acc = 0.0f;

        for (uint32_t i = 0; i < n; i++)
            acc = fmaf(weight[i], float_of_e4m3(row[i][h]) * scale[i][h / group], acc);
        out[h] = to.narrow(acc);
    }
}

static void reduce_fp8(const uint8_t *const *row, const float *const *scale, const float *weight,
                       uint32_t n, uint32_t hidden, uint32_t group, enum epa_store how,
                       uint16_t *out)
{
    (void)how;
    reduce_fp8_as(bf16, row, scale, weight, n, hidden, group, out);
}

static void reduce_fp8_f16(const uint8_t *const *row, const float *const *scale,
                           const float *weight, uint32_t n, uint32_t hidden, uint32_t group,
                           enum epa_store how, uint16_t *out)
{
    (void)how;
    reduce_fp8_as(f16, row, scale, weight, n, hidden, group, out);
}

static void output_fp8(const uint8_t *q, const float *scale, uint32_t hidden, uint32_t group,
                       float factor, uint16_t *y)
{
    for (uint32_t h = 0; h < hidden; h++)
        y[h] = bf16_of_float(float_of_e4m3(q[h]) * scale[h / group] * factor);
}

static void output_fp8_f16(const uint8_t *q, const float *scale, uint32_t hidden, uint32_t group,
                           float factor, uint16_t *y)
{
    for (uint32_t h = 0; h < hidden; h++)
        y[h] = f16_of_float(float_of_e4m3(q[h]) * scale[h / group] * factor);
}

static void output(const uint16_t *x, uint32_t hidden, float factor, uint16_t *y)
{
    for (uint32_t h = 0; h < hidden; h++)
        y[h] = bf16_of_float(float_of_bf16(x[h]) * factor);
}

static void output_f16(const uint16_t *x, uint32_t hidden, float factor, uint16_t *y)
{
    for (uint32_t h = 0; h < hidden; h++)
        y[h] = f16_of_float(float_of_f16(x[h]) * factor);
}

const struct epa_kernels kernels_scalar = {
    .isa = "scalar",
    .dtype = EPA_BF16,
    .quantise = quantise,
    .spread = spread,
    .reduce = reduce,
    .reduce_fp8 = reduce_fp8,
    .output_fp8 = output_fp8,
    .output = output,
    .round = round_row,
};

const struct epa_kernels kernels_scalar_f16 = {
    .isa = "scalar",
    .dtype = EPA_F16,
    .quantise = quantise_f16,
    .spread = spread,
    .reduce = reduce_f16,
    .reduce_fp8 = reduce_fp8_f16,
    .output_fp8 = output_fp8_f16,
    .output = output_f16,
    .round = round_row_f16,
};
