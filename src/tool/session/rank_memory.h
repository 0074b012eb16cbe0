/* verify: growth of memory. */
#ifndef RANK_MEMORY_H
#define RANK_MEMORY_H

#include "session/rank.h"

/* Checks the growth of memory; `iterations` of verify are complete. */
void rank_memory_check(struct rank *, uint64_t iterations);

#endif
