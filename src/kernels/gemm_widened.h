/* Kernels of sets that multiply in float32: A is widened by block. Included by a set's file, behind
 * its TILE_ROWS, widen(), decode_step() and tile_of_type(); gives it multiply_bf16(),
 * multiply_f16() and multiply_fp8(). */
#ifndef KERNELS_GEMM_WIDENED_H
#define KERNELS_GEMM_WIDENED_H

#include "kernels/gemm_loops.h"

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

#endif
