/* World of a rank, from facts that the ranks exchange: nodes, local ranks, cores and interface. */
#ifndef WORLD_H
#define WORLD_H

#include <epa2a/world.h>

#include "boot/exchange.h"

struct world_facts {
    int32_t *pid;   /* [ranks] process of each rank of this node; 0: of another node */
    uint32_t *node; /* [ranks] */
    uint32_t nodes;
    uint32_t leader;    /* lowest rank of this node */
    uint32_t in_leader; /* ranks of this node in the process of the leader */
    char interface[16]; /* as in epa_world */
};

/* Collective: fills `out` and `facts`. Fails on all ranks if `fingerprint`, lines "key: value", differs
 * between ranks, and names the first rank and line. */
enum epa_status world_find(struct exchange *, const char *fingerprint, struct epa_world *out,
                           struct world_facts *facts, struct epa_error *);
void world_facts_finish(struct world_facts *); /* accepts a zeroed struct */

#endif
