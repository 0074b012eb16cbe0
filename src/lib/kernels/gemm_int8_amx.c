/* Matrix kernel of INT8 for AMX: TDPBSSD on two by two tiles of 16 x 16 sums in int32, with B in L1 and A
 * in L2. */
#include "kernels/gemm_int8_loops.h"

enum {
    ROWS = INT8_ROWS,                   /* rows of A, and */
    BLOCK = 64,                         /* steps of k: 1 MiB of L2 */
    SLICE = 16,                         /* steps of k: 32 KiB of B in L1 */
    BYTES_OF_SUMS = EPA_GEMM_COLS * 4,  /* from row to row */
    BYTES_OF_FOURS = EPA_GEMM_COLS * 4, /* the same of B */
};

/* All eight tiles are 16 rows of 64 bytes. */
static void configure(void)
{
    struct {
        uint8_t id, start, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } palette __attribute__((aligned(64))) = {.id = 1};

    for (int i = 0; i < 8; i++) {
        palette.row_bytes[i] = 64;
        palette.rows[i] = 16;
    }
    _tile_loadconfig(&palette);
}

/* Compiler barrier: some compilers do not know the memory accesses of tile instructions. */
static inline void order_tile_memory(void)
{
    __asm__ volatile("" ::: "memory");
}

/* Also computes the rows up to the next 16: A and the sums have room for whole panels. A arrives from
 * L2 with the hint that keeps the slice of B in L1. */
INLINED void multiply_tile(const struct int8_tile *t, bool lower)
{
    int32_t *low = t->c + (size_t)16 * EPA_GEMM_COLS;
    const char *a = t->a, *b = t->b;

    if (t->first) {
        _tile_zero(0);
        _tile_zero(1);
        if (lower) {
            _tile_zero(2);
            _tile_zero(3);
        }
    } else {
        _tile_loadd(0, t->c, BYTES_OF_SUMS);
        _tile_loadd(1, t->c + 16, BYTES_OF_SUMS);
        if (lower) {
            _tile_loadd(2, low, BYTES_OF_SUMS);
            _tile_loadd(3, low + 16, BYTES_OF_SUMS);
        }
    }
    for (uint32_t s = 0; s < t->steps; s++, a += INT8_A_STEP, b += INT8_B_STEP) {
        _tile_loadd(6, b, BYTES_OF_FOURS);
        _tile_loadd(7, b + 64, BYTES_OF_FOURS);
        _tile_stream_loadd(4, a, INT8_STEP);
        if (lower)
            _tile_stream_loadd(5, a + (size_t)16 * INT8_STEP, INT8_STEP);
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        int8_fetch(t->ahead);
        if (lower) {
            _tile_dpbssd(2, 5, 6);
            _tile_dpbssd(3, 5, 7);
        }
    }
    _tile_stored(0, t->c, BYTES_OF_SUMS);
    _tile_stored(1, t->c + 16, BYTES_OF_SUMS);
    if (lower) {
        _tile_stored(2, low, BYTES_OF_SUMS);
        _tile_stored(3, low + 16, BYTES_OF_SUMS);
    }
}

static void tile(const struct int8_tile *t, uint32_t rows)
{
    order_tile_memory();
    if (rows > 16)
        multiply_tile(t, true);
    else
        multiply_tile(t, false);
    order_tile_memory();
}

static void multiply_int8(const struct epa_gemm_call *g)
{
    configure();
    int8_multiply(g, (struct int8_method){.tile_rows = EPA_GEMM_ROWS,
                                          .rows = ROWS,
                                          .block = BLOCK,
                                          .slice = SLICE,
                                          .tile = tile});
    _tile_release();
}

static void round_of_tiles(void)
{
    _tile_dpbssd(0, 6, 7);
    _tile_dpbssd(1, 6, 7);
    _tile_dpbssd(2, 6, 7);
    _tile_dpbssd(3, 6, 7);
    _tile_dpbssd(4, 6, 7);
    _tile_dpbssd(5, 6, 7);
}

static double peak(void)
{
    double rate;

    configure(); /* all tiles are zero */
    rate = peak_of(round_of_tiles, 6.0 * 2 * 16 * 16 * 64);
    _tile_release();
    return rate;
}

const struct epa_gemm kernels_gemm_int8_amx = {
    .isa = "amx",
    .dtype = EPA_INT8,
    .pack_a = kernels_pack_a_int8,
    .pack_b = kernels_pack_b_int8,
    .multiply = multiply_int8,
    .peak = peak,
};
