/* Nodes: ranks that share memory, and ranks that share cores. */
#ifndef NODES_H
#define NODES_H

#include <stddef.h>
#include <stdint.h>

/* Texts that name the host of this process. Processes with the same `machine` run on one kernel and
 * its cores, with the same `network` they reach each other by the loopback interface, and with the
 * same `identity` they can map each other's memory. */
struct nodes_host {
    char name[72], machine[72], network[112], identity[320];
};
void nodes_host(struct nodes_host *out);

struct nodes_rank {
    const char *machine, *identity;
    const unsigned char *mask; /* affinity mask */
    size_t mask_bytes;
    /* Results. node and local_cores as in epa_world; shares: number of ranks with an identical mask;
     * share: index of this rank among them. */
    uint32_t node, local_cores, share, shares;
};

/* per_node: number of ranks of one host that form a node; 0: all ranks of the host. */
void nodes_find(struct nodes_rank *rank, uint32_t n, uint32_t per_node);

#endif
