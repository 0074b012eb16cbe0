/* Emulates the tile instructions of AMX in plain C after Intel's manual (volume 2: TDPBF16PS,
 * TDPBSSD, TILELOADD, TILESTORED, LDTILECFG), so that their kernels run on any CPU. The emulation aborts
 * where the instruction would fault: a tile that is not configured, sizes that do not match. */
#ifndef AMX_TILES_H
#define AMX_TILES_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"

struct emulated_tiles {
    int configured;
    uint16_t row_bytes[8];
    uint8_t rows[8], byte[8][16][64];
};

static _Thread_local struct emulated_tiles emulated;

static inline void emulated_must(int holds)
{
    if (!holds)
        abort();
}

static inline void emulated_loadconfig(const void *config)
{
    const uint8_t *c = config;

    memset(&emulated, 0, sizeof(emulated));
    emulated_must(c[0] == 1 && c[1] == 0);
    for (int i = 2; i < 16; i++)
        emulated_must(c[i] == 0);
    memcpy(emulated.row_bytes, c + 16, sizeof(emulated.row_bytes));
    memcpy(emulated.rows, c + 48, sizeof(emulated.rows));
    for (int i = 0; i < 8; i++) {
        emulated_must(emulated.row_bytes[i] <= 64 && emulated.rows[i] <= 16);
        emulated_must(c[32 + 2 * i] == 0 && c[33 + 2 * i] == 0 && c[56 + i] == 0);
    }
    emulated.configured = 1;
}

static inline void emulated_release(void)
{
    memset(&emulated, 0, sizeof(emulated));
}

static inline void emulated_zero(int tile)
{
    emulated_must(emulated.configured && emulated.rows[tile] > 0);
    memset(emulated.byte[tile], 0, sizeof(emulated.byte[tile]));
}

static inline void emulated_loadd(int tile, const void *base, size_t stride)
{
    emulated_zero(tile);
    for (int i = 0; i < emulated.rows[tile]; i++)
        memcpy(emulated.byte[tile][i], (const char *)base + (size_t)i * stride,
               emulated.row_bytes[tile]);
}

static inline void emulated_stored(int tile, void *base, size_t stride)
{
    emulated_must(emulated.configured && emulated.rows[tile] > 0);
    for (int i = 0; i < emulated.rows[tile]; i++)
        memcpy((char *)base + (size_t)i * stride, emulated.byte[tile][i], emulated.row_bytes[tile]);
}

/* The instruction treats denormal inputs and outputs as zeros. */
static inline float emulated_flush(float f)
{
    return fabsf(f) < 0x1p-126f ? copysignf(0.0f, f) : f;
}

static inline float emulated_fma(uint16_t a, uint16_t b, float c)
{
    float x = emulated_flush(float_of_bf16(a)), y = emulated_flush(float_of_bf16(b));

    return emulated_flush(fmaf(x, y, c));
}

static inline void emulated_dpbf16ps(int sums, int a, int b)
{
    emulated_must(emulated.configured && emulated.rows[sums] == emulated.rows[a]);
    emulated_must(emulated.row_bytes[sums] == emulated.row_bytes[b]);
    emulated_must(emulated.row_bytes[a] == 4 * emulated.rows[b] && sums != a && sums != b &&
                  a != b);
    for (int i = 0; i < emulated.rows[sums]; i++) {
        const int columns = emulated.row_bytes[sums] / 4;
        float even[16] = {0.0f}, odd[16] = {0.0f};

        /* The columns are the innermost loop, so that compilers make vectors of them. */
        for (int k = 0; k < emulated.row_bytes[a] / 4; k++) {
            uint16_t x[2], y[16][2];

            memcpy(x, emulated.byte[a][i] + 4 * k, 4);
            memcpy(y, emulated.byte[b][k], sizeof(y));
            for (int j = 0; j < columns; j++) {
                even[j] = emulated_fma(x[0], y[j][0], even[j]);
                odd[j] = emulated_fma(x[1], y[j][1], odd[j]);
            }
        }
        for (int j = 0; j < columns; j++) {
            float c;

            memcpy(&c, emulated.byte[sums][i] + 4 * j, 4);
            c = emulated_flush(emulated_flush(c) + emulated_flush(even[j] + odd[j]));
            memcpy(emulated.byte[sums][i] + 4 * j, &c, 4);
        }
    }
}

static inline void emulated_dpbssd(int sums, int a, int b)
{
    emulated_must(emulated.configured && emulated.rows[sums] == emulated.rows[a]);
    emulated_must(emulated.row_bytes[sums] == emulated.row_bytes[b]);
    emulated_must(emulated.row_bytes[a] == 4 * emulated.rows[b] && sums != a && sums != b &&
                  a != b);
    for (int i = 0; i < emulated.rows[sums]; i++) {
        for (int j = 0; j < emulated.row_bytes[sums] / 4; j++) {
            int32_t c;

            memcpy(&c, emulated.byte[sums][i] + 4 * j, 4);
            for (int k = 0; k < emulated.row_bytes[a]; k++)
                c +=
                    (int8_t)emulated.byte[a][i][k] * (int8_t)emulated.byte[b][k / 4][4 * j + k % 4];
            memcpy(emulated.byte[sums][i] + 4 * j, &c, 4);
        }
    }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_loadconfig emulated_loadconfig
#define _tile_release emulated_release
#define _tile_zero emulated_zero
#define _tile_loadd emulated_loadd
#define _tile_stream_loadd emulated_loadd
#define _tile_stored emulated_stored
#define _tile_dpbf16ps emulated_dpbf16ps
#define _tile_dpbssd emulated_dpbssd

#endif
