/* Queue pairs between all ranks: made, told to the others, connected. */
#ifndef CONNECT_H
#define CONNECT_H

#include <epa2a/world.h>

#include "device.h"
#include "queue.h"

/* Of the queue pair to one rank. */
struct card_pair {
    uint32_t number, first_psn; /* first_psn: of the first packet that it sends */
};

/* What a rank tells the others of itself. */
struct card {
    uint64_t base; /* address of its segment */
    uint32_t key;
    uint32_t lid, mtu, link, reads; /* reads: additions in flight that it takes */
    uint8_t gid[GID_BYTES];
    struct card_pair to[]; /* each rank */
};

struct connect_params {
    struct epa_bootstrap *boot;
    const struct config *config;
    const struct device *device;
    uint64_t base; /* of the own segment */
    uint32_t key, slots;
};

/* A queue pair for each rank, this one included, and the completion queue. What there is of
 * them when it fails, disconnect_all() takes. */
enum epa_status connect_create(const struct connect_params *, struct queues *, struct epa_error *);

/* Collective. `mtu` is what the pair of ranks with the least of it has. */
enum epa_status connect_all(const struct connect_params *, struct queues *, uint32_t *mtu,
                            struct epa_error *);
void disconnect_all(struct queues *);

/* What two ranks must have in common. */
enum epa_status connect_compare(const struct card *mine, uint32_t rank, const struct card *peers,
                                uint32_t peer, struct epa_error *);

#endif
