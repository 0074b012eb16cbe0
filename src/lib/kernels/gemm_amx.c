/* Matrix kernels of AMX: TDPBF16PS on two by two tiles of 16 x 16 sums.
 *
 * Order of additions, for each element of C:
 *
 *   BF16  for each 32 of k, ascending: even = fma(a[k], b[k], even) of the even k, ascending, from
 *         +0; odd in the same way; then c = c + (even + odd), from +0
 *   FP8   p for each group of k in the same way; then c = fma(p, scale of A * scale of B, c), from
 *         +0, groups ascending
 *
 * The instruction treats denormals in A, B and sums as zeros, and returns zero instead of a
 * denormal.
 *
 * Loops, from outside to inside:
 *
 *   n, m    a block of C, whose sums stay in L2 tile by tile: rows of C may all map to the same few
 *           sets of a cache. A block whose A fits L2 over all of k is one panel of B wide, so that its
 *           sums stay in L1 or near it
 *   k       a slice, whose A stays in L2 beside the sums
 *   n       panels of B. The slice of a panel stays in L1. Its products fetch the slice of the next
 *           panel into L2, or decode it and fetch the slice after it: FP8 is decoded once for all
 *           rows of the block
 *   m       panels of A
 *
 * BF16 with one panel of A: the loops of gemm_loops.h. */
#include "kernels/gemm_avx512.h"
#include "kernels/gemm_scalar.h"
#include "kernels/sets.h"

/* Bytes of A over all of k that stay in L2 beside B and sums. */
#ifndef AMX_L2_BYTES
#define AMX_L2_BYTES (1 << 20)
#endif

enum {
    ROWS = 512, /* of a block */
    COLUMNS = 512,
    FEW_ROWS = 128, /* a block of up to so many rows has FEW_COLUMNS */
    FEW_COLUMNS = 128,
    SLICE = 512, /* elements of k */
    FP8_SLICE = 256,
    STREAM_BYTES = 1 << 20, /* larger C: past the caches */
    BYTES_OF_PAIRS = EPA_GEMM_COLS * 4,
    STEP = 32,        /* elements of k of one instruction */
    TILE = 16 * 16,   /* sums */
    TILES = 4 * TILE, /* of 32 rows and columns */
    SUM_LINES = TILES / 16,
    LINE = 64,
    PAGE_LINES = 64,
    STREAMS = 8,
};

/* All eight tiles are 16 rows of 64 bytes: four of sums, two of rows, two of columns. */
struct palette {
    uint8_t id, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static void configure(void)
{
    struct palette p __attribute__((aligned(64))) = {.id = 1};

    for (int i = 0; i < 8; i++) {
        p.row_bytes[i] = 64;
        p.rows[i] = 16;
    }
    _tile_loadconfig(&p);
}

/* Compiler barrier: some compilers do not know the memory accesses of tile instructions. */
static inline void order_tile_memory(void)
{
    __asm__ volatile("" ::: "memory");
}

/* ---- the slices of B that follow ---- */

/* Lines of a slice of B that products fetch into L2. Consecutive requests go to different pages,
 * so that the hardware prefetcher runs ahead in each page. A request that the prefetcher answered
 * holds a fill buffer of L1, which loads of tiles need, for a short time only. */
struct fetch {
    const char *b;      /* the next line */
    size_t apart, back; /* bytes: from stream to stream, and from the last stream to the first */
    uint32_t streams, stream; /* of the next line */
};

struct ahead {
    struct fetch fetch;
    uint32_t left, each; /* BF16: lines, FP8: steps of 64 codes; for each STEP */
    /* FP8: the slice that products decode */
    const char *codes;
    uint16_t *decoded;
};

static struct fetch fetch_slice(const char *b, uint32_t lines)
{
    uint32_t streams = gemm_least(lines / PAGE_LINES, STREAMS);
    size_t apart;

    streams += streams == 0;
    apart = (size_t)(lines / streams) * LINE;
    return (struct fetch){b, apart, streams * apart - LINE, streams, 0};
}

INLINED void fetch_line(struct fetch *f)
{
    _mm_prefetch(f->b, _MM_HINT_T1);
    f->b += f->apart;
    if (++f->stream == f->streams) {
        f->stream = 0;
        f->b -= f->back;
    }
}

INLINED void work_ahead(struct ahead *ahead, bool fp8)
{
    struct fetch fetch = ahead->fetch;
    uint32_t n = gemm_least(ahead->each, ahead->left);

    for (uint32_t i = 0; i < n; i++) {
        if (fp8)
            decode_line((const uint8_t *)ahead->codes + (size_t)i * LINE,
                        ahead->decoded + (size_t)i * LINE);
        fetch_line(&fetch);
    }
    if (fp8) {
        ahead->codes += (size_t)n * LINE;
        ahead->decoded += (size_t)n * LINE;
    }
    ahead->fetch = fetch;
    ahead->left -= n;
}

/* ---- tiles of sums ---- */

INLINED void clear_tiles(bool lower)
{
    _tile_zero(0);
    _tile_zero(1);
    if (lower) {
        _tile_zero(2);
        _tile_zero(3);
    }
}

/* Floats from a tile of sums to the tile of the next columns and to the tile of the next rows, and
 * bytes from row to row. */
struct order {
    size_t right, below, row_bytes;
};

/* Tile by tile, and row by row as in gemm_loops.h. */
static const struct order by_tile = {TILE, 2 * TILE, 64};
static const struct order by_row = {16, (size_t)16 * EPA_GEMM_COLS, (size_t)EPA_GEMM_COLS * 4};

INLINED void load_tiles(const float *sums, struct order o, bool lower)
{
    order_tile_memory();
    _tile_loadd(0, sums, o.row_bytes);
    _tile_loadd(1, sums + o.right, o.row_bytes);
    if (lower) {
        _tile_loadd(2, sums + o.below, o.row_bytes);
        _tile_loadd(3, sums + o.below + o.right, o.row_bytes);
    }
}

INLINED void store_tiles(float *sums, struct order o, bool lower)
{
    _tile_stored(0, sums, o.row_bytes);
    _tile_stored(1, sums + o.right, o.row_bytes);
    if (lower) {
        _tile_stored(2, sums + o.below, o.row_bytes);
        _tile_stored(3, sums + o.below + o.right, o.row_bytes);
    }
    order_tile_memory();
}

/* Returns the first half of a row of sums; the second half is TILE further. */
static inline size_t row_of_tiles(uint32_t row)
{
    return row / 16 * 2 * TILE + row % 16 * 16;
}

/* ---- from tiles to C, while the tiles of other rows are computed ---- */

struct rest {
    const float *from; /* tiles: sums, or FP8: the sums of a group */
    float *c;          /* rows of C; FP8: NULL unless the group is the last one */
    size_t ldc;
    uint32_t row, rows; /* the next row, and the number of rows */
    bool stream;
    /* FP8 */
    float *sums; /* of the groups before this one */
    bool first;  /* there are none */
    const float *a_scale;
    size_t a_scale_stride;
    float b_scale;
};

INLINED void store_row(const struct rest *rest, uint32_t row, __m512 left, __m512 right)
{
    float *c = rest->c + row * rest->ldc;

    if (rest->stream) {
        _mm512_stream_ps(c, left);
        _mm512_stream_ps(c + 16, right);
    } else {
        _mm512_store_ps(c, left);
        _mm512_store_ps(c + 16, right);
    }
}

/* Stores or adds a row. FP8: times the scales. */
INLINED void finish_row(const struct rest *rest, uint32_t row, bool fp8)
{
    size_t at = row_of_tiles(row);
    __m512 left = _mm512_load_ps(rest->from + at), right = _mm512_load_ps(rest->from + at + TILE);

    if (fp8) {
        float *sums = rest->sums + at;
        __m512 by = _mm512_set1_ps(rest->a_scale[row * rest->a_scale_stride] * rest->b_scale);
        __m512 c0 = rest->first ? _mm512_setzero_ps() : _mm512_load_ps(sums);
        __m512 c1 = rest->first ? _mm512_setzero_ps() : _mm512_load_ps(sums + TILE);

        left = _mm512_fmadd_ps(left, by, c0);
        right = _mm512_fmadd_ps(right, by, c1);
        if (rest->c == NULL) {
            _mm512_store_ps(sums, left);
            _mm512_store_ps(sums + TILE, right);
        }
    }
    if (rest->c != NULL)
        store_row(rest, row, left, right);
}

/* Finishes up to `rows` rows. */
INLINED void finish(struct rest *rest, uint32_t rows, bool fp8)
{
    const struct rest r = *rest; /* stores of vectors may alias *rest */

    rows = gemm_least(rows, r.rows - r.row);
    for (uint32_t i = 0; i < rows; i++)
        finish_row(&r, r.row + i, fp8);
    rest->row = r.row + rows;
}

/* ---- products ---- */

/* A product in progress. */
struct product {
    const struct epa_gemm_call *g;
    struct ahead ahead;
    struct rest rest;
    float (*out)[TILES];    /* [2] */
    uint32_t turn;          /* of `out` */
    const float *next_sums; /* of the tiles that follow; NULL: there is one slice */
    /* FP8 */
    uint16_t (*decoded)[DECODED * EPA_GEMM_COLS]; /* [2] */
    uint32_t decoded_turn;
};

/* 32 rows by 32 columns of a slice. */
struct tiles {
    const char *a, *b;
    uint32_t k0, k, row, rows, column;
    float *sums; /* of the slices before this one */
    bool last;   /* slice */
};

/* Adds products of k elements to the sums; `lower`: there are more than 16 rows. A arrives from L2
 * with the hint that keeps the slice of B in L1. BF16: fetches the next sums into L1. */
INLINED void add(struct product *p, const char *a, const char *b, uint32_t k, bool lower, bool fp8)
{
    const uint32_t steps = k / STEP, rows = (EPA_GEMM_ROWS + steps - 1) / steps;
    const uint32_t sums = fp8 || p->next_sums == NULL ? 0 : SUM_LINES / steps;
    const char *next = (const char *)p->next_sums;

    for (uint32_t i = 0; i < steps; i++, a += PANEL_STEP, b += (size_t)16 * BYTES_OF_PAIRS) {
        _tile_loadd(6, b, BYTES_OF_PAIRS);
        _tile_stream_loadd(4, a, PIECE);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + 64, BYTES_OF_PAIRS);
        _tile_dpbf16ps(1, 4, 7);
        if (lower)
            _tile_stream_loadd(5, a + (size_t)16 * PIECE, PIECE);
        work_ahead(&p->ahead, fp8);
        for (uint32_t j = 0; j < sums; j++, next += LINE)
            __builtin_prefetch(next, 1);
        if (lower) {
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        finish(&p->rest, rows, fp8);
    }
    finish(&p->rest, EPA_GEMM_ROWS, fp8);
}

/* Leaves the tiles to the products that follow. */
INLINED struct rest *leave(struct product *p, const struct tiles *t, bool lower, bool last)
{
    const struct epa_gemm_call *g = p->g;
    float *out = p->out[p->turn ^= 1];

    store_tiles(out, by_tile, lower);
    p->rest.from = out;
    p->rest.c = last ? g->c + t->row * g->ldc + t->column : NULL;
    p->rest.row = 0;
    p->rest.rows = t->rows;
    return &p->rest;
}

INLINED void multiply_bf16_tiles(struct product *p, const struct tiles *t, bool lower)
{
    if (t->k0 == 0)
        clear_tiles(lower);
    else
        load_tiles(t->sums, by_tile, lower);
    add(p, t->a, t->b, t->k, lower, false);
    if (t->last)
        (void)leave(p, t, lower, true);
    else
        store_tiles(t->sums, by_tile, lower);
}

INLINED void multiply_fp8_tiles(struct product *p, const struct tiles *t, bool lower)
{
    const struct epa_gemm_call *g = p->g;
    const uint32_t groups = (g->k + GROUP - 1) / GROUP, block = (g->b_column + t->column) / GROUP;
    const float *a_scale = g->a_scale + t->row * g->a_scale_stride;

    for (uint32_t at = 0, k; at < t->k; at += k) {
        struct rest *rest;

        k = gemm_least(t->k - at, g->group);
        clear_tiles(lower);
        add(p, t->a + (size_t)at * PIECE * EPA_GEMM_ROWS / STEP,
            t->b + (size_t)at * EPA_GEMM_COLS * 2, k, lower, true);
        rest = leave(p, t, lower, t->last && at + k == t->k);
        rest->first = t->k0 + at == 0;
        rest->sums = t->sums;
        rest->a_scale = a_scale + (t->k0 + at) / g->group;
        rest->b_scale = g->b_scale[(size_t)block * groups + (t->k0 + at) / GROUP];
    }
}

INLINED void multiply_tiles(struct product *p, const struct tiles *t, bool lower, bool fp8)
{
    if (fp8)
        multiply_fp8_tiles(p, t, lower);
    else
        multiply_bf16_tiles(p, t, lower);
}

/* ---- blocks ---- */

struct blocks {
    uint32_t rows, columns, slice; /* of a block */
};

/* FP8 with one panel of A reads B at memory speed: a panel of B in one go. */
static struct blocks divide(const struct epa_gemm_call *g, bool fp8)
{
    uint32_t panels = (g->m + EPA_GEMM_ROWS - 1) / EPA_GEMM_ROWS;
    uint32_t blocks = (panels * EPA_GEMM_ROWS + ROWS - 1) / ROWS, slices;
    struct blocks b = {.rows = (panels + blocks - 1) / blocks * EPA_GEMM_ROWS,
                       .columns = COLUMNS,
                       .slice = fp8 ? FP8_SLICE : SLICE};

    if (panels == 1)
        b.slice = DECODED;
    if (panels == 1 || (size_t)b.rows * g->k * sizeof(uint16_t) <= AMX_L2_BYTES)
        b.columns = EPA_GEMM_COLS;
    else if (b.rows <= FEW_ROWS)
        b.columns = FEW_COLUMNS;
    if (g->block_k != 0)
        b.slice = gemm_least(b.slice, g->block_k);
    slices = (g->k + b.slice - 1) / b.slice; /* of equal size, as far as possible */
    b.slice = ((g->k + GROUP - 1) / GROUP + slices - 1) / slices * GROUP;
    return b;
}

/* A slice of a block. */
struct slice {
    uint32_t m0, m1, n0, n1, k0, k1;
};

static const char *slice_of_panel(const struct epa_gemm_call *g, uint32_t n, uint32_t k, bool fp8)
{
    return (const char *)g->b + ((size_t)n * g->k + (size_t)k * EPA_GEMM_COLS) * (fp8 ? 1 : 2);
}

/* A slice of a panel of B. */
struct place {
    uint32_t n, k;
};

/* Returns the place that follows in the order of the products; n is the end of B if there is
 * none. */
static struct place next_place(const struct epa_gemm_call *g, const struct blocks *blocks,
                               const struct slice *s, struct place at)
{
    uint32_t n0 = at.n / blocks->columns * blocks->columns;
    uint32_t n1 = gemm_least(g->n, n0 + blocks->columns);

    at.n += EPA_GEMM_COLS;
    if (at.n < n1)
        return at;
    at.n = n0;
    at.k += blocks->slice;
    if (at.k < g->k)
        return at;
    return (struct place){.n = s->m1 < g->m ? n0 : n1};
}

/* Selects the slices of B that follow the slice of panel n as the work ahead. */
INLINED void look_ahead(struct product *p, const struct blocks *blocks, const struct slice *s,
                        uint32_t n, bool fp8)
{
    const struct epa_gemm_call *g = p->g;
    uint32_t tiles = (s->m1 - s->m0 + EPA_GEMM_ROWS - 1) / EPA_GEMM_ROWS * ((s->k1 - s->k0) / STEP);
    struct place at = next_place(g, blocks, s, (struct place){n, s->k0});
    struct ahead *ahead = &p->ahead;
    const char *b = g->next_b;

    ahead->left = gemm_least(g->k - at.k, blocks->slice) / (fp8 ? 2 : 1);
    if (fp8) {
        ahead->codes = slice_of_panel(g, at.n, at.k, true);
        ahead->decoded = p->decoded[p->decoded_turn ^ 1];
        if (at.n == g->n)
            ahead->left = 0;
        else
            at = next_place(g, blocks, s, at);
    }
    if (at.n < g->n)
        b = slice_of_panel(g, at.n, at.k, fp8);
    if (b == NULL && !fp8)
        ahead->left = 0;
    if (b == NULL)
        b = g->b; /* FP8: decodes only */
    ahead->fetch = fetch_slice(b, gemm_least(g->k - at.k, blocks->slice) / (fp8 ? 2 : 1));
    ahead->each = (ahead->left + tiles - 1) / tiles;
}

INLINED void multiply_panels(struct product *p, const struct blocks *blocks, const struct slice *s,
                             bool fp8, float *sums)
{
    const struct epa_gemm_call *g = p->g;
    struct tiles t = {.k0 = s->k0, .k = s->k1 - s->k0, .last = s->k1 == g->k, .sums = sums};
    const float *end = sums + (size_t)(s->m1 - s->m0 + EPA_GEMM_ROWS - 1) / EPA_GEMM_ROWS *
                                  ((s->n1 - s->n0) / EPA_GEMM_COLS) * TILES;

    for (t.column = s->n0; t.column < s->n1; t.column += EPA_GEMM_COLS) {
        t.b = slice_of_panel(g, t.column, s->k0, fp8);
        if (fp8) {
            p->ahead.each = p->ahead.left;
            work_ahead(&p->ahead, true);
            t.b = (const char *)p->decoded[p->decoded_turn];
        }
        look_ahead(p, blocks, s, t.column, fp8);
        p->decoded_turn ^= 1;
        order_tile_memory();
        for (t.row = s->m0; t.row < s->m1; t.row += EPA_GEMM_ROWS, t.sums += TILES) {
            t.rows = gemm_least(s->m1 - t.row, EPA_GEMM_ROWS);
            t.a = (const char *)g->a + epa_gemm_a_at(t.row, s->k0, g->k);
            if (s->k1 - s->k0 < g->k)
                p->next_sums = t.sums + TILES < end ? t.sums + TILES : sums;
            if (t.rows > 16)
                multiply_tiles(p, &t, true, fp8);
            else
                multiply_tiles(p, &t, false, fp8);
        }
    }
}

INLINED void multiply(const struct epa_gemm_call *g, bool fp8,
                      uint16_t (*decoded)[DECODED * EPA_GEMM_COLS])
{
    float sums[ROWS * COLUMNS] __attribute__((aligned(64))),
        out[2][TILES] __attribute__((aligned(64)));
    struct product p = {.g = g, .out = out, .decoded = decoded};
    struct blocks blocks;

    if (g->m == 0)
        return;
    blocks = divide(g, fp8);
    configure();
    p.rest.ldc = g->ldc;
    p.rest.stream = g->stream_c || (size_t)g->m * g->n * sizeof(float) >= STREAM_BYTES;
    p.rest.a_scale_stride = g->a_scale_stride;
    if (fp8)
        p.ahead = (struct ahead){.fetch = fetch_slice(g->b, PAGE_LINES),
                                 .left = gemm_least(g->k, blocks.slice) / 2,
                                 .codes = g->b,
                                 .decoded = decoded[0]};
    for (struct slice s = {0}; s.n0 < g->n; s.n0 = s.n1) {
        s.n1 = gemm_least(g->n, s.n0 + blocks.columns);
        for (s.m0 = 0; s.m0 < g->m; s.m0 = s.m1) {
            s.m1 = gemm_least(g->m, s.m0 + blocks.rows);
            for (s.k0 = 0; s.k0 < g->k; s.k0 = s.k1) {
                s.k1 = gemm_least(g->k, s.k0 + blocks.slice);
                multiply_panels(&p, &blocks, &s, fp8, sums);
            }
        }
    }
    finish(&p.rest, EPA_GEMM_ROWS, fp8);
    if (p.rest.stream)
        _mm_sfence(); /* before the caller signals that C is complete */
    _tile_release();
}

/* ---- BF16 with one panel of A, whose products read B at memory speed ---- */

INLINED void add_few(const struct gemm_tile *t, bool lower)
{
    const char *a = t->a, *b = t->b;

    if (t->first)
        clear_tiles(lower);
    else
        load_tiles(t->c, by_row, lower);
    for (uint32_t k = 0; k < t->k; k += STEP, a += t->step, b += (size_t)16 * BYTES_OF_PAIRS) {
        _tile_loadd(6, b, BYTES_OF_PAIRS);
        _tile_loadd(7, b + 64, BYTES_OF_PAIRS);
        _tile_stream_loadd(4, a, PIECE);
        if (lower)
            _tile_stream_loadd(5, a + (size_t)16 * PIECE, PIECE);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        fetch_lines(t->ahead);
        if (lower) {
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    store_tiles(t->c, by_row, lower);
}

/* Also computes the rows up to the next 16: A and the sums have room for whole panels. */
static void tile_few(const struct gemm_tile *t, uint32_t rows)
{
    order_tile_memory();
    if (rows > 16)
        add_few(t, true);
    else
        add_few(t, false);
}

static void multiply_few(const struct epa_gemm_call *g)
{
    configure();
    gemm_multiply(g, (struct gemm_method){.dtype = EPA_BF16,
                                          .tile_rows = EPA_GEMM_ROWS,
                                          .rows = EPA_GEMM_ROWS,
                                          .block = SLICE,
                                          .slice = SLICE,
                                          .tile = tile_few});
    _tile_release();
}

static void multiply_bf16(const struct epa_gemm_call *g)
{
    if (g->m <= EPA_GEMM_ROWS)
        multiply_few(g);
    else
        multiply(g, false, NULL);
}

static void multiply_fp8(const struct epa_gemm_call *g)
{
    uint16_t decoded[2][DECODED * EPA_GEMM_COLS] __attribute__((aligned(64)));

    multiply(g, true, decoded);
}

static void round_of_tiles(void)
{
    _tile_dpbf16ps(0, 6, 7);
    _tile_dpbf16ps(1, 6, 7);
    _tile_dpbf16ps(2, 6, 7);
    _tile_dpbf16ps(3, 6, 7);
    _tile_dpbf16ps(4, 6, 7);
    _tile_dpbf16ps(5, 6, 7);
}

static double peak(void)
{
    double rate;

    configure(); /* all tiles are zero */
    rate = peak_of(round_of_tiles, 6.0 * 2 * 16 * 16 * 32);
    _tile_release();
    return rate;
}

const struct epa_gemm kernels_gemm_amx[2] = {
    {
        .isa = "amx",
        .dtype = EPA_BF16,
        .pack_a = kernels_avx512_pack_a,
        .pack_a_fp8 = kernels_avx512_pack_a_bf16,
        .pack_b = kernels_pack_b_pairs,
        .multiply = multiply_bf16,
        .peak = peak,
    },
    {
        .isa = "amx",
        .dtype = EPA_FP8_E4M3,
        .pack_a_fp8 = kernels_avx512_pack_a_codes,
        .pack_b = kernels_pack_b_codes,
        .multiply = multiply_fp8,
        .peak = peak,
    },
};
