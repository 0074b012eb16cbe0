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

#include <string.h>

#include "kernels/sets.h"

enum { GROUP = 128 }; /* of k that shares a scale */

/* The slice of B that comes next. Tiles fetch or decode it between their products, as these leave
 * room for it: FP8 one step for each two of k, so that the first tile or two do it all; else so
 * many lines for each 32 of k, into L2. */
struct gemm_ahead {
    const char *b;
    uint16_t *decoded; /* FP8 */
    uint32_t steps;    /* FP8: left to do, of 64 codes */
    uint32_t lines;    /* else */
};

/* A row of A is a piece of 32 elements in each panel; pieces of a row are `step` bytes apart. */
struct gemm_tile {
    const char *a, *b;
    size_t step;
    uint32_t k;
    float *c;
    const float *next_c; /* of the tile that follows, as many rows; for prefetching */
    struct gemm_ahead *ahead;
    size_t ldc;
    bool first; /* nothing is in C yet */
    /* FP8: of the first row, groups in sequence, and from row to row; of B. */
    const float *a_scale, *b_scale;
    size_t a_scale_stride;
};

struct gemm_method {
    enum epa_dtype dtype;
    uint32_t tile_rows; /* at most */
    uint32_t rows;      /* a multiple of 32; FP8: CODED_ROWS or fewer */
    uint32_t block;     /* of k, a multiple of 128 */
    /* Rows of one panel, 32 elements each, to float32; NULL: tiles read A as it is. */
    void (*widen)(const char *a, uint32_t rows, float *out);
    void (*decode)(const uint8_t *codes, uint16_t *out); /* 64, two of k of a panel */
    void (*tile)(const struct gemm_tile *, uint32_t rows);
};

enum {
    WIDENED_ROWS = 64, /* of A that are kept in float32 at a time, at most */
    WIDENED = WIDENED_ROWS * 256,
    CODED_ROWS = 128,
    DECODED = 512,           /* of k, of one panel of B */
    WIDE_PIECE = 32 * 4,     /* bytes */
    PIECE = 32 * 2,          /* as it comes */
    PANEL_STEP = 32 * PIECE, /* from piece to piece of a row, there */
};

/* What is done at a time: rows from m0 on, k from k0 on, A in float32 if that is wanted. */
struct gemm_block {
    uint32_t m0, rows, k0, k;
    const float *wide;
};

static inline uint32_t gemm_least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* A block of A in float32: panels one after the other, each [k / 32][rows of it][32]. */
INLINED void widen_rows(struct gemm_method m, const struct epa_gemm_call *g,
                        const struct gemm_block *block, float *out)
{
    for (uint32_t i = 0; i < block->rows; i += EPA_GEMM_ROWS) {
        uint32_t some = gemm_least(block->rows - i, EPA_GEMM_ROWS);
        const char *a = (const char *)g->a + epa_gemm_a_at(block->m0 + i, block->k0, g->k);

        for (uint32_t k = 0; k < block->k; k += 32, out += some * 32, a += PANEL_STEP)
            m.widen(a, some, out);
    }
}

/* All rows of a block by the slice of B that is `at` into the block; C is from the block's first
 * row on. */
INLINED void multiply_slice(struct gemm_method m, const struct epa_gemm_call *g,
                            const struct gemm_block *block, uint32_t n0, uint32_t at, uint32_t kb,
                            const void *b, struct gemm_ahead *ahead, float *c, size_t ldc)
{
    const uint32_t k0 = block->k0 + at, groups = g->k / GROUP;
    struct gemm_tile tile = {
        .b = b,
        .k = kb,
        .ahead = ahead,
        .ldc = ldc,
        .first = k0 == 0,
        .a_scale_stride = g->a_scale_stride,
    };

    if (m.dtype == EPA_FP8_E4M3)
        tile.b_scale = g->b_scale + (size_t)(g->b_column + n0) / GROUP * groups + k0 / GROUP;
    for (uint32_t p = 0; p < block->rows; p += EPA_GEMM_ROWS) {
        uint32_t some = gemm_least(block->rows - p, EPA_GEMM_ROWS);
        uint32_t tiles = (some + m.tile_rows - 1) / m.tile_rows;

        for (uint32_t t = 0; t < tiles; t++) {
            /* As equal as can be: 32 are 11 + 11 + 10. */
            uint32_t r0 = (some * t + tiles - 1) / tiles;
            uint32_t r1 = (some * (t + 1) + tiles - 1) / tiles, row = block->m0 + p + r0;
            bool last = p + r1 == block->rows;

            tile.c = c + (p + r0) * ldc;
            tile.next_c = last ? c + EPA_GEMM_COLS : tile.c + (r1 - r0) * ldc;
            tile.a_scale = g->a_scale + row * g->a_scale_stride + k0 / GROUP;
            if (m.widen != NULL) {
                tile.a = (const char *)(block->wide + (size_t)p * block->k + (size_t)at * some +
                                        (size_t)r0 * 32);
                tile.step = (size_t)some * WIDE_PIECE;
            } else {
                tile.a = (const char *)g->a + epa_gemm_a_at(row, k0, g->k);
                tile.step = PANEL_STEP;
            }
            m.tile(&tile, r1 - r0);
        }
    }
}

/* A block with B as it is. */
INLINED void multiply_words(struct gemm_method m, const struct epa_gemm_call *g,
                            const struct gemm_block *block)
{
    const char *b = (const char *)g->b + (size_t)block->k0 * EPA_GEMM_COLS * 2;
    const size_t panel = (size_t)g->k * EPA_GEMM_COLS * 2;

    for (uint32_t n0 = 0; n0 < g->n; n0 += EPA_GEMM_COLS, b += panel) {
        struct gemm_ahead ahead = {.b = b + panel};

        ahead.lines =
            32 * m.tile_rows / gemm_least(block->rows + m.tile_rows - 1, 32 * m.tile_rows) + 1;
        multiply_slice(m, g, block, n0, 0, block->k, b, &ahead, g->c + block->m0 * g->ldc + n0,
                       g->ldc);
    }
}

static inline void copy_rows(float *to, size_t to_ld, const float *from, size_t from_ld,
                             uint32_t rows)
{
    for (uint32_t i = 0; i < rows; i++)
        memcpy(to + i * to_ld, from + i * from_ld, EPA_GEMM_COLS * sizeof(float));
}

/* A block of FP8: while one slice is multiplied, the next one is decoded. C, to which each group
 * adds, is a copy meanwhile: its own rows may all want the same few places of L1. */
INLINED void multiply_codes(struct gemm_method m, const struct epa_gemm_call *g,
                            const struct gemm_block *block)
{
    uint16_t decoded[2][DECODED * EPA_GEMM_COLS] __attribute__((aligned(64)));
    float sums[CODED_ROWS * EPA_GEMM_COLS] __attribute__((aligned(64)));
    const char *b = (const char *)g->b + (size_t)block->k0 * EPA_GEMM_COLS;
    struct gemm_ahead ahead = {
        .b = b, .decoded = decoded[0], .steps = gemm_least(block->k, DECODED) / 2};
    uint32_t turn = 0;

    for (uint32_t n0 = 0; n0 < g->n; n0 += EPA_GEMM_COLS, b += (size_t)g->k * EPA_GEMM_COLS) {
        float *c = g->c + block->m0 * g->ldc + n0;

        if (block->k0 > 0)
            copy_rows(sums, EPA_GEMM_COLS, c, g->ldc, block->rows);
        for (uint32_t at = 0, kb; at < block->k; at += kb, turn ^= 1) {
            kb = gemm_least(block->k - at, DECODED);
            for (; ahead.steps > 0; ahead.steps--, ahead.b += 64, ahead.decoded += 64)
                m.decode((const uint8_t *)ahead.b, ahead.decoded);
            ahead.decoded = decoded[turn ^ 1];
            if (at + kb < block->k) {
                ahead.b = b + (size_t)(at + kb) * EPA_GEMM_COLS;
                ahead.steps = gemm_least(block->k - at - kb, DECODED) / 2;
            } else if (n0 + EPA_GEMM_COLS < g->n) {
                ahead.b = b + (size_t)g->k * EPA_GEMM_COLS;
                ahead.steps = gemm_least(block->k, DECODED) / 2;
            }
            multiply_slice(m, g, block, n0, at, kb, decoded[turn], &ahead, sums, EPA_GEMM_COLS);
        }
        copy_rows(c, g->ldc, sums, EPA_GEMM_COLS, block->rows);
    }
}

INLINED void gemm_multiply(const struct epa_gemm_call *g, struct gemm_method m)
{
    uint32_t most = gemm_least(g->m, m.rows), longest = m.block;
    float wide[WIDENED] __attribute__((aligned(64)));

    if (m.widen != NULL && most != 0)
        longest = WIDENED / most / GROUP * GROUP;
    else if (g->m <= m.tile_rows)
        longest = g->k;
    for (uint32_t m0 = 0; m0 < g->m; m0 += m.rows) {
        struct gemm_block block = {.m0 = m0, .rows = gemm_least(g->m - m0, m.rows), .wide = wide};

        for (; block.k0 < g->k; block.k0 += longest) {
            block.k = gemm_least(g->k - block.k0, longest);
            if (m.widen != NULL)
                widen_rows(m, g, &block, wide);
            if (m.dtype == EPA_FP8_E4M3)
                multiply_codes(m, g, &block);
            else
                multiply_words(m, g, &block);
        }
    }
}

#endif
