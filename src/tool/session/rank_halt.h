/* verify.stop: a rank that stops. */
#ifndef RANK_HALT_H
#define RANK_HALT_H

#include "session/rank.h"

/* Returns true if verify.stop is set. rank_halt() then ends the run, and a barrier of the transport is
 * impossible after it. */
bool rank_is_halted(const struct rank *);
/* Runs the stop of the last rank after the last iteration of verify. Collective. */
void rank_halt(struct rank *);

#endif
