/* Routes of a dispatch in memory of the caller (epa2a_received.routing), on hosts: the choices and
 * weights of this rank, from which the library repeats the dispatch. The memory has no pointers and
 * may be moved. */
#ifndef API_MOE_ROUTING_H
#define API_MOE_ROUTING_H

#include <epa2a.h>

#include <stdbool.h>
#include <string.h>

#define MOE_ROUTING_MAGIC UINT64_C(0x6570613272747331) /* "epa2rts1" */

struct moe_routing {
    uint64_t magic;
    uint64_t route; /* number of the routes of the moe */
    uint32_t max_tokens, topk, experts, rank;
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

/* Returns the routes in memory of the caller; NULL: the memory has no routes of such a moe. */
static inline struct moe_routing *moe_routing_of(void *memory, const struct epa2a_moe_shape *s,
                                                 uint32_t rank)
{
    struct moe_routing *r = memory;
    bool valid = r != NULL && r->magic == MOE_ROUTING_MAGIC && r->max_tokens == s->max_tokens &&
                 r->topk == s->topk && r->experts == s->experts && r->rank == rank &&
                 r->tokens <= s->max_tokens;

    return valid ? r : NULL;
}

#endif
