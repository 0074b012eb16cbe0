/* Routing with a given MaxVio: a part of routing.c. */
#ifndef ROUTING_MAXVIO_H
#define ROUTING_MAXVIO_H

#include <stdint.h>

struct experiment;

/* Choices of a rank's tokens, as routing_fill(): [tokens][topk]. */
void routing_maxvio_fill(const struct experiment *, uint32_t rank, uint64_t iteration,
                         uint32_t tokens, int32_t *expert);

/* The largest there can be: every token wants the hot expert. */
static inline double routing_maxvio_most(uint32_t experts, uint32_t topk)
{
    return (double)experts / topk - 1;
}

#endif
