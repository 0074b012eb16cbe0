/* Kernels for probe.c: right, or with one fault that is to be found. */
#ifndef PROBE_H
#define PROBE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum probe_fault {
    PROBE_NONE,
    PROBE_LOST_BARRIER,
    PROBE_OTHER_BARRIER,
    PROBE_FOREIGN_LANE,
    PROBE_CROOKED_STORE,
    PROBE_BEHIND_MEMORY,
    PROBE_CLUSTER, /* right: two blocks tell each other a number */
    PROBE_CLUSTER_EARLY,
    PROBE_CLUSTER_ENDED,
    /* Of a product of tiles, as kernels for Hopper are written. */
    TILES_RIGHT,
    TILES_PADDING,       /* right as well: lanes' structs differ in bytes that are nobody's */
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

/* Launches such a kernel and waits for it. Elements of its product that are wrong. */
unsigned probe_run(enum probe_fault);

/* Looks until a row that comes as the time is up is found, by its first or its last packet; 0:
 * never. */
unsigned probe_late_row(bool last);
/* Polls until a word that never comes is given up. */
unsigned probe_late_word(void);
/* Lanes that saw another state of a line than the others of their instruction. */
unsigned probe_torn_line(void);

#ifdef __cplusplus
}
#endif
#endif
