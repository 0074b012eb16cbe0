/* Sets that multiply in float32: A is widened block by block. A set's file includes this header at
 * its end, after its TILE_ROWS, widen(), decode_step(), tile_of_type() and pack_fp8(), which
 * accepts groups that are multiples of PACK_GROUP, and after GEMM_SETS, GEMM_ISA, GEMM_PACK_A,
 * GEMM_PACK_CODES (of B). */
#ifndef KERNELS_GEMM_WIDENED_H
#define KERNELS_GEMM_WIDENED_H

#include "kernels/gemm_loops.h"
#include "kernels/gemm_scalar.h"

static void pack_a_bf16(const uint8_t *q, const float *scale, uint32_t group, uint32_t k, void *a,
                        uint32_t row)
{
    if (group % PACK_GROUP == 0)
        pack_fp8(q, scale, group, k, a, row, false);
    else
        kernels_pack_a_bf16(q, scale, group, k, a, row);
}

static void pack_a_f16(const uint8_t *q, const float *scale, uint32_t group, uint32_t k, void *a,
                       uint32_t row)
{
    if (group % PACK_GROUP == 0)
        pack_fp8(q, scale, group, k, a, row, true);
    else
        kernels_pack_a_f16(q, scale, group, k, a, row);
}

static void pack_a_codes(const uint8_t *q, const float *scale, uint32_t group, uint32_t k, void *a,
                         uint32_t row)
{
    (void)scale;
    pack_fp8(q, NULL, group, k, a, row, false);
}

static void widen_bf16(const char *a, uint32_t rows, float *out)
{
    widen(a, rows, out, false);
}

static void widen_f16(const char *a, uint32_t rows, float *out)
{
    widen(a, rows, out, true);
}

static void tile_bf16(const struct gemm_tile *t, uint32_t rows)
{
    tile_of_type(t, rows, EPA_BF16);
}

static void tile_f16(const struct gemm_tile *t, uint32_t rows)
{
    tile_of_type(t, rows, EPA_F16);
}

static void tile_fp8(const struct gemm_tile *t, uint32_t rows)
{
    tile_of_type(t, rows, EPA_FP8_E4M3);
}

static void multiply_bf16(const struct epa_gemm_call *g)
{
    gemm_multiply(g, (struct gemm_method){.dtype = EPA_BF16,
                                          .tile_rows = TILE_ROWS,
                                          .rows = WIDENED_ROWS,
                                          .widen = widen_bf16,
                                          .tile = tile_bf16});
}

static void multiply_f16(const struct epa_gemm_call *g)
{
    gemm_multiply(g, (struct gemm_method){.dtype = EPA_F16,
                                          .tile_rows = TILE_ROWS,
                                          .rows = WIDENED_ROWS,
                                          .widen = widen_f16,
                                          .tile = tile_f16});
}

static void multiply_fp8(const struct epa_gemm_call *g)
{
    gemm_multiply(g, (struct gemm_method){.dtype = EPA_FP8_E4M3,
                                          .tile_rows = TILE_ROWS,
                                          .rows = WIDENED_ROWS,
                                          .widen = widen_bf16,
                                          .slice = DECODED,
                                          .decode = decode_step,
                                          .tile = tile_fp8});
}

const struct epa_gemm GEMM_SETS[3] = {
    {
        .isa = GEMM_ISA,
        .dtype = EPA_BF16,
        .pack_a = GEMM_PACK_A,
        .pack_a_fp8 = pack_a_bf16,
        .pack_b = kernels_pack_b_pairs,
        .multiply = multiply_bf16,
        .peak = peak,
    },
    {
        .isa = GEMM_ISA,
        .dtype = EPA_F16,
        .pack_a = GEMM_PACK_A,
        .pack_a_fp8 = pack_a_f16,
        .pack_b = kernels_pack_b_words,
        .multiply = multiply_f16,
        .peak = peak,
    },
    {
        .isa = GEMM_ISA,
        .dtype = EPA_FP8_E4M3,
        .pack_a_fp8 = pack_a_codes,
        .pack_b = GEMM_PACK_CODES,
        .multiply = multiply_fp8,
        .peak = peak,
    },
};

#endif
