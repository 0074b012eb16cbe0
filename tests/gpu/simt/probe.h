/* Kernels for probe.c: right, or with one fault that is to be found. */
#ifndef PROBE_H
#define PROBE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Each is a kernel, and waits for it. */
void probe_nothing(void);
void probe_lost_barrier(void);
void probe_other_barrier(void);
void probe_foreign_lane(void);
void probe_crooked_store(void);
void probe_behind_memory(void);

/* Looks until a row that comes as the time is up is found, by its first or its last packet; 0: never. */
unsigned probe_late_row(bool last);
/* Polls until a word that never comes is given up. */
unsigned probe_late_word(void);
/* Lanes that saw another state of a line than the others of their instruction. */
unsigned probe_torn_line(void);

/* ---- tiles, by kernels as they are written for Hopper ---- */

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

/* c[m][n] = a[m][k] * b[n][k]^T. m: a multiple of 64, n: of `columns`, which is 128 or 8, k: of 128
 * bytes. False: it did not run. */
struct tiles_product {
    enum tiles_type type;
    enum tiles_fault fault;
    uint32_t m, n, k, columns;
    const void *a, *b;
    float *c;
};
bool tiles_multiply(const struct tiles_product *);

/* A box of [rows][columns] 16-bit words, from element x, y on, goes to `out` as it stands in shared
 * memory. */
struct tiles_box {
    uint32_t columns, rows;
    uint32_t width, height; /* of the box */
    int32_t x, y;
    uint32_t swizzle_bytes;
    const uint16_t *from;
    uint16_t *out;
};
bool tiles_copy(const struct tiles_box *);
/* An 8 x 8 matrix of 16 bits. */
bool tiles_transpose(const uint16_t from[64], uint16_t out[64]);

#ifdef __cplusplus
}
#endif
#endif
