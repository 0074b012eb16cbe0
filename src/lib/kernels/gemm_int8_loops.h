/* The loops of the INT8 kernels around a tile of some rows by 32 columns, for the sets with 512 bits.
 * From outside to inside: rows, whose A of one block of k stays in L2; blocks of k; panels of 32
 * columns; slices of the block, whose B stays in L1; tiles of the rows. Sums of a panel are in L1
 * between slices. Between blocks they are in C as int32. */
#ifndef KERNELS_GEMM_INT8_LOOPS_H
#define KERNELS_GEMM_INT8_LOOPS_H

#include <immintrin.h>
#include <string.h>

#include "kernels/gemm_int8.h"
#include "kernels/sets.h"

/* The next slice of B, which the tiles fetch into L2 between their products. */
struct int8_ahead {
    const char *b;
    uint32_t lines, per_step; /* remaining lines; lines per step of a tile */
};

struct int8_tile {
    const char *a, *b;
    uint32_t steps;         /* of INT8_STEP elements of k */
    int32_t *c;             /* [rows][32] */
    const int32_t *columns; /* [32]: sums of the rows of weights */
    bool first;             /* C contains no sums yet */
    struct int8_ahead *ahead;
};

struct int8_method {
    uint32_t tile_rows;    /* maximum */
    uint32_t rows;         /* a multiple of 32, up to INT8_ROWS */
    uint32_t block, slice; /* steps */
    void (*tile)(const struct int8_tile *, uint32_t rows);
};

enum { INT8_ROWS = 256 };

/* Rows from m0 on, steps of k from s0 on; next_b: B of the next block. */
struct int8_block {
    uint32_t m0, rows, s0, steps;
    bool first, last; /* of the blocks of k */
    const char *next_b;
};

static inline uint32_t int8_least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Called by tiles once per step. */
INLINED void int8_fetch(struct int8_ahead *ahead)
{
    for (uint32_t i = 0; i < ahead->per_step && ahead->lines > 0; i++, ahead->lines--) {
        _mm_prefetch(ahead->b, _MM_HINT_T1);
        ahead->b += 64;
    }
}

/* Stores the scaled sums of `rows` rows of a panel. */
INLINED void int8_store(const struct epa_gemm_call *g, uint32_t row, uint32_t n0,
                        const int32_t *sum, uint32_t rows)
{
    const __m512 b0 = _mm512_loadu_ps(g->b_scale + n0), b1 = _mm512_loadu_ps(g->b_scale + n0 + 16);

    for (uint32_t i = 0; i < rows; i++, sum += EPA_GEMM_COLS) {
        const __m512 a = _mm512_set1_ps(g->a_scale[(row + i) * g->a_scale_stride]);
        __m512 c0 = _mm512_cvtepi32_ps(_mm512_load_si512(sum));
        __m512 c1 = _mm512_cvtepi32_ps(_mm512_load_si512(sum + 16));
        float *c = g->c + (row + i) * g->ldc + n0;

        c0 = _mm512_mul_ps(c0, _mm512_mul_ps(a, b0));
        c1 = _mm512_mul_ps(c1, _mm512_mul_ps(a, b1));
        if (g->stream_c) {
            _mm512_stream_ps(c, c0);
            _mm512_stream_ps(c + 16, c1);
        } else {
            _mm512_store_ps(c, c0);
            _mm512_store_ps(c + 16, c1);
        }
    }
}

static inline void int8_copy_rows(void *to, size_t to_ld, const void *from, size_t from_ld,
                                  uint32_t rows)
{
    for (uint32_t i = 0; i < rows; i++)
        memcpy((char *)to + i * to_ld * 4, (const char *)from + i * from_ld * 4,
               EPA_GEMM_COLS * sizeof(int32_t));
}

/* Multiplies all rows of a block by `steps` steps of a panel, from step `at` of the block on. */
INLINED void int8_slice(struct int8_method m, const struct epa_gemm_call *g,
                        const struct int8_block *block, uint32_t n0, struct int8_tile tile,
                        uint32_t at, int32_t *sums)
{
    const bool last = at + tile.steps == block->steps;

    for (uint32_t p = 0; p < block->rows; p += EPA_GEMM_ROWS) {
        uint32_t some = int8_least(block->rows - p, EPA_GEMM_ROWS);
        uint32_t tiles = (some + m.tile_rows - 1) / m.tile_rows;
        const char *panel = (const char *)g->a + epa_gemm_panel_at(EPA_INT8, block->m0 + p, g->k) +
                            (size_t)(block->s0 + at) * INT8_A_STEP;

        for (uint32_t t = 0; t < tiles; t++) {
            /* Splits as evenly as possible: 32 is 11 + 11 + 10. */
            uint32_t r0 = (some * t + tiles - 1) / tiles;
            uint32_t rows = (some * (t + 1) + tiles - 1) / tiles - r0, row = block->m0 + p + r0;

            tile.a = panel + (size_t)r0 * INT8_STEP;
            tile.c = sums + (size_t)(p + r0) * EPA_GEMM_COLS;
            m.tile(&tile, rows);
            if (last && block->last)
                int8_store(g, row, n0, tile.c, rows);
            else if (last)
                int8_copy_rows(g->c + row * g->ldc + n0, g->ldc, tile.c, EPA_GEMM_COLS, rows);
        }
    }
}

INLINED void int8_block(struct int8_method m, const struct epa_gemm_call *g,
                        const struct int8_block *block)
{
    const size_t panel = int8_b_panel(g->k);
    int32_t sums[INT8_ROWS * EPA_GEMM_COLS] __attribute__((aligned(64)));
    const uint32_t tiles = (block->rows + m.tile_rows - 1) / m.tile_rows;
    const char *b = (const char *)g->b + (size_t)block->s0 * INT8_B_STEP;

    for (uint32_t n0 = 0; n0 < g->n; n0 += EPA_GEMM_COLS, b += panel) {
        const int32_t *columns =
            (const int32_t *)(const void *)((const char *)g->b + n0 / EPA_GEMM_COLS * panel +
                                            panel - INT8_SUMS);
        uint32_t steps;

        if (!block->first)
            int8_copy_rows(sums, EPA_GEMM_COLS, g->c + block->m0 * g->ldc + n0, g->ldc,
                           block->rows);
        for (uint32_t at = 0; at < block->steps; at += steps) {
            struct int8_ahead ahead = {.per_step = 32 / tiles + 1};

            steps = int8_least(block->steps - at, m.slice);
            ahead.lines = steps * (INT8_B_STEP / 64);
            ahead.b = at + steps < block->steps   ? b + (size_t)(at + steps) * INT8_B_STEP
                      : n0 + EPA_GEMM_COLS < g->n ? b + panel
                                                  : block->next_b;
            if (ahead.b == NULL)
                ahead.lines = 0;
            int8_slice(m, g, block, n0,
                       (struct int8_tile){.b = b + (size_t)at * INT8_B_STEP,
                                          .steps = steps,
                                          .columns = columns,
                                          .first = block->first && at == 0,
                                          .ahead = &ahead},
                       at, sums);
        }
    }
}

INLINED void int8_multiply(const struct epa_gemm_call *g, struct int8_method m)
{
    const uint32_t steps = (uint32_t)(epa_gemm_int8_k(g->k) / INT8_STEP);
    uint32_t longest = m.block, blocks;

    if (g->m == 0)
        return;
    if (g->block_k != 0)
        longest = int8_least(longest, (g->block_k + INT8_STEP - 1) / INT8_STEP);
    if (g->m <= m.tile_rows) /* reads B once only */
        longest = steps;
    blocks = (steps + longest - 1) / longest; /* of equal size, as far as possible */
    longest = (steps + blocks - 1) / blocks;
    blocks = (g->m + m.rows - 1) / m.rows;
    m.rows = ((g->m + EPA_GEMM_ROWS - 1) / EPA_GEMM_ROWS + blocks - 1) / blocks * EPA_GEMM_ROWS;
    for (uint32_t m0 = 0; m0 < g->m; m0 += m.rows) {
        struct int8_block block = {.m0 = m0, .rows = int8_least(g->m - m0, m.rows)};

        for (; block.s0 < steps; block.s0 += longest) {
            block.steps = int8_least(steps - block.s0, longest);
            block.first = block.s0 == 0;
            block.last = block.s0 + block.steps == steps;
            block.next_b = !block.last
                               ? (const char *)g->b + (size_t)(block.s0 + longest) * INT8_B_STEP
                           : m0 + m.rows < g->m ? (const char *)g->b
                                                : (const char *)g->next_b;
            int8_block(m, g, &block);
        }
    }
    if (g->stream_c)
        _mm_sfence(); /* before the caller signals that C is complete */
}

#endif
