/* Stop rules of bench between ranks. */
#ifndef RANK_STOP_H
#define RANK_STOP_H

#include "session/rank.h"

/* Creates the state of the stop rule before the first iteration of bench; no effect without a rule. */
void rank_stop_create(struct rank *);
void rank_stop_destroy(struct rank *);

/* Returns true if the number of samples is sufficient. All ranks call it between samples, and with
 * `samples` 0 after each block of warm-up, and obtain the same result. */
bool rank_stop_poll(struct rank *, uint64_t samples);

#endif
