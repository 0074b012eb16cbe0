/* The portable matrix kernel of INT8, and packing for all instruction sets. */
#include "kernels/gemm_int8.h"

#include <string.h>

#include "kernels/sets.h"

void kernels_pack_a_int8(const void *x, uint32_t k, void *a, uint32_t row)
{
    char *to = (char *)a + epa_gemm_panel_at(EPA_INT8, row / EPA_GEMM_ROWS * EPA_GEMM_ROWS, k) +
               (size_t)(row % EPA_GEMM_ROWS) * INT8_STEP;

    for (uint32_t k0 = 0; k0 < k; k0 += INT8_STEP, to += INT8_A_STEP) {
        uint32_t n = k - k0 < INT8_STEP ? k - k0 : INT8_STEP;

        memcpy(to, (const char *)x + k0, n);
        memset(to + n, 0, INT8_STEP - n);
    }
}

/* Packs the rows of weights of one panel. */
static void pack_panel(const int8_t *w, size_t ld, uint32_t k, char *b)
{
    int32_t sum[EPA_GEMM_COLS] = {0};

    for (uint32_t k0 = 0; k0 < epa_gemm_int8_k(k); k0 += INT8_STEP, b += INT8_B_STEP) {
        uint32_t n = k0 >= k ? 0 : k - k0 < INT8_STEP ? k - k0 : INT8_STEP;

        for (uint32_t c = 0; c < EPA_GEMM_COLS; c++) {
            const int8_t *from = w + c * ld + k0;

            for (uint32_t i = 0; i < n; i++)
                sum[c] += from[i];
            for (uint32_t i = 0; i < INT8_STEP; i += 4) {
                char *to = b + (i * EPA_GEMM_COLS + c * 4);

                if (i < n)
                    memcpy(to, from + i, 4);
                else
                    memset(to, 0, 4);
            }
        }
    }
    memcpy(b, sum, sizeof(sum));
}

void kernels_pack_b_int8(const void *w, size_t ld, uint32_t n, uint32_t k, void *b)
{
    for (uint32_t n0 = 0; n0 < n; n0 += EPA_GEMM_COLS)
        pack_panel((const int8_t *)w + n0 * ld, ld, k,
                   (char *)b + n0 / EPA_GEMM_COLS * int8_b_panel(k));
}

/* Multiplies a row of A by a panel of B. */
static void multiply_row(const int8_t *a, const int8_t *b, uint32_t k, int32_t *restrict sum)
{
    for (uint32_t k0 = 0; k0 < k; k0 += INT8_STEP, a += INT8_A_STEP)
        for (uint32_t i = 0; i < INT8_STEP; i += 4, b += (size_t)EPA_GEMM_COLS * 4)
            for (uint32_t c = 0; c < EPA_GEMM_COLS; c++)
                sum[c] += a[i] * b[c * 4] + a[i + 1] * b[c * 4 + 1] + a[i + 2] * b[c * 4 + 2] +
                          a[i + 3] * b[c * 4 + 3];
}

static void multiply_int8(const struct epa_gemm_call *g)
{
    for (uint32_t n0 = 0; n0 < g->n; n0 += EPA_GEMM_COLS) {
        const char *b = (const char *)g->b + n0 / EPA_GEMM_COLS * int8_b_panel(g->k);

        for (uint32_t i = 0; i < g->m; i++) {
            const char *a = (const char *)g->a +
                            epa_gemm_panel_at(EPA_INT8, i / EPA_GEMM_ROWS * EPA_GEMM_ROWS, g->k) +
                            (size_t)(i % EPA_GEMM_ROWS) * INT8_STEP;
            float *c = g->c + i * g->ldc + n0, scale = g->a_scale[i * g->a_scale_stride];
            int32_t sum[EPA_GEMM_COLS] = {0};

            multiply_row((const int8_t *)a, (const int8_t *)b, g->k, sum);
            for (uint32_t x = 0; x < EPA_GEMM_COLS; x++)
                c[x] = (float)sum[x] * (scale * g->b_scale[n0 + x]);
        }
    }
}

const struct epa_gemm kernels_gemm_int8_scalar = {
    .isa = "scalar",
    .dtype = EPA_INT8,
    .pack_a = kernels_pack_a_int8,
    .pack_b = kernels_pack_b_int8,
    .multiply = multiply_int8,
};
