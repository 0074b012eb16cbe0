/* Routing: the experts of each token, generated from (seed, rank, iteration) or from the input files. */
#ifndef ROUTING_H
#define ROUTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/problem.h>
#include <epa2a/status.h>

struct problem_params;

struct routing_table {
    uint64_t tokens;
    uint32_t topk, experts;
    int32_t *expert; /* [tokens][topk]; -1: dropped */
    float *weight;   /* [tokens][topk]; finite and non-negative */
};

struct hidden_table {
    uint64_t tokens;
    uint16_t *x; /* [tokens][hidden], bf16 or f16, finite */
};

/* Contents of the input files: choices with weights, distinct per row and in range, and hidden states. A
 * table without tokens means that the experiment has no such file. */
struct op_source {
    struct routing_table table;
    struct hidden_table hidden;
    uint64_t skipped; /* number of tokens that routing.skip has skipped */
};

/* The functions below accept NULL: no input files. */

/* Returns the number of whole iterations that the files contain; further iterations start again at the
 * first token, and reports warn about it. UINT64_MAX without input files. */
uint64_t routing_period(const struct op_source *, const struct problem_params *);

/* Returns in how many of the first `iterations` most tokens of all ranks have the choices of one token, as
 * in the log of a server's warm-up; and the number of tokens of such iterations at the start of the file,
 * after routing.skip. Ignores iterations with fewer than 8 tokens and those after the end of the file. */
uint64_t routing_repeats(const struct op_source *, const struct problem_params *,
                         uint64_t iterations, uint64_t *leading);

/* The number of tokens of `rank` in `iteration`, and their choices. Any rank can compute the tokens of any
 * other rank. expert and weight have room for [max_tokens][topk]. A dropped choice (-1) has weight 0; other
 * weights follow routing.weights or the file. */
uint32_t routing_tokens_of(const struct problem_params *, uint32_t rank, uint64_t iteration);
void routing_fill(const struct problem_params *, const struct op_source *, uint32_t rank,
                  uint64_t iteration, uint32_t tokens, int32_t *expert, float *weight);
/* Replaces the weights of kept choices by weights of both signs, like routing.weights: signed. */
void routing_fill_signed(const struct problem_params *, uint32_t rank, uint64_t iteration,
                         uint32_t tokens, const int32_t *expert, float *weight);

/* Returns the hidden state of a token in dtype from routing.hidden_states; NULL without this file. */
const uint16_t *routing_hidden(const struct op_source *, const struct problem_params *,
                               uint32_t rank, uint64_t iteration, uint32_t token);

/* Statistics over iterations: minimum and maximum in an iteration, and means of iterations. */
struct routing_spread {
    uint64_t min, max;
    double mean, imbalance; /* max / mean */
};

/* Statistics of routing for reports, updated after each iteration. */
struct routing_stats {
    uint64_t iterations, tokens, choices, dropped;
    struct routing_spread expert, rank; /* choices per expert, and per rank */
};

/* Returns the largest possible MaxVio: every token chooses the hot expert. */
static inline double routing_maxvio_most(uint32_t experts, uint32_t topk)
{
    return (double)experts / topk - 1;
}

/* Returns the number of tokens at the start of a file that are mostly one repeated token, as in the log of
 * a server's warm-up: the leading windows of ROUTING_WARMUP_TOKENS tokens with a majority of one token, up
 * to the last such token. *repeated: number of such tokens in all windows of the file. */
enum { ROUTING_WARMUP_TOKENS = 64 };
uint64_t routing_warmup(const struct routing_table *, uint64_t *repeated);

#endif
