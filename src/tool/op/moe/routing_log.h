/* Statistics of a captured routing. */
#ifndef ROUTING_LOG_H
#define ROUTING_LOG_H

#include "base/text.h"
#include "op/moe/routing.h"
#include "op/problem_params.h"

enum {
    ROUTING_LOG_PARTS = 8,   /* parts of the file, in order */
    ROUTING_LOG_HOTTEST = 4, /* number of named experts */
    ROUTING_LOG_RANKS = 256  /* largest number of ranks with an imbalance */
};

/* Choices per expert of a range of tokens. mean, cv and max are over experts. */
struct routing_load {
    uint64_t tokens, kept, dropped;
    uint64_t min, max;
    double mean, cv;
    uint32_t idle; /* number of experts without a token */
    uint32_t hottest[ROUTING_LOG_HOTTEST];
    uint64_t of_expert[PROBLEM_EXPERTS_MAX];
};

/* The generator of `routing` that fits best. `distance`: part of the choices on other experts. */
struct routing_fit {
    const char *kind, *key; /* routing.kind, and the key of its parameter */
    double parameter, distance;
};

/* A file of captured routing. `fit` needs choices that are not dropped. */
struct routing_log {
    const char *path;
    struct routing_table table;
    uint64_t repeated, leading; /* repeated tokens: in all; at the start of the file */
    uint64_t skip;              /* leading, or 0 if no token follows */
    struct routing_load whole, part[ROUTING_LOG_PARTS];
    uint64_t part_from[ROUTING_LOG_PARTS + 1];
    struct routing_fit fit;
};

/* Reads a file of captured routing. layer UINT32_MAX: the file has one layer; experts 0: take the number
 * from the file. `path` must outlive the log. */
enum epa_status routing_log_read(const char *path, uint32_t layer, uint32_t experts,
                                 struct routing_log **out, struct epa_error *);
void routing_log_destroy(struct routing_log *);

/* Adds the statistics as text. */
void routing_log_describe(const struct routing_log *, struct text *out);

/* Returns max / mean; NaN if all choices were dropped. */
double routing_load_imbalance(const struct routing_load *);
/* Returns the largest load of a rank over the mean, with neighbouring experts on each of `ranks`. */
double routing_log_rank_imbalance(const struct routing_load *, uint32_t experts, uint32_t ranks);

#endif
