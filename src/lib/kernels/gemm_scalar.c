/* The portable matrix kernels. Order of additions, for each element of C:
 *
 *   BF16, F16  from +0, k ascending: c = c + a * b, product and sum rounded. The product of two
 *              bf16 is exact unless it is below 2^-126 or overflows; the product of two f16 is
 *              always exact. So the bits equal fused multiply-add, that is, avx2 and avx512.
 *   FP8        p for each group of k in the same way (exact products, too); then
 *              c = fma(p, scale of A * scale of B, c), from +0, groups ascending. */
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "kernels/sets.h"
#include "kernels/gemm_scalar.h"

enum { SLICE = 128 }; /* most elements of k whose B is widened to float32 at a time */

INLINED void widen_slice(const void *b, uint32_t k, enum epa_dtype dtype, float *out)
{
    const uint16_t *word = b;
    const uint8_t *code = b;

    for (uint32_t i = 0; i < k * EPA_GEMM_COLS; i++)
        out[i] = dtype == EPA_FP8_E4M3 ? float_of_e4m3(code[i])
                                       : float_of_word(dtype == EPA_F16, word[i]);
}

/* Multiplies one row by 32 columns. */
INLINED void multiply_row(const char *a, const float *b, uint32_t k, bool f16, float *restrict sum)
{
    for (uint32_t k0 = 0; k0 < k; k0 += 32, a += (size_t)EPA_GEMM_ROWS * 64) {
        uint16_t word[32];

        memcpy(word, a, sizeof(word));
        for (uint32_t i = 0; i < 32; i++, b += EPA_GEMM_COLS) {
            float x = float_of_word(f16, word[i]);

            for (uint32_t c = 0; c < EPA_GEMM_COLS; c++)
                sum[c] += x * b[c];
        }
    }
}

INLINED void multiply(const struct epa_gemm_call *g, enum epa_dtype dtype)
{
    const bool fp8 = dtype == EPA_FP8_E4M3;
    const size_t element = fp8 ? 1 : 2, groups = (g->k + 127) / 128;
    const uint32_t slice = fp8 ? g->group : SLICE;
    float b[SLICE * EPA_GEMM_COLS], sum[EPA_GEMM_COLS];

    for (uint32_t n0 = 0; g->m > 0 && n0 < g->n; n0 += EPA_GEMM_COLS) {
        const char *panel = (const char *)g->b + (size_t)n0 * g->k * element;

        for (uint32_t k0 = 0; k0 < g->k; k0 += slice) {
            size_t block = (size_t)(g->b_column + n0) / 128 * groups + k0 / 128;
            uint32_t k = g->k - k0 < slice ? g->k - k0 : slice;

            widen_slice(panel + (size_t)k0 * EPA_GEMM_COLS * element, k, dtype, b);
            for (uint32_t i = 0; i < g->m; i++) {
                float *c = g->c + i * g->ldc + n0;
                const char *a = (const char *)g->a + epa_gemm_a_at(i, k0, g->k);

                if (k0 == 0)
                    memset(c, 0, sizeof(sum));
                if (fp8)
                    memset(sum, 0, sizeof(sum));
                else
                    memcpy(sum, c, sizeof(sum));
                multiply_row(a, b, k, dtype == EPA_F16, sum);
                if (fp8) {
                    float s = g->a_scale[i * g->a_scale_stride + k0 / slice] * g->b_scale[block];

                    for (uint32_t x = 0; x < EPA_GEMM_COLS; x++)
                        sum[x] = fmaf(sum[x], s, c[x]);
                }
                memcpy(c, sum, sizeof(sum));
            }
        }
    }
}

static void multiply_bf16(const struct epa_gemm_call *g)
{
    multiply(g, EPA_BF16);
}

static void multiply_f16(const struct epa_gemm_call *g)
{
    multiply(g, EPA_F16);
}

static void multiply_fp8(const struct epa_gemm_call *g)
{
    multiply(g, EPA_FP8_E4M3);
}

const struct epa_gemm kernels_gemm_scalar[3] = {
    {
        .isa = "scalar",
        .dtype = EPA_BF16,
        .pack_a = kernels_pack_a,
        .pack_a_fp8 = kernels_pack_a_bf16,
        .pack_b = kernels_pack_b_words,
        .multiply = multiply_bf16,
    },
    {
        .isa = "scalar",
        .dtype = EPA_F16,
        .pack_a = kernels_pack_a,
        .pack_a_fp8 = kernels_pack_a_f16,
        .pack_b = kernels_pack_b_words,
        .multiply = multiply_f16,
    },
    {
        .isa = "scalar",
        .dtype = EPA_FP8_E4M3,
        .pack_a_fp8 = kernels_pack_a_codes,
        .pack_b = kernels_pack_b_bytes,
        .multiply = multiply_fp8,
    },
};

/* ---- packing ---- */

/* Portable packing for the matrix kernels. Weights are packed once, in blocks of 32 x 32 that stay
 * in L1. */

enum { STEP = 32 }; /* elements of k */

static char *a_at(void *a, uint32_t row, uint32_t k0, uint32_t k)
{
    return (char *)a + epa_gemm_a_at(row, k0, k);
}

void kernels_pack_a(const void *x, uint32_t k, void *a, uint32_t row)
{
    const char *from = x;

    for (uint32_t k0 = 0; k0 < k; k0 += STEP)
        memcpy(a_at(a, row, k0, k), from + (size_t)k0 * 2, (size_t)STEP * 2);
}

INLINED void pack_a_fp8(const uint8_t *q, const float *scale, uint32_t group, uint32_t k, void *a,
                        uint32_t row, bool f16)
{
    for (uint32_t k0 = 0; k0 < k; k0 += STEP) {
        uint16_t word[STEP];

        for (uint32_t i = 0; i < STEP; i++) {
            float s = scale != NULL ? scale[(k0 + i) / group] : 1.0f;

            word[i] = word_of_float(f16, float_of_e4m3(q[k0 + i]) * s);
        }
        memcpy(a_at(a, row, k0, k), word, sizeof(word));
    }
}

void kernels_pack_a_bf16(const uint8_t *q, const float *scale, uint32_t group, uint32_t k, void *a,
                         uint32_t row)
{
    pack_a_fp8(q, scale, group, k, a, row, false);
}

void kernels_pack_a_f16(const uint8_t *q, const float *scale, uint32_t group, uint32_t k, void *a,
                        uint32_t row)
{
    pack_a_fp8(q, scale, group, k, a, row, true);
}

void kernels_pack_a_codes(const uint8_t *q, const float *scale, uint32_t group, uint32_t k, void *a,
                          uint32_t row)
{
    (void)scale;
    pack_a_fp8(q, NULL, group, k, a, row, false);
}

/* Packs units of `unit` bytes, one element or a pair; column c of a unit's row is at place(c). */
INLINED void pack_b(const char *w, size_t ld_bytes, uint32_t n, size_t row_bytes, size_t unit,
                    uint32_t (*place)(uint32_t), char *b)
{
    for (uint32_t n0 = 0; n0 < n; n0 += EPA_GEMM_COLS) {
        for (size_t at = 0; at < row_bytes; at += 64) {
            size_t end = at + 64 < row_bytes ? at + 64 : row_bytes;

            for (uint32_t c = 0; c < EPA_GEMM_COLS; c++) {
                const char *from = w + (n0 + c) * ld_bytes;
                char *to = b + n0 * row_bytes + place(c) * unit;

                for (size_t i = at; i < end; i += unit)
                    memcpy(to + i * EPA_GEMM_COLS, from + i, unit);
            }
        }
    }
}

static inline uint32_t in_order(uint32_t column)
{
    return column;
}

static inline uint32_t fours_in_turn(uint32_t column)
{
    return column % 16 / 4 * 8 + column / 16 * 4 + column % 4;
}

void kernels_pack_b_words(const void *w, size_t ld, uint32_t n, uint32_t k, void *b)
{
    pack_b(w, ld * 2, n, (size_t)k * 2, 2, in_order, b);
}

void kernels_pack_b_bytes(const void *w, size_t ld, uint32_t n, uint32_t k, void *b)
{
    pack_b(w, ld, n, k, 1, in_order, b);
}

void kernels_pack_b_pairs(const void *w, size_t ld, uint32_t n, uint32_t k, void *b)
{
    pack_b(w, ld * 2, n, (size_t)k * 2, 4, in_order, b);
}

void kernels_pack_b_code_pairs(const void *w, size_t ld, uint32_t n, uint32_t k, void *b)
{
    pack_b(w, ld, n, k, 2, in_order, b);
}

void kernels_pack_b_codes(const void *w, size_t ld, uint32_t n, uint32_t k, void *b)
{
    pack_b(w, ld, n, k, 2, fours_in_turn, b);
}

/* The portable sets: the definitions of dtype.h in loops. Tests compare the other sets with
 * them. */

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
