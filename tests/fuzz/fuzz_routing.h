/* What a parsed routing table promises, whatever the bytes were. */
#ifndef FUZZ_ROUTING_H
#define FUZZ_ROUTING_H

#include <stdlib.h>

#include "op/moe/routing.h"

static const struct routing_shape fuzz_shapes[] = {
    {.topk = 2, .experts = 8, .layer = UINT32_MAX},
    {.topk = 2, .experts = 8, .layer = 1},
};

static inline void fuzz_demand(int promise)
{
    if (!promise)
        abort();
}

/* Refused with a sentence that begins with the name, or rows that hold. Frees the table. */
static inline void fuzz_check_table(enum epa_status status, const struct epa_error *err,
                                    const struct routing_shape *shape, struct routing_table *t)
{
    uint32_t topk = shape->topk;

    if (status != EPA_OK) {
        fuzz_demand(err->status == status && err->text[0] == 'f' && err->text[1] == ':');
        return;
    }
    fuzz_demand(t->tokens != 0);
    for (uint64_t i = 0; i < t->tokens * topk; i++) {
        fuzz_demand(t->expert[i] >= -1 && t->expert[i] < (int32_t)shape->experts);
        fuzz_demand(t->weight[i] >= 0 && t->weight[i] <= 1e6f);
        for (uint64_t j = i - i % topk; j < i && t->expert[i] >= 0; j++)
            fuzz_demand(t->expert[j] != t->expert[i]);
    }
    free(t->expert);
    free(t->weight);
}

#endif
