/* Matrix kernels of AMX: TDPBF16PS on two by two tiles of 16 x 16 sums, with B in L1 and A in L2.
 *
 * Order of additions, for each element of C:
 *
 *   BF16  for each 32 of k, ascending: even = fma(a[k], b[k], even) of the even k, ascending, from
 *         +0; odd in the same way; then c = c + (even + odd), from +0
 *   FP8   p for each group of k in the same way; then c = fma(p, scale of A * scale of B, c), from
 *         +0, groups ascending
 *
 * The instruction treats denormals in A, B and sums as zeros, and returns zero instead of a
 * denormal. */
#include "kernels/gemm_avx512.h"
#include "kernels/gemm_scalar.h"
#include "kernels/sets.h"

enum {
    ROWS = 256,   /* rows of A, and */
    BLOCK = 2048, /* elements of k: 1 MiB of L2 */
    SLICE = 512,  /* elements of k: 32 KiB of B in L1 */
    /* Tiles: sums of rows 0-15 and columns 0-15 and 16-31, then of rows 16-31; rows; columns */
    BYTES_OF_SUMS = EPA_GEMM_COLS * 4, /* from row to row */
    BYTES_OF_PAIRS = EPA_GEMM_COLS * 4,
};

/* All eight tiles are 16 rows of 64 bytes. */
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

/* Fetches or decodes the share of this tile for 32 of k. */
INLINED void work_ahead(struct gemm_ahead *ahead, bool fp8)
{
    if (!fp8) {
        fetch_lines(ahead);
        return;
    }
    for (uint32_t i = 0; i < ahead->per_piece && ahead->steps > 0; i++, ahead->steps--) {
        decode_step((const uint8_t *)ahead->b, ahead->decoded);
        ahead->b += 64;
        ahead->decoded += 64;
    }
}

/* Adds products up to `end` of k to the sums; `lower`: the tile has more than 16 rows. A arrives
 * from L2 with the hint that keeps the slice of B in L1. */
INLINED void add(const struct gemm_tile *t, uint32_t k, uint32_t end, bool lower, bool fp8)
{
    const char *a = t->a + k / 32 * t->step, *b = t->b + (size_t)k * 64;

    for (; k < end; k += 32, a += t->step, b += (size_t)16 * BYTES_OF_PAIRS) {
        _tile_loadd(6, b, BYTES_OF_PAIRS);
        _tile_loadd(7, b + 64, BYTES_OF_PAIRS);
        _tile_stream_loadd(4, a, PIECE);
        if (lower)
            _tile_stream_loadd(5, a + (size_t)16 * PIECE, PIECE);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        work_ahead(t->ahead, fp8);
        if (lower) {
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
}

INLINED void clear_tiles(bool lower)
{
    _tile_zero(0);
    _tile_zero(1);
    if (lower) {
        _tile_zero(2);
        _tile_zero(3);
    }
}

INLINED void load_tiles(const float *c, bool lower)
{
    order_tile_memory();
    _tile_loadd(0, c, BYTES_OF_SUMS);
    _tile_loadd(1, c + 16, BYTES_OF_SUMS);
    if (lower) {
        _tile_loadd(2, c + (size_t)16 * EPA_GEMM_COLS, BYTES_OF_SUMS);
        _tile_loadd(3, c + (size_t)16 * EPA_GEMM_COLS + 16, BYTES_OF_SUMS);
    }
}

INLINED void store_tiles(float *c, bool lower)
{
    _tile_stored(0, c, BYTES_OF_SUMS);
    _tile_stored(1, c + 16, BYTES_OF_SUMS);
    if (lower) {
        _tile_stored(2, c + (size_t)16 * EPA_GEMM_COLS, BYTES_OF_SUMS);
        _tile_stored(3, c + (size_t)16 * EPA_GEMM_COLS + 16, BYTES_OF_SUMS);
    }
    order_tile_memory();
}

INLINED void sum_tiles(const struct gemm_tile *t, bool lower)
{
    if (t->first)
        clear_tiles(lower);
    else
        load_tiles(t->c, lower);
    add(t, 0, t->k, lower, false);
    store_tiles(t->c, lower);
}

/* Adds the sums of the group at k, times their scales, to C. */
static void add_scaled(const struct gemm_tile *t, uint32_t rows, uint32_t k, const float *sum)
{
    const float *a_scale = t->a_scale + k / t->group, b_scale = t->b_scale[k / GROUP];

    for (uint32_t i = 0; i < rows; i++, sum += EPA_GEMM_COLS) {
        float by = a_scale[i * t->a_scale_stride] * b_scale;
        float *c = t->c + (size_t)i * EPA_GEMM_COLS;

        for (uint32_t h = 0; h < EPA_GEMM_COLS; h += 16) {
            bool first = t->first && k == 0;
            __m512 c0 = first ? _mm512_setzero_ps() : _mm512_load_ps(c + h);
            __m512 s = _mm512_load_ps(sum + h);

            _mm512_store_ps(c + h, _mm512_fmadd_ps(s, _mm512_set1_ps(by), c0));
        }
    }
}

/* Scales one group while the tiles of the next group are computed: there is room for two. */
INLINED void scale_tiles(const struct gemm_tile *t, uint32_t rows, bool lower)
{
    float sum[2][EPA_GEMM_ROWS * EPA_GEMM_COLS] __attribute__((aligned(64)));
    uint32_t k = 0, turn = 0;

    order_tile_memory(); /* decoded weights */
    for (; k < t->k; k += t->group, turn ^= 1) {
        clear_tiles(lower);
        add(t, k, gemm_group_end(t, k), lower, true);
        store_tiles(sum[turn], lower);
        if (k > 0)
            add_scaled(t, rows, k - t->group, sum[turn ^ 1]);
    }
    add_scaled(t, rows, k - t->group, sum[turn ^ 1]);
}

/* Also computes the rows up to the next 16: A and the sums have room for whole panels. */
static void tile_bf16(const struct gemm_tile *t, uint32_t rows)
{
    order_tile_memory();
    if (rows > 16)
        sum_tiles(t, true);
    else
        sum_tiles(t, false);
}

static void tile_fp8(const struct gemm_tile *t, uint32_t rows)
{
    if (rows > 16)
        scale_tiles(t, rows, true);
    else
        scale_tiles(t, rows, false);
}

static void multiply_bf16(const struct epa_gemm_call *g)
{
    configure();
    gemm_multiply(g, (struct gemm_method){.dtype = EPA_BF16,
                                          .tile_rows = EPA_GEMM_ROWS,
                                          .rows = ROWS,
                                          .block = BLOCK,
                                          .slice = SLICE,
                                          .tile = tile_bf16});
    _tile_release();
}

static void multiply_fp8(const struct epa_gemm_call *g)
{
    configure();
    gemm_multiply(g, (struct gemm_method){.dtype = EPA_FP8_E4M3,
                                          .tile_rows = EPA_GEMM_ROWS,
                                          .rows = ROWS,
                                          .block = BLOCK,
                                          .slice = DECODED,
                                          .decode = decode_step,
                                          .tile = tile_fp8});
    _tile_release();
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
