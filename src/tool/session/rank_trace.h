/* Trace record of a rank: names and clock offset. */
#ifndef RANK_TRACE_H
#define RANK_TRACE_H

#include "session/rank.h"

/* Begins the trace record; called before transport and algorithm exist, since both register names.
 * No effect without a profile. */
void rank_trace_begin(struct rank *);
/* Registers the stages and compares the clocks of hosts. Collective; called with the algorithm
 * created. */
void rank_trace_ready(struct rank *);
/* Compares the clocks again. Collective; called after the last iteration of all ranks. */
void rank_trace_end(struct rank *);
/* Discards later events: they belong to no iteration. */
void rank_trace_pause(struct rank *);

#endif
