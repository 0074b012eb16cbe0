/* Products of tiles, and copies of boxes, for tiles.c: kernels as they are written for Hopper,
 * right or with one fault. */
#ifndef TILES_H
#define TILES_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum tiles_fault {
    TILES_RIGHT,
    TILES_EARLY_SUM,     /* sums are read before wgmma is waited for */
    TILES_EARLY_RELEASE, /* a stage is given back before */
    TILES_NO_FULL,       /* nobody waits for loads */
    TILES_PARITY,        /* the phase that loads wait for is the wrong one */
    TILES_BYTES,         /* more bytes are expected than come */
    TILES_NO_FENCE,      /* of threads' stores before a bulk store */
    TILES_EARLY_FENCE,   /* before those stores */
    TILES_NO_WGMMA_FENCE,
    TILES_NO_READ_WAIT, /* shared memory is written again while a store reads it */
    TILES_NO_STORE_WAIT,
    TILES_NO_INIT_FENCE,
    TILES_ODD_LANE, /* a lane does not issue wgmma */
    TILES_OTHER_DESCRIPTOR,
    TILES_NAMED,     /* a named barrier of two numbers of threads */
    TILES_REGISTERS, /* more than there are */
    TILES_ODD_REGISTERS,
    TILES_CROOKED, /* a tile that does not begin at a multiple of 1024 */
};

enum tiles_type { TILES_BF16, TILES_F16, TILES_E4M3 };

/* c[m][n] = a[m][k] * b[n][k]^T. m: a multiple of 64 * cluster, n: of `columns`, which is 128 or
 * 8, k: of 128 bytes. Blocks of a cluster (1 or 2) share what they load of b. False: it did not
 * run. */
struct tiles_product {
    enum tiles_type type;
    enum tiles_fault fault;
    uint32_t m, n, k, columns, cluster;
    const void *a, *b;
    float *c;
};
bool tiles_multiply(const struct tiles_product *);

/* A box of [planes][rows][columns] 16-bit words, from element x, y, z on. In shared memory,
 * where it stands as a tensor load writes it, it is copied to `out`; then the box, with 1000
 * added to each word, is stored from there at the same place of `back`, a tensor as large, if
 * that has one plane. */
struct tiles_box {
    uint32_t columns, rows, planes;
    uint32_t width, height, depth; /* of the box */
    int32_t x, y, z;
    uint32_t swizzle_bytes;
    const uint16_t *from;
    uint16_t *out, *back;
};
bool tiles_copy(const struct tiles_box *);

/* Sums of float32 by bulk copies of all blocks: out[i] = blocks * from[i]. */
bool tiles_add(const float *from, float *out, uint32_t n, uint32_t blocks);
/* out[i * 32 + j] = transposed[...]: an 8 x 8 matrix of 16 bits. */
bool tiles_transpose(const uint16_t from[64], uint16_t out[64]);

#ifdef __cplusplus
}
#endif
#endif
