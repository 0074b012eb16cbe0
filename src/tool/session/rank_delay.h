/* Waits of a rank, and delayed ranks for verify. */
#ifndef RANK_DELAY_H
#define RANK_DELAY_H

#include "session/rank.h"

/* Waits until `end` (epa_now_ns()) or the failure of a rank. Sleeps, except for the last `spin` ns,
 * which it polls. */
void rank_rest(const struct rank *, uint64_t end, uint64_t spin);
/* `spin` for exact times: upper bound of the delay of a sleep. */
enum { RANK_SPIN_NS = 150000 };

/* verify.straggle: delays random ranks, another set before each stage of each iteration. Before every
 * third stage only the last rank is late, by the full time, since among many ranks a random rank is
 * seldom the latest. */
void rank_straggle(const struct rank *, uint64_t iteration, uint32_t stage);

#endif
