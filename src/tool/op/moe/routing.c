/* Routing: each token draws its choices from its own random stream, so that its choices do not depend on
 * the number of tokens. Popularity (zipf, lognormal) is a tree of integer sums: a draw descends the tree,
 * removes the drawn expert, and restores all experts after the last choice of the token. Integer sums make
 * the removal exact. */
#include "op/moe/routing.h"

#include <math.h>
#include <string.h>

#include "op/problem_params.h"
#include "base/random.h"
#include "op/moe/weights.h"
#include "op/op.h"

enum { ROUTING_REPEATS_LEAST = 8 }; /* tokens; fewer tokens often have a majority by chance */
#define ROUTING_WEIGHT_MAX 4.0f     /* of routing.weights: signed */

struct popularity {
    uint32_t leaves;                        /* a power of two; expert e is node leaves + e */
    uint64_t node[2 * PROBLEM_EXPERTS_MAX]; /* node i is the sum of 2i and 2i + 1 */
    uint64_t weight[PROBLEM_EXPERTS_MAX];   /* weight of each expert without removal */
};

/* Returns the choices that more than half of the `n` tokens have (Boyer and Moore); NULL: no such
 * choices. */
static const int32_t *majority(const int32_t *token, uint64_t n, uint32_t topk)
{
    const int32_t *candidate = token;
    uint64_t lead = 0, found = 0;

    for (uint64_t i = 0; i < n; i++) {
        const int32_t *one = token + i * topk;

        if (lead == 0)
            candidate = one;
        lead += lead == 0 || memcmp(one, candidate, topk * sizeof(*one)) == 0 ? 1 : UINT64_MAX;
    }
    for (uint64_t i = 0; i < n; i++)
        found += memcmp(token + i * topk, candidate, topk * sizeof(*candidate)) == 0;
    return 2 * found > n ? candidate : NULL;
}

/* Windows of tokens with a majority of one token: the number of such windows among the first `counted`;
 * the number of repeated tokens; and the end of the last repeated token in the leading sequence of such
 * windows. */
struct repeats {
    uint64_t windows, tokens, leading;
};

static struct repeats find_repeats(const struct routing_table *t, uint64_t tokens, uint64_t step,
                                   uint64_t counted)
{
    struct repeats r = {0, 0, 0};
    bool all = true; /* all windows so far have a majority */

    for (uint64_t from = 0, i = 0; from < tokens && (i < counted || all); from += step, i++) {
        uint64_t n = tokens - from < step ? tokens - from : step;
        const int32_t *token = t->expert + from * t->topk;
        const int32_t *one = n < ROUTING_REPEATS_LEAST ? NULL : majority(token, n, t->topk);

        all = all && one != NULL;
        r.windows += i < counted && one != NULL;
        for (uint64_t k = 0; one != NULL && k < n; k++) {
            if (memcmp(token + k * t->topk, one, t->topk * sizeof(*one)) != 0)
                continue;
            r.tokens++;
            r.leading = all ? from + k + 1 : r.leading;
        }
    }
    return r;
}

uint64_t routing_warmup(const struct routing_table *t, uint64_t *repeated)
{
    struct repeats r = find_repeats(t, t->tokens, ROUTING_WARMUP_TOKENS, UINT64_MAX);

    *repeated = r.tokens;
    return r.leading;
}

uint64_t routing_period(const struct op_source *source, const struct problem_params *x)
{
    uint64_t tokens = UINT64_MAX;

    if (source != NULL && source->table.tokens != 0)
        tokens = source->table.tokens;
    if (source != NULL && source->hidden.tokens != 0 && source->hidden.tokens < tokens)
        tokens = source->hidden.tokens;
    return tokens == UINT64_MAX ? tokens : tokens / ((uint64_t)x->ranks * x->moe.max_tokens);
}

uint64_t routing_repeats(const struct op_source *source, const struct problem_params *x,
                         uint64_t iterations, uint64_t *leading)
{
    uint64_t step = (uint64_t)x->ranks * x->moe.max_tokens, period = routing_period(source, x);
    struct repeats r = {0, 0, 0};

    if (source != NULL && source->table.tokens != 0 && step >= ROUTING_REPEATS_LEAST)
        r = find_repeats(&source->table, period * step, step, iterations);
    *leading = r.leading;
    return r.windows;
}

/* Returns the first row of the window of (rank, iteration) in a table with `rows` rows. */
static uint64_t window_begin(const struct problem_params *x, uint32_t rank, uint64_t iteration,
                             uint64_t rows)
{
    uint64_t step = (uint64_t)x->ranks * x->moe.max_tokens % rows;
    uint64_t start = (uint64_t)rank * x->moe.max_tokens % rows;

    /* The readers limit rows to less than 2^32, so no product overflows. */
    return (iteration % rows * step + start) % rows;
}

uint32_t routing_tokens_of(const struct problem_params *x, uint32_t rank, uint64_t iteration)
{
    return op_tokens_of(x, x->moe.max_tokens, rank, iteration);
}

static void add_along(struct popularity *p, uint32_t expert, uint64_t weight)
{
    for (uint32_t i = p->leaves + expert; i != 0; i /= 2)
        p->node[i] += weight; /* unsigned: adding 0 - weight subtracts */
}

/* Writes the logarithm of the popularity of each expert to `out`. */
static void popularity_logs(const struct problem_params *x, double *out)
{
    struct random r = {.key = random_key(x->seed, RANDOM_POPULARITY, 0, 0)};
    uint32_t n = x->moe.experts;

    for (uint32_t e = 0; e < n; e++) {
        if (x->routing.kind == ROUTING_ZIPF) {
            out[e] = -x->routing.exponent * log((double)e + 1);
        } else { /* Box-Muller */
            double radius = sqrt(-2 * log(1 - random_unit(&r)));

            out[e] = x->routing.sigma * radius * cos(6.283185307179586 * random_unit(&r));
        }
    }
    /* Shuffles the experts, so that popular ones are not neighbours on rank 0. */
    for (uint32_t e = n - 1; e > 0; e--) {
        uint32_t other = random_below(&r, e + 1);
        double swap = out[e];

        out[e] = out[other];
        out[other] = swap;
    }
}

/* The most popular expert weighs 2^31 and each at least 1, so topk distinct choices always exist. */
static void popularity_init(struct popularity *p, const struct problem_params *x)
{
    double logs[PROBLEM_EXPERTS_MAX], top = -INFINITY;
    uint32_t n = x->moe.experts;

    popularity_logs(x, logs);
    for (uint32_t e = 0; e < n; e++)
        top = logs[e] > top ? logs[e] : top;
    p->leaves = 1;
    while (p->leaves < n)
        p->leaves *= 2;
    for (uint32_t e = 0; e < p->leaves; e++) {
        p->weight[e] = e < n ? 1 + (uint64_t)(exp(logs[e] - top) * 0x1p31) : 0;
        p->node[p->leaves + e] = p->weight[e];
    }
    for (uint32_t i = p->leaves - 1; i != 0; i--)
        p->node[i] = p->node[2 * i] + p->node[2 * i + 1];
}

static uint32_t popularity_draw(const struct popularity *p, struct random *r)
{
    /* Sums are below 2^44, so the rounded product is less than the sum. */
    uint64_t v = (uint64_t)(random_unit(r) * (double)p->node[1]);
    uint32_t i = 1;

    while (i < p->leaves) {
        i *= 2;
        if (v >= p->node[i])
            v -= p->node[i++];
    }
    return i - p->leaves;
}

static void choose_popular(struct popularity *p, struct random *r, uint32_t topk, int32_t *expert)
{
    for (uint32_t k = 0; k < topk; k++) {
        uint32_t e = popularity_draw(p, r);

        expert[k] = (int32_t)e;
        add_along(p, e, 0 - p->weight[e]);
    }
    for (uint32_t k = 0; k < topk; k++)
        add_along(p, (uint32_t)expert[k], p->weight[expert[k]]);
}

static bool among(const int32_t *expert, uint32_t n, int32_t e)
{
    for (uint32_t k = 0; k < n; k++)
        if (expert[k] == e)
            return true;
    return false;
}

/* Draws the choices `from` to topk - 1: distinct, with equal probability for all experts. */
static void choose_evenly(struct random *r, uint32_t experts, uint32_t from, uint32_t topk,
                          int32_t *expert)
{
    for (uint32_t k = from; k < topk; k++)
        do
            expert[k] = (int32_t)random_below(r, experts);
        while (among(expert, k, expert[k]));
}

/* Draws a magnitude above 0 and up to ROUTING_WEIGHT_MAX, and a random sign. */
static float draw_signed(struct random *r)
{
    uint64_t draw = random_next(r);
    float magnitude = (float)((draw >> 40) + 1) * (ROUTING_WEIGHT_MAX * 0x1p-24f);

    return (draw & 1) != 0 ? -magnitude : magnitude;
}

/* Draws weights in [0, 1), of both signs, or positive with the sum 1 over the kept choices. */
static void draw_weights(const struct problem_params *x, struct random *r, const int32_t *expert,
                         float *weight)
{
    uint32_t topk = x->moe.topk;
    double sum = 0;

    if (x->routing.weights == WEIGHTS_UNIFORM) {
        for (uint32_t k = 0; k < topk; k++) /* 24 bits, so that no weight is rounded up to 1 */
            weight[k] = expert[k] < 0 ? 0 : (float)(random_next(r) >> 40) * 0x1p-24f;
        return;
    }
    if (x->routing.weights == WEIGHTS_SIGNED) {
        for (uint32_t k = 0; k < topk; k++)
            weight[k] = expert[k] < 0 ? 0 : draw_signed(r);
        return;
    }
    for (uint32_t k = 0; k < topk; k++) {
        weight[k] = expert[k] < 0 ? 0 : (float)(0.0625 + random_unit(r));
        sum += weight[k];
    }
    for (uint32_t k = 0; k < topk; k++)
        weight[k] = expert[k] < 0 ? 0 : (float)(weight[k] / sum);
}

static void generate_choices(const struct problem_params *x, struct popularity *p, uint64_t key,
                             int32_t *expert, float *weight)
{
    struct random r = {.key = key};
    uint32_t topk = x->moe.topk;

    switch (x->routing.kind) {
    case ROUTING_ZIPF:
    case ROUTING_LOGNORMAL:
        choose_popular(p, &r, topk, expert);
        break;
    case ROUTING_HOT:
        expert[0] = 0;
        choose_evenly(&r, x->moe.experts, random_unit(&r) < x->routing.share, topk, expert);
        break;
    case ROUTING_MASKED:
        choose_evenly(&r, x->moe.experts, 0, topk, expert);
        for (uint32_t k = 0; k < topk; k++)
            if (random_unit(&r) < x->routing.share)
                expert[k] = -1;
        break;
    case ROUTING_MAXVIO: /* has made all choices already */
        break;
    default:
        choose_evenly(&r, x->moe.experts, 0, topk, expert);
        break;
    }
    draw_weights(x, &r, expert, weight);
}

/* ---- MaxVio ----
 *
 * Routing by MaxVio, the measure of load balance of "Auxiliary-Loss-Free Load Balancing
 * Strategy for Mixture-of-Experts": (load of the most loaded expert - mean load) / mean load.
 * The choices are not random, so the measure is exact. One expert is hot. Tokens at equal distances
 * over all ranks of an iteration choose it, as many as the measure requires. All other choices are dealt
 * to the other experts cyclically, so that none of them exceeds the mean, rounded up. */

struct deal {
    uint64_t tokens, hot;               /* tokens of all ranks; tokens with the hot expert */
    uint64_t first;                     /* index of the rank's first token among all tokens */
    int32_t order[PROBLEM_EXPERTS_MAX]; /* experts; the last one is hot */
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

/* The hot expert is the same in all iterations; the order of the others differs. */
static void deal_init(struct deal *d, const struct problem_params *x, uint32_t rank,
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

/* Returns how many of the first n tokens choose the hot expert. */
static uint64_t hot_of(const struct deal *d, uint64_t n)
{
    return d->tokens > 0 ? n * d->hot / d->tokens : 0;
}

static void maxvio_fill(const struct problem_params *x, uint32_t rank, uint64_t iteration,
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
        for (; k < topk; k++) /* at most `others` consecutive experts, so distinct */
            expert[k] = d.order[dealt++ % others];
    }
}

/* ---- rows of an iteration ---- */

static void copy_rows(const struct problem_params *x, const struct routing_table *table,
                      uint64_t row, uint32_t tokens, int32_t *expert, float *weight)
{
    uint32_t topk = x->moe.topk;

    for (uint32_t t = 0; t < tokens; t++) {
        size_t from = (size_t)row * topk, to = (size_t)t * topk;

        memcpy(expert + to, table->expert + from, topk * sizeof(*expert));
        memcpy(weight + to, table->weight + from, topk * sizeof(*weight));
        row = row + 1 == table->tokens ? 0 : row + 1;
    }
}

static void fill_rows(const struct problem_params *x, const struct op_source *source, uint32_t rank,
                      uint64_t iteration, uint32_t tokens, int32_t *expert, float *weight)
{
    uint64_t key = random_key(x->seed, RANDOM_ROUTE, rank, iteration);
    struct popularity popularity;

    if (x->routing.kind == ROUTING_FILE) {
        uint64_t row = window_begin(x, rank, iteration, source->table.tokens);

        copy_rows(x, &source->table, row, tokens, expert, weight);
        return;
    }
    popularity.leaves = 0;
    if (x->routing.kind == ROUTING_ZIPF || x->routing.kind == ROUTING_LOGNORMAL)
        popularity_init(&popularity, x);
    if (x->routing.kind == ROUTING_MAXVIO)
        maxvio_fill(x, rank, iteration, tokens, expert);
    for (uint32_t t = 0; t < tokens; t++) {
        size_t at = (size_t)t * x->moe.topk;

        generate_choices(x, &popularity, random_at(key, t), expert + at, weight + at);
    }
}

/* expert.values: integers: rounds weights to multiples of a unit, so that sums are exact. The weight of a
 * kept choice stays non-zero. */
static void round_weights(const struct problem_params *x, size_t n, const int32_t *expert,
                          float *weight)
{
    if (x->expert.kind != EXPERT_MLP || x->expert.values != EXPERT_VALUES_INTEGERS)
        return;
    for (size_t i = 0; i < n; i++) {
        float units = rintf(weight[i] / WEIGHTS_UNIT_ROUTING);

        weight[i] = expert[i] < 0 ? 0 : WEIGHTS_UNIT_ROUTING * (units == 0 ? 1 : units);
    }
}

void routing_fill(const struct problem_params *x, const struct op_source *source, uint32_t rank,
                  uint64_t iteration, uint32_t tokens, int32_t *expert, float *weight)
{
    fill_rows(x, source, rank, iteration, tokens, expert, weight);
    round_weights(x, (size_t)tokens * x->moe.topk, expert, weight);
}

void routing_fill_signed(const struct problem_params *x, uint32_t rank, uint64_t iteration,
                         uint32_t tokens, const int32_t *expert, float *weight)
{
    struct random r = {.key = random_key(x->seed, RANDOM_SIGNED, rank, iteration)};
    size_t n = (size_t)tokens * x->moe.topk;

    for (size_t i = 0; i < n; i++)
        weight[i] = expert[i] < 0 ? 0 : draw_signed(&r);
    round_weights(x, n, expert, weight);
}

const uint16_t *routing_hidden(const struct op_source *source, const struct problem_params *x,
                               uint32_t rank, uint64_t iteration, uint32_t token)
{
    uint64_t row;

    if (source == NULL || source->hidden.tokens == 0)
        return NULL;
    row = (window_begin(x, rank, iteration, source->hidden.tokens) + token) % source->hidden.tokens;
    return source->hidden.x + (size_t)row * x->moe.hidden;
}
