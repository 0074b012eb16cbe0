/* Routing by MaxVio, the measure of load balance of "Auxiliary-Loss-Free Load Balancing
 * Strategy for Mixture-of-Experts": (load of the most loaded expert - mean load) / mean load.
 * Nothing is drawn that could miss it. Of all tokens of an iteration, on whatever rank, every
 * so many-th wants the one hot expert, as many as it takes; all other choices are dealt to
 * the other experts in turn, so that none of them has more than the mean, rounded up. */
#include "op/moe/routing_maxvio.h"

#include <math.h>

#include "config/experiment.h"
#include "base/random.h"
#include "op/moe/routing.h"

struct deal {
    uint64_t tokens, hot;                  /* of all ranks; how many want the hot expert */
    uint64_t first;                        /* the rank's first token among all */
    int32_t order[EXPERIMENT_EXPERTS_MAX]; /* experts; the hot one is the last */
};

static void shuffle(int32_t *item, uint32_t n, uint64_t key)
{
    struct random r = {.key = key};

    for (uint32_t i = n; i > 1; i--) {
        uint32_t other = random_below(&r, i);
        int32_t swap = item[i - 1];

        item[i - 1] = item[other];
        item[other] = swap;
    }
}

/* The hot expert is the same in all iterations, the order of the others is not. */
static void deal_init(struct deal *d, const struct experiment *x, uint32_t rank,
                      uint64_t iteration)
{
    uint32_t experts = x->moe.experts;
    double mean;

    d->tokens = d->first = 0;
    for (uint32_t r = 0; r < x->ranks; r++) {
        uint32_t tokens = routing_tokens_of(x, r, iteration);

        d->first += r < rank ? tokens : 0;
        d->tokens += tokens;
    }
    mean = (double)(d->tokens * x->moe.topk) / experts;
    d->hot = (uint64_t)fmax(round((1 + x->routing.violation) * mean), ceil(mean));
    d->hot = d->hot < d->tokens ? d->hot : d->tokens;
    for (uint32_t e = 0; e < experts; e++)
        d->order[e] = (int32_t)e;
    shuffle(d->order, experts, random_key(x->seed, RANDOM_POPULARITY, 0, 0));
    shuffle(d->order, experts - 1, random_key(x->seed, RANDOM_POPULARITY, 1, iteration));
}

/* Of the first n tokens of all, how many want the hot expert. */
static uint64_t hot_of(const struct deal *d, uint64_t n)
{
    return d->tokens > 0 ? n * d->hot / d->tokens : 0;
}

void routing_maxvio_fill(const struct experiment *x, uint32_t rank, uint64_t iteration,
                         uint32_t tokens, int32_t *expert)
{
    uint32_t topk = x->moe.topk, others = x->moe.experts - 1;
    struct deal d;

    deal_init(&d, x, rank, iteration);
    for (uint32_t t = 0; t < tokens; t++, expert += topk) {
        uint64_t nth = d.first + t, before = hot_of(&d, nth);
        uint64_t dealt = nth * topk - before;
        uint32_t k = 0;

        if (hot_of(&d, nth + 1) > before)
            expert[k++] = d.order[others];
        for (; k < topk; k++) /* at most `others` in a row, so distinct */
            expert[k] = d.order[dealt++ % others];
    }
}
