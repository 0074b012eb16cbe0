/* Overhead of the public interface. */
#ifndef RANK_OVERHEAD_H
#define RANK_OVERHEAD_H

#include "session/rank.h"

/* Runs iterations through the public interface and directly in turns, in bench with `api`, and
 * stores their times. Collective. */
void rank_overhead_measure(struct rank *);

#endif
