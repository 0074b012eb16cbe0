/* Kernels that do what is wrong in CUDA, and one that has run out of time, for probe.c. */
#ifndef PROBE_H
#define PROBE_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif
void probe_nothing(void);       /* all is well */
void probe_lost_barrier(void);  /* a __syncthreads that one thread never reaches */
void probe_other_barrier(void); /* two kinds of __syncthreads at once */
void probe_foreign_lane(void);  /* a shuffle from a lane that takes no part */
void probe_crooked_store(void); /* 16 bytes to a place that is no multiple of 16 */
void probe_behind_memory(void); /* a store behind what was allocated */
/* How often a row is looked at that comes when the time is up: its first line, or with `last`
 * its last. 0: it was not found. */
unsigned probe_late_row(bool last);
/* Lanes that find a line not as its last lane does, which finds all of it there, where another
 * warp stores it meanwhile. */
unsigned probe_torn_line(void);
/* Polls of a word that never comes until the time is up, which it is at the second look at the
 * clock. */
unsigned probe_late_word(void);
#ifdef __cplusplus
}
#endif

#endif
