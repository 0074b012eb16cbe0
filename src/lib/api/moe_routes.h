/* Routes in memory of a device (epa2a_received.routing): int32_t experts, then float weights, each
 * [max_tokens][topk]. The host cannot read this memory within a CUDA graph, so the moe lists the
 * addresses of all routes with the facts that calls need. */
#ifndef API_MOE_ROUTES_H
#define API_MOE_ROUTES_H

#include <epa2a/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moe_route {
    char *memory;    /* of the caller */
    uint64_t number; /* of the routes of the moe: 1, 2 ... */
    uint32_t tokens;
    bool weighted; /* the source passed weights to dispatch */
};

struct moe_routes {
    struct moe_route *route;
    size_t n, room;
};

/* Makes room for one more entry. EPA_ERR_NOMEM: out of memory. */
EPA_CHECKED enum epa_status moe_routes_reserve(struct moe_routes *, struct epa_error *);
/* Adds an entry, after moe_routes_reserve(). New routes overwrite all routes in the same `bytes` bytes,
 * so the entries of those are removed. The list is thus as long as the memory of the caller
 * permits. */
void moe_routes_add(struct moe_routes *, struct moe_route, size_t bytes);
/* Returns the entry of the routes at `memory`; NULL: there are no routes. */
const struct moe_route *moe_routes_find(const struct moe_routes *, const void *memory);
void moe_routes_finish(struct moe_routes *);

#endif
