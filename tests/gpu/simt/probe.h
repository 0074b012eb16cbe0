/* Kernels for probe.c: correct ones, and kernels with one fault that the emulator must find. */
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
    PROBE_CLUSTER, /* correct: two blocks send each other a number */
    PROBE_CLUSTER_EARLY,
    PROBE_CLUSTER_ENDED,
    /* Faults in a product of tiles, written like kernels for Hopper. */
    TILES_RIGHT,
    TILES_PADDING,       /* correct: structs of the lanes differ in their padding */
    TILES_EARLY_SUM,     /* reads sums before the wait for wgmma */
    TILES_EARLY_RELEASE, /* releases a stage before the wait */
    TILES_NO_FULL,       /* no wait for loads */
    TILES_PARITY,        /* waits for the wrong phase before loads */
    TILES_BYTES,         /* expects more bytes than arrive */
    TILES_NO_FENCE,      /* no fence between stores of threads and a bulk store */
    TILES_EARLY_FENCE,   /* fence before those stores */
    TILES_NO_WGMMA_FENCE,
    TILES_NO_READ_WAIT, /* overwrites shared memory while a store reads it */
    TILES_NO_STORE_WAIT,
    TILES_NO_INIT_FENCE,
    TILES_ODD_LANE, /* one lane does not issue wgmma */
    TILES_OTHER_DESCRIPTOR,
    TILES_NAMED,     /* a named barrier with two numbers of threads */
    TILES_REGISTERS, /* more registers than available */
    TILES_ODD_REGISTERS,
    TILES_CROOKED, /* a tile that does not begin at a multiple of 1024 */
};

/* Launches a kernel and waits for it. Returns the number of wrong elements of its product. */
unsigned probe_run(enum probe_fault);

/* Polls until a row that arrives at the time limit is found by its first or last packet. Returns 0
 * if it is never found. */
unsigned probe_late_row(bool last);
/* Returns the number of polls until a wait for a missing word times out. */
unsigned probe_late_word(void);
/* Returns the time limits that a wait for a missing word lasts after a pause of the host, in which
 * it had no beat for ten time limits. Negative: the wait did not time out. */
double probe_suspended_word(void);
/* Returns the number of time-outs at the first looks after a pause of the waiting thread. */
unsigned probe_stalled_word(void);
/* Returns the number of lanes that saw another state of a line than other lanes of their
 * instruction. */
unsigned probe_torn_line(void);

#ifdef __cplusplus
}
#endif
#endif
