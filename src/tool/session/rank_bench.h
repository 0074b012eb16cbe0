/* The verb bench without graphs. */
#ifndef RANK_BENCH_H
#define RANK_BENCH_H

#include "session/rank.h"

void rank_bench(struct rank *);

#endif
