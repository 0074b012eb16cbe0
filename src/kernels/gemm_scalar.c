/* The portable matrix kernels. Order of additions, for each element of C:
 *
 *   BF16, F16  from +0, k ascending: c = c + a * b, product and sum rounded. The product of two
 *              bf16 is exact unless it is below 2^-126 or overflows, that of two f16 always: so
 *              these are the bits of fused multiply-add, that is, of avx2 and avx512.
 *   FP8        p for each 128 of k in the same way (exact products, too); then
 *              c = fma(p, scale of A * scale of B, c), from +0, 128s ascending. */
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "kernels/gemm_pack.h"

enum { SLICE = 128 }; /* of k, whose B is widened to float32 at a time */

INLINED void widen_slice(const void *b, enum epa_dtype dtype, float *out)
{
    const uint16_t *word = b;
    const uint8_t *code = b;

    for (uint32_t i = 0; i < SLICE * EPA_GEMM_COLS; i++)
        out[i] = dtype == EPA_FP8_E4M3 ? float_of_e4m3(code[i])
                                       : float_of_word(dtype == EPA_F16, word[i]);
}

/* One row by 32 columns, 128 of k. */
INLINED void multiply_row(const char *a, const float *b, bool f16, float *restrict sum)
{
    for (uint32_t k0 = 0; k0 < SLICE; k0 += 32, a += (size_t)EPA_GEMM_ROWS * 64) {
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
    const size_t element = dtype == EPA_FP8_E4M3 ? 1 : 2;
    float b[SLICE * EPA_GEMM_COLS], sum[EPA_GEMM_COLS];

    for (uint32_t n0 = 0; g->m > 0 && n0 < g->n; n0 += EPA_GEMM_COLS) {
        const char *panel = (const char *)g->b + (size_t)n0 * g->k * element;

        for (uint32_t k0 = 0; k0 < g->k; k0 += SLICE) {
            size_t block = (size_t)(g->b_column + n0) / 128 * (g->k / 128) + k0 / 128;

            widen_slice(panel + (size_t)k0 * EPA_GEMM_COLS * element, dtype, b);
            for (uint32_t i = 0; i < g->m; i++) {
                float *c = g->c + i * g->ldc + n0;
                const char *a = (const char *)g->a + epa_gemm_a_at(i, k0, g->k);

                if (k0 == 0)
                    memset(c, 0, sizeof(sum));
                if (dtype == EPA_FP8_E4M3)
                    memset(sum, 0, sizeof(sum));
                else
                    memcpy(sum, c, sizeof(sum));
                multiply_row(a, b, dtype == EPA_F16, sum);
                if (dtype == EPA_FP8_E4M3) {
                    float s = g->a_scale[i * g->a_scale_stride + k0 / 128] * g->b_scale[block];

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
