/* Reference of a matrix product. The loops over the columns of a panel are the innermost, so that
 * compilers make vectors of columns. Each element adds its products in the order of h. */
#include "gemm_reference.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#ifndef GEMM_REFERENCE
#define GEMM_REFERENCE gemm_reference
#endif

/* The sum of k products for each column of a panel, added to c. */
typedef void order_of_sums(const float *a, const float (*b)[EPA_GEMM_COLS], uint32_t k, float *c);

static void rounded_products(const float *a, const float (*b)[EPA_GEMM_COLS], uint32_t k, float *c)
{
    for (uint32_t h = 0; h < k; h++)
        for (uint32_t j = 0; j < EPA_GEMM_COLS; j++)
            c[j] += a[h] * b[h][j];
}

static void fused_products(const float *a, const float (*b)[EPA_GEMM_COLS], uint32_t k, float *c)
{
    for (uint32_t h = 0; h < k; h++)
        for (uint32_t j = 0; j < EPA_GEMM_COLS; j++)
            c[j] = fmaf(a[h], b[h][j], c[j]);
}

/* Replaces a denormal by the zero of its sign. */
static inline float flush(float f)
{
    return fabsf(f) < 0x1p-126f ? copysignf(0.0f, f) : f;
}

/* order of VDPBF16PS */
static void pairs_odd_first(const float *a, const float (*b)[EPA_GEMM_COLS], uint32_t k, float *c)
{
    for (uint32_t h = 0; h < k; h += 2)
        for (uint32_t j = 0; j < EPA_GEMM_COLS; j++) {
            float odd = flush(fmaf(flush(a[h + 1]), flush(b[h + 1][j]), flush(c[j])));

            c[j] = flush(fmaf(flush(a[h]), flush(b[h][j]), odd));
        }
}

/* order of TDPBF16PS: two chains of 16 */
static void even_and_odd(const float *a, const float (*b)[EPA_GEMM_COLS], uint32_t k, float *c)
{
    for (uint32_t i = 0; i < k; i += 32) {
        float sum[2][EPA_GEMM_COLS] = {{0.0f}};

        for (uint32_t h = i; h < i + 32; h++)
            for (uint32_t j = 0; j < EPA_GEMM_COLS; j++)
                sum[h % 2][j] = flush(fmaf(flush(a[h]), flush(b[h][j]), sum[h % 2][j]));
        for (uint32_t j = 0; j < EPA_GEMM_COLS; j++)
            c[j] = flush(flush(c[j]) + flush(sum[0][j] + sum[1][j]));
    }
}

static order_of_sums *order_of(const char *isa)
{
    if (strcmp(isa, "scalar") == 0)
        return rounded_products;
    if (strcmp(isa, "avx512_bf16") == 0)
        return pairs_odd_first;
    if (strcmp(isa, "amx") == 0)
        return even_and_odd;
    return fused_products;
}

void GEMM_REFERENCE(const struct gemm_reference *r)
{
    const struct epa_gemm_call *g = r->call;
    const uint32_t k = g->k, blocks = (k + 127) / 128;
    order_of_sums *add = order_of(r->isa);

    for (uint32_t i = 0; i < g->m; i++) {
        const float *a = r->a + (size_t)i * k;

        for (uint32_t j = 0; j < g->n; j += EPA_GEMM_COLS) {
            const float(*b)[EPA_GEMM_COLS] = (const float(*)[EPA_GEMM_COLS])(r->b + (size_t)j * k);
            float c[EPA_GEMM_COLS] = {0.0f};

            if (!r->fp8)
                add(a, b, k, c);
            for (uint32_t h = 0; r->fp8 && h < k; h += g->group) {
                float part[EPA_GEMM_COLS] = {0.0f};
                float scale = g->a_scale[i * g->a_scale_stride + h / g->group] *
                              g->b_scale[(g->b_column + j) / 128 * (size_t)blocks + h / 128];

                add(a + h, b + h, k - h < g->group ? k - h : g->group, part);
                for (uint32_t col = 0; col < EPA_GEMM_COLS; col++)
                    c[col] = fmaf(part[col], scale, c[col]);
            }
            memcpy(r->want + (size_t)i * g->n + j, c, sizeof(c));
        }
    }
}
