/* What the sets of matrix kernels for AVX-512 share. */
#ifndef KERNELS_GEMM_AVX512_H
#define KERNELS_GEMM_AVX512_H

#include <string.h>

#include "kernels/avx512_convert.h"
#include "kernels/gemm_loops.h"
#include "kernels/gemm_pack.h"

/* A group of 32 columns, from codes that kernels_pack_b_codes() ordered to pairs of bf16. */
static inline void decode_group(const uint8_t *codes, uint16_t *out)
{
    for (uint32_t i = 0; i < GROUP * EPA_GEMM_COLS; i += 64) {
        __m512i pairs0, pairs1;

        decode64(_mm512_loadu_si512(codes + i), &pairs0, &pairs1);
        _mm512_store_si512(out + i, pairs0);
        _mm512_store_si512(out + i + 32, pairs1);
    }
}

/* One row of a tile: what was summed into C, as it is or with its scale. */
INLINED void store_sums(const struct gemm_tile *t, uint32_t row, __m512 s0, __m512 s1)
{
    float *c = t->c + row * t->ldc;

    if (t->scale != NULL) {
        const __m512 s = _mm512_set1_ps(t->scale[row]), zero = _mm512_setzero_ps();

        s0 = _mm512_fmadd_ps(s0, s, t->first ? zero : _mm512_load_ps(c));
        s1 = _mm512_fmadd_ps(s1, s, t->first ? zero : _mm512_load_ps(c + 16));
    }
    _mm512_store_ps(c, s0);
    _mm512_store_ps(c + 16, s1);
}

void kernels_avx512_pack_a(const void *x, uint32_t k, void *a, uint32_t row);
void kernels_avx512_pack_a_bf16(const uint8_t *q, const float *scale, uint32_t group, uint32_t k,
                                void *a, uint32_t row);
void kernels_avx512_pack_a_codes(const uint8_t *q, const float *scale, uint32_t group, uint32_t k,
                                 void *a, uint32_t row);

#endif
