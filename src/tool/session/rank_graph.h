/* The verb bench with graphs. */
#ifndef RANK_GRAPH_H
#define RANK_GRAPH_H

#include "session/rank.h"

void rank_bench_graph(struct rank *);

void rank_graphs_destroy(struct rank *);

#endif
