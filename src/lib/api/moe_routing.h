/* Routes of a dispatch in memory of the caller (epa2a_received.routing), on hosts: the choices and
 * weights of this rank, from which the library repeats the dispatch. The memory has no pointers and
 * may be moved. */
#ifndef API_MOE_ROUTING_H
#define API_MOE_ROUTING_H

#include "api/moe_state.h"

#define MOE_ROUTING_MAGIC UINT64_C(0x6570613272747331) /* "epa2rts1" */

struct moe_routing {
    uint64_t magic;
    uint64_t owner;            /* of the moe */
    uint64_t route;            /* number of the routes of the moe */
    uint32_t max_tokens, topk; /* of the shape */
    uint32_t tokens;
    uint32_t weighted;
    /* [max_tokens][topk] of int32_t experts, then [max_tokens][topk] of float weights */
};

static inline size_t moe_routing_bytes(const struct epa2a_moe_shape *s)
{
    return sizeof(struct moe_routing) +
           (size_t)s->max_tokens * s->topk * (sizeof(int32_t) + sizeof(float));
}

static inline int32_t *moe_routing_expert(struct moe_routing *r)
{
    return (int32_t *)(void *)(r + 1);
}

static inline float *moe_routing_weight(struct moe_routing *r)
{
    return (float *)(void *)(moe_routing_expert(r) + (size_t)r->max_tokens * r->topk);
}

/* Returns the routes in memory of the caller; NULL: the memory has no routes of this moe. */
static inline struct moe_routing *moe_routing_of(const struct epa2a_moe *moe, void *memory)
{
    struct moe_routing *r = memory;
    bool valid = r != NULL && r->magic == MOE_ROUTING_MAGIC && r->owner == moe->owner &&
                 r->route <= moe->routes && r->tokens <= moe->plan.shape.max_tokens;

    return valid ? r : NULL;
}

#endif
