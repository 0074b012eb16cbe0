/* The loops around a register tile of some rows by 32 columns, for the sets that multiply in
 * vector registers. From outside in:
 *
 *   rows    as many as the method keeps (its A stays in L2), or fewer
 *   k       a block; C is float32 in memory between blocks
 *   n       panels of 32 columns; the slice of B of a block stays in L1
 *   tiles   of the rows
 *
 * Few rows read B but once, and as fast as memory gives it: one block is then as long as it can
 * be. FP8: a block is made of groups of 128, and a slice is decoded into L1 first. */
#ifndef KERNELS_GEMM_LOOPS_H
#define KERNELS_GEMM_LOOPS_H

#include "kernels/sets.h"

enum { GROUP = 128 }; /* of k that shares a scale */

/* A row of A is a piece of 32 elements in each panel; pieces of a row are `step` bytes apart. */
struct gemm_tile {
    const char *a, *b;
    size_t step;
    uint32_t k;
    float *c;
    size_t ldc;
    bool first;         /* nothing is in C yet */
    const float *scale; /* FP8: of each row; what is summed is multiplied by it */
};

struct gemm_method {
    enum epa_dtype dtype;
    uint32_t tile_rows; /* at most */
    uint32_t rows;      /* a multiple of 32 */
    uint32_t block;     /* of k, a multiple of 128 */
    /* Rows of one panel, 32 elements each, to float32; NULL: tiles read A as it is. */
    void (*widen)(const char *a, uint32_t rows, float *out);
    void (*decode)(const uint8_t *codes, uint16_t *out); /* a group of one panel of B */
    void (*tile)(const struct gemm_tile *, uint32_t rows);
};

enum {
    WIDENED_ROWS = 64, /* of A that are kept in float32 at a time, at most */
    WIDENED = WIDENED_ROWS * 256,
    WIDE_PIECE = 32 * 4,     /* bytes */
    PIECE = 32 * 2,          /* as it comes */
    PANEL_STEP = 32 * PIECE, /* from piece to piece of a row, there */
};

static inline uint32_t gemm_least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* A block of A in float32: panels one after the other, each [k / 32][rows of it][32]. */
INLINED void widen_rows(struct gemm_method m, const struct epa_gemm_call *g, uint32_t m0,
                        uint32_t rows, uint32_t k0, uint32_t kb, float *out)
{
    for (uint32_t i = 0; i < rows; i += EPA_GEMM_ROWS) {
        uint32_t some = gemm_least(rows - i, EPA_GEMM_ROWS);
        const char *a = (const char *)g->a + epa_gemm_a_at(m0 + i, k0, g->k);

        for (uint32_t k = 0; k < kb; k += 32, out += some * 32, a += PANEL_STEP)
            m.widen(a, some, out);
    }
}

/* All rows of a block by one slice of B. */
INLINED void multiply_slice(struct gemm_method m, const struct epa_gemm_call *g, uint32_t m0,
                            uint32_t rows, uint32_t n0, uint32_t k0, uint32_t kb, uint32_t in_block,
                            uint32_t block, const char *b, const float *wide)
{
    const bool fp8 = m.dtype == EPA_FP8_E4M3;
    const size_t scale_at = (size_t)(g->b_column + n0) / GROUP * (g->k / GROUP) + k0 / GROUP;

    for (uint32_t p = 0; p < rows; p += EPA_GEMM_ROWS) {
        uint32_t some = gemm_least(rows - p, EPA_GEMM_ROWS);
        uint32_t tiles = (some + m.tile_rows - 1) / m.tile_rows;

        for (uint32_t t = 0; t < tiles; t++) {
            /* As equal as can be: 32 are 11 + 11 + 10. */
            uint32_t r0 = (some * t + tiles - 1) / tiles;
            uint32_t n_rows = (some * (t + 1) + tiles - 1) / tiles - r0, row = m0 + p + r0;
            float scale[EPA_GEMM_ROWS];
            struct gemm_tile tile = {
                .b = b,
                .k = kb,
                .c = g->c + row * g->ldc + n0,
                .ldc = g->ldc,
                .first = k0 == 0,
                .scale = fp8 ? scale : NULL,
            };

            if (m.widen != NULL) {
                tile.a = (const char *)(wide + (size_t)p * block + (size_t)in_block * some +
                                        (size_t)r0 * 32);
                tile.step = (size_t)some * WIDE_PIECE;
            } else {
                tile.a = (const char *)g->a + epa_gemm_a_at(row, k0, g->k);
                tile.step = PANEL_STEP;
            }
            for (uint32_t i = 0; fp8 && i < n_rows; i++)
                scale[i] =
                    g->a_scale[(row + i) * g->a_scale_stride + k0 / GROUP] * g->b_scale[scale_at];
            m.tile(&tile, n_rows);
        }
    }
}

INLINED void gemm_multiply(const struct epa_gemm_call *g, struct gemm_method m)
{
    const bool fp8 = m.dtype == EPA_FP8_E4M3;
    const size_t panel = (size_t)g->k * EPA_GEMM_COLS * (fp8 ? 1 : 2);
    uint32_t most = gemm_least(g->m, m.rows), block = m.block;
    float wide[WIDENED] __attribute__((aligned(64)));
    uint16_t decoded[GROUP * EPA_GEMM_COLS] __attribute__((aligned(64)));

    if (m.widen != NULL && most != 0)
        block = WIDENED / most / GROUP * GROUP;
    else if (g->m <= m.tile_rows)
        block = g->k;
    for (uint32_t m0 = 0; m0 < g->m; m0 += m.rows) {
        uint32_t rows = gemm_least(g->m - m0, m.rows);

        for (uint32_t k0 = 0; k0 < g->k; k0 += block) {
            uint32_t kb = gemm_least(g->k - k0, block), slice = fp8 ? GROUP : kb;

            if (m.widen != NULL)
                widen_rows(m, g, m0, rows, k0, kb, wide);
            for (uint32_t n0 = 0; n0 < g->n; n0 += EPA_GEMM_COLS) {
                const char *b = (const char *)g->b + n0 / EPA_GEMM_COLS * panel +
                                (size_t)k0 * EPA_GEMM_COLS * (fp8 ? 1 : 2);

                for (uint32_t at = 0; at < kb; at += slice, b += slice * EPA_GEMM_COLS) {
                    if (fp8)
                        m.decode((const uint8_t *)b, decoded);
                    multiply_slice(m, g, m0, rows, n0, k0 + at, slice, at, kb,
                                   fp8 ? (const char *)decoded : b, wide);
                }
            }
        }
    }
}

#endif
