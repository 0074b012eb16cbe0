/* Packing for the matrix kernels, portable. Weights are packed once, 32 x 32 of them at a time,
 * which stay in L1. */
#include <string.h>

#include "base/dtype.h"
#include "kernels/gemm_pack.h"

enum { STEP = 32 }; /* of k */

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

/* Units of so many bytes, one element or a pair; column c of a unit's row is at place(c). */
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
