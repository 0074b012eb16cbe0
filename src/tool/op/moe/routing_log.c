/* `epa2a routing stats`: statistics of a captured routing: the share of one repeated token, the load of
 * experts and ranks, its change over the file, and the generator of `routing` that fits best. */
#include "op/moe/routing_log.h"
#include "op/moe/routing_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { DRAWN_TOKENS = 8192 /* tokens that a generator draws for a comparison */ };

double routing_load_imbalance(const struct routing_load *l)
{
    return l->kept > 0 ? (double)l->max / l->mean : NAN;
}

static void count_load(const struct routing_table *t, uint64_t from, uint64_t to,
                       struct routing_load *out)
{
    double squares = 0;

    memset(out, 0, sizeof(*out));
    out->min = UINT64_MAX;
    out->tokens = to - from;
    for (uint64_t i = from * t->topk; i < to * t->topk; i++) {
        if (t->expert[i] < 0)
            out->dropped++;
        else
            out->of_expert[t->expert[i]]++;
    }
    out->kept = out->tokens * t->topk - out->dropped;
    out->mean = (double)out->kept / t->experts;
    for (uint32_t e = 0; e < t->experts; e++) {
        double off = (double)out->of_expert[e] - out->mean;
        uint32_t at = ROUTING_LOG_HOTTEST;

        squares += off * off;
        out->idle += out->of_expert[e] == 0;
        out->min = out->of_expert[e] < out->min ? out->of_expert[e] : out->min;
        out->max = out->of_expert[e] > out->max ? out->of_expert[e] : out->max;
        while (at > 0 && (at > e || out->of_expert[e] > out->of_expert[out->hottest[at - 1]]))
            at--;
        for (uint32_t i = ROUTING_LOG_HOTTEST - 1; i > at; i--)
            out->hottest[i] = out->hottest[i - 1];
        if (at < ROUTING_LOG_HOTTEST)
            out->hottest[at] = e;
    }
    out->cv = out->kept > 0 ? sqrt(squares / t->experts) / out->mean : NAN;
}

double routing_log_rank_imbalance(const struct routing_load *l, uint32_t experts, uint32_t ranks)
{
    uint32_t each = experts / ranks;
    uint64_t max = 0;

    for (uint32_t rank = 0; rank < ranks; rank++) {
        uint64_t sum = 0;

        for (uint32_t e = rank * each; e < (rank + 1) * each; e++)
            sum += l->of_expert[e];
        max = sum > max ? sum : max;
    }
    return l->kept > 0 ? (double)max * ranks / (double)l->kept : NAN;
}

/* ---- the nearest generator ---- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? 1 : x > y ? -1 : 0;
}

/* Sorts the shares of experts in all choices, the largest first. */
static void sorted_shares(const struct routing_load *l, uint32_t experts, double *out)
{
    for (uint32_t e = 0; e < experts; e++)
        out[e] = l->kept > 0 ? (double)l->of_expert[e] / (double)l->kept : 0;
    qsort(out, experts, sizeof(*out), by_size);
}

struct fit {
    const struct routing_table *log;
    double share[PROBLEM_EXPERTS_MAX]; /* sorted shares of the log */
    struct routing_load load;          /* load of the drawn tokens */
    struct routing_table drawn;
};

/* Returns the part of the choices on other experts than the choices of a generator, with experts sorted by load
 * on both sides: 0 is a perfect fit. */
static double fit_distance(struct fit *f, int kind, double parameter)
{
    struct problem_params x = {.seed = 1, .ranks = 1};
    double share[PROBLEM_EXPERTS_MAX], sum = 0;

    x.moe.max_tokens = DRAWN_TOKENS;
    x.moe.topk = f->log->topk;
    x.moe.experts = f->log->experts;
    x.routing.kind = kind;
    x.routing.exponent = x.routing.sigma = parameter;
    routing_fill(&x, NULL, 0, 0, DRAWN_TOKENS, f->drawn.expert, f->drawn.weight);
    count_load(&f->drawn, 0, DRAWN_TOKENS, &f->load);
    sorted_shares(&f->load, f->log->experts, share);
    for (uint32_t e = 0; e < f->log->experts; e++)
        sum += fabs(share[e] - f->share[e]);
    return sum / 2;
}

static void try_parameter(struct fit *f, int kind, double parameter, struct routing_fit *best)
{
    double d = parameter < 0 ? INFINITY : fit_distance(f, kind, parameter);

    if (d < best->distance) {
        best->distance = d;
        best->parameter = parameter;
    }
}

/* Finds the best parameter up to 4 in steps of 0.01: first by tenths, then around the best tenth. */
static struct routing_fit best_of(struct fit *f, int kind, const char *name, const char *key)
{
    struct routing_fit best = {.kind = name, .key = key, .distance = INFINITY};
    double centre;

    for (int i = 0; i <= 40; i++)
        try_parameter(f, kind, i / 10.0, &best);
    centre = best.parameter;
    for (int i = -9; i <= 9; i++)
        try_parameter(f, kind, centre + i / 100.0, &best);
    return best;
}

static struct routing_fit fit_generators(const struct routing_table *t,
                                         const struct routing_load *whole)
{
    size_t choices = (size_t)DRAWN_TOKENS * t->topk;
    struct fit *f = memory_alloc(1, sizeof(*f));
    struct routing_fit zipf, lognormal;

    f->log = t;
    f->drawn = (struct routing_table){.tokens = DRAWN_TOKENS,
                                      .topk = t->topk,
                                      .experts = t->experts,
                                      .expert = memory_alloc(choices, sizeof(int32_t)),
                                      .weight = memory_alloc(choices, sizeof(float))};
    sorted_shares(whole, t->experts, f->share);
    zipf = best_of(f, ROUTING_ZIPF, "zipf", "exponent");
    lognormal = best_of(f, ROUTING_LOGNORMAL, "lognormal", "sigma");
    free(f->drawn.expert);
    free(f->drawn.weight);
    free(f);
    return lognormal.distance < zipf.distance ? lognormal : zipf;
}

/* ---- text ---- */

static void describe_load(const struct routing_log *log, struct text *out)
{
    const struct routing_load *l = &log->whole;
    char kept[32], dropped[32];
    uint32_t chosen = log->table.experts - l->idle;

    if (l->kept == 0) {
        text_add(out, "%-12s 0 choices, %s dropped: no expert has a token\n", "load",
                 text_count(dropped, sizeof(dropped), l->dropped));
        return;
    }
    text_add(out,
             "%-12s %s choices, %s dropped; per expert %llu to %llu, mean %.1f: max / mean %.2f, "
             "cv %.2f\n",
             "load", text_count(kept, sizeof(kept), l->kept),
             text_count(dropped, sizeof(dropped), l->dropped), (unsigned long long)l->min,
             (unsigned long long)l->max, l->mean, routing_load_imbalance(l), l->cv);
    text_add(out, "%-12s", "experts");
    for (uint32_t i = 0; i < ROUTING_LOG_HOTTEST && i < chosen; i++)
        text_add(out, "%s %u (%.2f %%)", i == 0 ? "" : ",", l->hottest[i],
                 100 * (double)l->of_expert[l->hottest[i]] / (double)l->kept);
    text_add(out, " %s most; %u of %u have none\n", chosen == 1 ? "has" : "have", l->idle,
             log->table.experts);
    text_add(out, "%-12s max / mean, experts in order:", "ranks");
    for (uint32_t ranks = 2; ranks <= log->table.experts && ranks <= ROUTING_LOG_RANKS; ranks++)
        if (log->table.experts % ranks == 0)
            text_add(out, " %u: %.2f", ranks,
                     routing_log_rank_imbalance(l, log->table.experts, ranks));
    text_add(out, "\n");
}

void routing_log_describe(const struct routing_log *log, struct text *out)
{
    const struct routing_table *t = &log->table;
    char tokens[32], path[256];

    snprintf(path, sizeof(path), "%s", log->path);
    text_add(out, "# %s: %s tokens, top-%u of %u experts\n", text_clean(path),
             text_count(tokens, sizeof(tokens), t->tokens), t->topk, t->experts);
    if (log->repeated == 0)
        text_add(out, "%-12s none: no %d neighbours are mostly one token\n", "repeats",
                 ROUTING_WARMUP_TOKENS);
    else
        text_add(out,
                 "%-12s %.1f %% of the tokens are one token repeated, such as a server's warm-up; "
                 "%s at the start\n",
                 "repeats", 100 * (double)log->repeated / (double)t->tokens,
                 text_count(tokens, sizeof(tokens), log->leading));
    if (log->skip > 0)
        text_add(out, "%-12s the rest is what follows, as with routing.skip: %llu\n", "",
                 (unsigned long long)log->skip);
    describe_load(log, out);
    if (log->whole.kept > 0)
        text_add(out,
                 "%-12s {kind: %s, %s: %.2f}; %.1f %% of the choices are on other experts, sorted "
                 "by load\n",
                 "nearest", log->fit.kind, log->fit.key, log->fit.parameter,
                 100 * log->fit.distance);
    text_add(out, "#  %9s %9s %11s %9s %8s\n", "from", "tokens", "max / mean", "hottest", "idle");
    for (uint32_t i = 0; i < ROUTING_LOG_PARTS; i++) {
        const struct routing_load *part = &log->part[i];

        if (part->tokens > 0)
            text_add(out, "   %9llu %9llu", (unsigned long long)log->part_from[i],
                     (unsigned long long)part->tokens);
        if (part->kept > 0)
            text_add(out, " %11.2f %9u %8u\n", routing_load_imbalance(part), part->hottest[0],
                     part->idle);
        else if (part->tokens > 0)
            text_add(out, " %11s %9s %8u\n", "-", "-", part->idle);
    }
}

void routing_log_destroy(struct routing_log *log)
{
    if (log == NULL)
        return;
    free(log->table.expert);
    free(log->table.weight);
    free(log);
}

enum epa_status routing_log_read(const char *path, uint32_t layer, uint32_t experts,
                                 struct routing_log **out, struct epa_error *err)
{
    const struct routing_shape shape = {.experts = experts, .layer = layer};
    struct routing_log *log = memory_alloc(1, sizeof(*log));
    enum epa_status status;
    uint64_t rest;

    log->path = path;
    status = routing_read(path, &shape, &log->table, err);
    if (status != EPA_OK) {
        routing_log_destroy(log);
        return status;
    }
    log->leading = routing_warmup(&log->table, &log->repeated);
    log->skip = log->leading < log->table.tokens ? log->leading : 0;
    rest = log->table.tokens - log->skip;
    count_load(&log->table, log->skip, log->table.tokens, &log->whole);
    for (uint32_t i = 0; i <= ROUTING_LOG_PARTS; i++)
        log->part_from[i] = log->skip + rest * i / ROUTING_LOG_PARTS;
    for (uint32_t i = 0; i < ROUTING_LOG_PARTS; i++)
        count_load(&log->table, log->part_from[i], log->part_from[i + 1], &log->part[i]);
    if (log->whole.kept > 0)
        log->fit = fit_generators(&log->table, &log->whole);
    *out = log;
    return EPA_OK;
}
