/* Shared by the matrix kernels for AVX-512, AVX-512 BF16 and AMX. */
#ifndef KERNELS_GEMM_AVX512_H
#define KERNELS_GEMM_AVX512_H

#include <string.h>

#include "kernels/avx512_convert.h"
#include "kernels/gemm_loops.h"
#include "kernels/sets.h"

enum { TILE_ROWS = 12 };

/* Decodes two k of a panel, from codes in the order of kernels_pack_b_codes() to pairs of bf16. */
static inline void decode_line(const uint8_t *codes, uint16_t *out)
{
    __m512i pairs0, pairs1;

    decode64(_mm512_loadu_si512(codes), &pairs0, &pairs1);
    _mm512_store_si512(out, pairs0);
    _mm512_store_si512(out + 32, pairs1);
}

/* Also fetches codes that follow. */
static inline void decode_step(const uint8_t *codes, uint16_t *out)
{
    _mm_prefetch((const char *)codes + 2048, _MM_HINT_T0);
    decode_line(codes, out);
}

INLINED void fetch_lines(struct gemm_ahead *ahead)
{
    for (uint32_t i = 0; i < ahead->per_piece; i++, ahead->b += 64)
        _mm_prefetch(ahead->b, _MM_HINT_T1);
}

INLINED void clear_sums(uint32_t rows, __m512 (*sum)[2])
{
#pragma GCC unroll 12
    for (uint32_t i = 0; i < rows; i++)
        sum[i][0] = sum[i][1] = _mm512_setzero_ps();
}

/* Adds products of the range k to end to the sums of a tile. */
typedef void gemm_add(const struct gemm_tile *, uint32_t k, uint32_t end, uint32_t rows,
                      enum epa_dtype, __m512 (*sum)[2]);

/* Computes a tile whose sums continue from C. */
INLINED void sum_tile(const struct gemm_tile *t, uint32_t rows, enum epa_dtype dtype, gemm_add *add)
{
    __m512 sum[TILE_ROWS][2];

    clear_sums(rows, sum);
    if (!t->first) {
#pragma GCC unroll 12
        for (uint32_t i = 0; i < rows; i++) {
            sum[i][0] = _mm512_load_ps(t->c + (size_t)i * EPA_GEMM_COLS);
            sum[i][1] = _mm512_load_ps(t->c + (size_t)i * EPA_GEMM_COLS + 16);
        }
    }
    add(t, 0, t->k, rows, dtype, sum);
#pragma GCC unroll 12
    for (uint32_t i = 0; i < rows; i++) {
        _mm512_store_ps(t->c + (size_t)i * EPA_GEMM_COLS, sum[i][0]);
        _mm512_store_ps(t->c + (size_t)i * EPA_GEMM_COLS + 16, sum[i][1]);
    }
}

/* Computes a tile of FP8: scales the sums of each group and adds them to C. */
INLINED void scale_tile(const struct gemm_tile *t, uint32_t rows, gemm_add *add)
{
    for (uint32_t k = 0; k < t->k; k += t->group) {
        const float *a_scale = t->a_scale + k / t->group, b_scale = t->b_scale[k / GROUP];
        const bool first = t->first && k == 0;
        __m512 sum[TILE_ROWS][2];

        clear_sums(rows, sum);
        add(t, k, gemm_group_end(t, k), rows, EPA_FP8_E4M3, sum);
#pragma GCC unroll 12
        for (uint32_t i = 0; i < rows; i++) {
            float by = a_scale[i * t->a_scale_stride] * b_scale;
            float *c = t->c + (size_t)i * EPA_GEMM_COLS;
            __m512 c0 = first ? _mm512_setzero_ps() : _mm512_load_ps(c);
            __m512 c1 = first ? _mm512_setzero_ps() : _mm512_load_ps(c + 16);

            _mm512_store_ps(c, _mm512_fmadd_ps(sum[i][0], _mm512_set1_ps(by), c0));
            _mm512_store_ps(c + 16, _mm512_fmadd_ps(sum[i][1], _mm512_set1_ps(by), c1));
        }
    }
}

INLINED void tile_of(const struct gemm_tile *t, uint32_t rows, enum epa_dtype dtype, gemm_add *add)
{
    if (dtype == EPA_FP8_E4M3)
        scale_tile(t, rows, add);
    else
        sum_tile(t, rows, dtype, add);
}

/* The number of rows is a constant in each call, so that the sums are registers. */
INLINED void compute_tile(const struct gemm_tile *t, uint32_t rows, enum epa_dtype dtype,
                          gemm_add *add)
{
    switch (rows) {
#define ROWS(n) \
    case n: \
        tile_of(t, n, dtype, add); \
        break
        ROWS(1);
        ROWS(2);
        ROWS(3);
        ROWS(4);
        ROWS(5);
        ROWS(6);
        ROWS(7);
        ROWS(8);
        ROWS(9);
        ROWS(10);
        ROWS(11);
#undef ROWS
    default:
        tile_of(t, TILE_ROWS, dtype, add);
    }
}

void kernels_avx512_pack_a(const void *x, uint32_t k, void *a, uint32_t row);
void kernels_avx512_pack_a_bf16(const uint8_t *q, const float *scale, uint32_t group, uint32_t k,
                                void *a, uint32_t row);
void kernels_avx512_pack_a_codes(const uint8_t *q, const float *scale, uint32_t group, uint32_t k,
                                 void *a, uint32_t row);

#endif
