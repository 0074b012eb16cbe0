/* The loops around a tile of some rows by 32 columns, for the sets with vectors. From outside to
 * inside:
 *
 *   rows    number of rows of the method: their A of one block of k stays in L2
 *   k       a block; between blocks sums are in C
 *   n       panels of 32 columns. Sums of a panel are together in L1, since rows of C may all map
 *           to the same few sets of L1
 *   k       a slice of the block. FP8 is decoded slice by slice
 *   tiles   of the rows
 *
 * A product of few rows reads B once only, at memory speed: one block is then as long as
 * possible. */
#ifndef KERNELS_GEMM_LOOPS_H
#define KERNELS_GEMM_LOOPS_H

#include <immintrin.h>
#include <string.h>

#include "kernels/sets.h"

enum { GROUP = 128 }; /* elements of k that share a scale of B */

/* The next slice of B. Tiles fetch it into L2 or decode it between their products. The share of
 * each 32 of k is large enough that the slice is ready in time; if that is faster, the first tile
 * does all the work. With the last panel of B the tiles may also fetch the next rows of A: each
 * tile fetches the part that replaces its own part. */
struct gemm_ahead {
    const char *b, *a;
    uint16_t *decoded;    /* FP8 */
    uint32_t steps;       /* FP8: remaining steps of 64 codes */
    uint32_t per_piece;   /* steps or lines */
    uint32_t a_per_piece; /* lines */
};

/* A row of A is a piece of 32 elements in each panel; pieces of a row are `step` bytes apart. */
struct gemm_tile {
    const char *a, *b;
    size_t step;
    uint32_t k;
    float *c; /* [rows][32] */
    struct gemm_ahead *ahead;
    bool first; /* C contains no sums yet */
    /* FP8: of the first row, groups in sequence, and from row to row; of B. */
    const float *a_scale, *b_scale;
    size_t a_scale_stride;
    uint32_t group; /* FP8: elements of k that share a scale of A; divides GROUP */
};

struct gemm_method {
    enum epa_dtype dtype;
    uint32_t tile_rows; /* maximum */
    uint32_t rows;      /* a multiple of 32, up to SUM_ROWS */
    /* Elements of k, a multiple of 128; limited by the capacity where A is widened. */
    uint32_t block;
    uint32_t slice; /* elements of k, a multiple of 128; FP8: up to DECODED; 0: the block */
    /* Widens rows of one panel, 32 elements each, to float32; NULL: tiles read A directly. */
    void (*widen)(const char *a, uint32_t rows, float *out);
    void (*decode)(const uint8_t *codes, uint16_t *out); /* 64 codes, two k of a panel */
    void (*tile)(const struct gemm_tile *, uint32_t rows);
};

enum {
    WIDENED_ROWS = 64, /* rows of A in float32 at a time, maximum */
    WIDENED = WIDENED_ROWS * 256,
    SUM_ROWS = 256,
    DECODED = 512,           /* elements of k of one panel of B */
    WIDE_PIECE = 32 * 4,     /* bytes */
    PIECE = 32 * 2,          /* not widened */
    PANEL_STEP = 32 * PIECE, /* from piece to piece of a row, not widened */
};

/* A block of work: rows from m0 on, k from k0 on, A in float32 if needed. */
struct gemm_block {
    uint32_t m0, rows, k0, k;
    const float *wide;
    const char *next_a, *next_b; /* first operands of the next block; NULL: unknown */
};

/* Returns the end of the group that begins at k: the last group of a tile may be shorter. */
static inline uint32_t gemm_group_end(const struct gemm_tile *t, uint32_t k)
{
    return k + t->group < t->k ? k + t->group : t->k;
}

static inline uint32_t gemm_least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Widens a block of A to float32: consecutive panels, each [k / 32][rows of it][32]. */
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

static inline void copy_rows(float *to, size_t to_ld, const float *from, size_t from_ld,
                             uint32_t rows)
{
    for (uint32_t i = 0; i < rows; i++)
        memcpy(to + i * to_ld, from + i * from_ld, EPA_GEMM_COLS * sizeof(float));
}

/* The same with stores past the caches. */
static inline void stream_rows(float *to, size_t to_ld, const float *from, uint32_t rows)
{
    for (uint32_t i = 0; i < rows; i++, to += to_ld, from += EPA_GEMM_COLS) {
        for (uint32_t h = 0; h < EPA_GEMM_COLS; h += 8)
            _mm256_stream_ps(to + h, _mm256_load_ps(from + h));
    }
}

/* Stores the sums of a tile to C: the final sums, or the sums up to this block of k. */
static inline void store_sums(const struct epa_gemm_call *g, uint32_t row, uint32_t n0,
                              const float *sums, uint32_t rows, bool all)
{
    float *c = g->c + row * g->ldc + n0;

    if (g->stream_c && all)
        stream_rows(c, g->ldc, sums, rows);
    else
        copy_rows(c, g->ldc, sums, EPA_GEMM_COLS, rows);
}

/* Multiplies all rows of a block by the slice of B at offset `at` of the block. The last slice
 * stores each tile to C at once: lines of C arrive from memory while the next tile multiplies. */
INLINED void multiply_slice(struct gemm_method m, const struct epa_gemm_call *g,
                            const struct gemm_block *block, uint32_t n0, uint32_t at, uint32_t kb,
                            const void *b, struct gemm_ahead *ahead, float *sums)
{
    const uint32_t k0 = block->k0 + at, groups = (g->k + GROUP - 1) / GROUP;
    const bool last = n0 + EPA_GEMM_COLS == g->n && at + kb == block->k;
    struct gemm_tile tile = {
        .b = b,
        .k = kb,
        .ahead = ahead,
        .first = k0 == 0,
        .a_scale_stride = g->a_scale_stride,
        .group = g->group,
    };

    if (m.dtype == EPA_FP8_E4M3)
        tile.b_scale = g->b_scale + (size_t)(g->b_column + n0) / GROUP * groups + k0 / GROUP;
    for (uint32_t p = 0; p < block->rows; p += EPA_GEMM_ROWS) {
        uint32_t some = gemm_least(block->rows - p, EPA_GEMM_ROWS);
        uint32_t tiles = (some + m.tile_rows - 1) / m.tile_rows;

        ahead->a_per_piece = last && block->next_a != NULL ? EPA_GEMM_ROWS / tiles + 1 : 0;
        if (ahead->a_per_piece != 0)
            ahead->a = block->next_a + epa_gemm_a_at(p, 0, g->k);
        for (uint32_t t = 0; t < tiles; t++) {
            /* Splits as evenly as possible: 32 is 11 + 11 + 10. */
            uint32_t r0 = (some * t + tiles - 1) / tiles;
            uint32_t r1 = (some * (t + 1) + tiles - 1) / tiles, row = block->m0 + p + r0;

            tile.c = sums + (size_t)(p + r0) * EPA_GEMM_COLS;
            if (m.dtype == EPA_FP8_E4M3)
                tile.a_scale = g->a_scale + row * g->a_scale_stride + k0 / g->group;
            if (m.widen != NULL) {
                tile.a = (const char *)(block->wide + (size_t)p * block->k + (size_t)at * some +
                                        (size_t)r0 * 32);
                tile.step = (size_t)some * WIDE_PIECE;
            } else {
                tile.a = (const char *)g->a + epa_gemm_a_at(row, k0, g->k);
                tile.step = PANEL_STEP;
            }
            m.tile(&tile, r1 - r0);
            if (at + kb == block->k)
                store_sums(g, row, n0, tile.c, r1 - r0, k0 + kb == g->k);
        }
    }
}

/* Selects the next slice of a panel of a block, from b on, as the work ahead. */
INLINED void set_ahead(struct gemm_method m, const struct gemm_block *block, uint32_t at,
                       const char *b, uint16_t *decoded, struct gemm_ahead *ahead)
{
    uint32_t tiles = (block->rows + m.tile_rows - 1) / m.tile_rows;

    ahead->b = b + (size_t)at * EPA_GEMM_COLS * (m.dtype == EPA_FP8_E4M3 ? 1 : 2);
    ahead->decoded = decoded;
    ahead->steps = gemm_least(block->k - at, m.slice) / 2;
    /* Tiles are as long as the slice that they fetch. */
    ahead->per_piece = m.dtype == EPA_FP8_E4M3 ? 16 / tiles + 1 : 32 / tiles + 1;
}

INLINED void multiply_block(struct gemm_method m, const struct epa_gemm_call *g,
                            const struct gemm_block *block)
{
    const bool fp8 = m.dtype == EPA_FP8_E4M3;
    const size_t element = fp8 ? 1 : 2, panel = (size_t)g->k * EPA_GEMM_COLS * element;
    uint16_t decoded[2][DECODED * EPA_GEMM_COLS] __attribute__((aligned(64)));
    float sums[SUM_ROWS * EPA_GEMM_COLS] __attribute__((aligned(64)));
    const char *b = (const char *)g->b + (size_t)block->k0 * EPA_GEMM_COLS * element;
    struct gemm_ahead ahead = {0};
    uint32_t turn = 0;

    set_ahead(m, block, 0, b, decoded[turn], &ahead);
    for (uint32_t n0 = 0; n0 < g->n; n0 += EPA_GEMM_COLS, b += panel) {
        if (block->k0 > 0)
            copy_rows(sums, EPA_GEMM_COLS, g->c + block->m0 * g->ldc + n0, g->ldc, block->rows);
        for (uint32_t at = 0, kb; at < block->k; at += kb, turn ^= 1) {
            const void *slice = b + (size_t)at * EPA_GEMM_COLS * element;

            kb = gemm_least(block->k - at, m.slice);
            if (fp8) {
                slice = decoded[turn];
                for (; ahead.steps > 0; ahead.steps--, ahead.b += 64, ahead.decoded += 64)
                    m.decode((const uint8_t *)ahead.b, ahead.decoded);
            }
            if (at + kb < block->k)
                set_ahead(m, block, at + kb, b, decoded[turn ^ 1], &ahead);
            else if (n0 + EPA_GEMM_COLS < g->n)
                set_ahead(m, block, 0, b + panel, decoded[turn ^ 1], &ahead);
            else if (!fp8 && block->next_b != NULL)
                set_ahead(m, block, 0, block->next_b, NULL, &ahead);
            multiply_slice(m, g, block, n0, at, kb, slice, &ahead, sums);
        }
    }
}

INLINED void gemm_multiply(const struct epa_gemm_call *g, struct gemm_method m)
{
    const size_t b_row = (size_t)EPA_GEMM_COLS * (m.dtype == EPA_FP8_E4M3 ? 1 : 2); /* of one k */
    uint32_t most = gemm_least(g->m, m.rows), longest = m.block, blocks;
    float wide[WIDENED] __attribute__((aligned(64)));

    if (g->m == 0)
        return;
    if (m.widen != NULL)
        longest = WIDENED / most / GROUP * GROUP;
    else if (g->m <= m.tile_rows)
        longest = g->k;
    if (g->block_k != 0)
        longest = gemm_least(longest, g->block_k);
    blocks = (g->k + longest - 1) / longest; /* blocks of equal size, as far as possible */
    longest = ((g->k + GROUP - 1) / GROUP + blocks - 1) / blocks * GROUP;
    if (m.slice == 0)
        m.slice = longest;
    blocks = (g->m + m.rows - 1) / m.rows;
    m.rows = ((g->m + EPA_GEMM_ROWS - 1) / EPA_GEMM_ROWS + blocks - 1) / blocks * EPA_GEMM_ROWS;
    for (uint32_t m0 = 0; m0 < g->m; m0 += m.rows) {
        struct gemm_block block = {.m0 = m0, .rows = gemm_least(g->m - m0, m.rows), .wide = wide};

        for (; block.k0 < g->k; block.k0 += longest) {
            block.k = gemm_least(g->k - block.k0, longest);
            if (block.k0 + longest < g->k) {
                block.next_a = (const char *)g->a + epa_gemm_a_at(m0, block.k0 + longest, g->k);
                block.next_b = (const char *)g->b + (block.k0 + longest) * b_row;
            } else if (m0 + m.rows < g->m) {
                block.next_a = (const char *)g->a + epa_gemm_a_at(m0 + m.rows, 0, g->k);
                block.next_b = g->b;
            } else {
                block.next_a = g->next_a;
                block.next_b = g->next_b;
            }
            if (m.widen != NULL)
                widen_rows(m, g, &block, wide);
            multiply_block(m, g, &block);
        }
    }
    if (g->stream_c)
        _mm_sfence(); /* before the caller signals that C is complete */
}

#endif
