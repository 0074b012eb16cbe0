/* Which ranks share memory, and which share cores. */
#ifndef NODES_H
#define NODES_H

#include <stddef.h>
#include <stdint.h>

/* Of this host, as texts: `machine` is alike where the kernel, and so the cores, are the
 * same; `identity` where memory can be shared, too. */
struct nodes_host {
    char name[72], machine[72], identity[288];
};
void nodes_host(struct nodes_host *out);

struct nodes_rank {
    const char *machine, *identity;
    const unsigned char *mask; /* cores that it may use, a bit each */
    size_t mask_bytes;
    /* Out: as in epa_world; and the ranks that may use the very same cores: which of how
     * many this one is. */
    uint32_t node, local_cores, share, shares;
};

/* per_node: ranks of one host that count as one node; 0: all. */
void nodes_find(struct nodes_rank *rank, uint32_t n, uint32_t per_node);

#endif
