/* Which experts tokens want: generated from (seed, rank, iteration), or read from a
 * file. */
#ifndef ROUTING_H
#define ROUTING_H

#include <epa2a/problem.h>
#include <epa2a/status.h>
#include <stdbool.h>

struct experiment;

/* What the operation reads: choices with weights, distinct in a row and in range, and hidden
 * states. */
struct op_source;

/* EPA_ERR_CONFIG with path and line or offset; *out stays NULL where nothing is read from
 * files. Needs 1 <= topk <= experts <= EXPERIMENT_EXPERTS_MAX. */
enum epa_status routing_open(const struct experiment *, struct op_source **out, struct epa_error *);
void routing_close(struct op_source *);

/* These take NULL for "nothing is read". Tokens in the routing file, 0 without one. */
uint64_t routing_tokens(const struct op_source *);

/* Whole iterations that the files serve; with more of them they start again from their
 * first token, which reports say. UINT64_MAX where nothing is read. */
uint64_t routing_period(const struct op_source *, const struct experiment *);

/* In how many of the first `iterations` most tokens of all ranks have the choices of one token, as in the log
 * of a server's warm-up; and how many tokens at the start of the file, after routing.skip, are of such
 * iterations. No iterations of fewer than 8 tokens, and none after the file starts again. */
uint64_t routing_repeats(const struct op_source *, const struct experiment *, uint64_t iterations,
                         uint64_t *leading);

/* How many tokens `rank` has in `iteration`, and their choices. expert and weight have
 * room for [max_tokens][topk]. Any rank may ask for any other's. A dropped choice (-1)
 * has weight 0; the others are as routing.weights says, or, from a file, as they are
 * there. */
uint32_t routing_tokens_of(const struct experiment *, uint32_t rank, uint64_t iteration);
void routing_fill(const struct experiment *, const struct op_source *, uint32_t rank,
                  uint64_t iteration, uint32_t tokens, int32_t *expert, float *weight);

/* The hidden state of a token in dtype, from routing.hidden_states; NULL: there is none. */
const uint16_t *routing_hidden(const struct op_source *, const struct experiment *, uint32_t rank,
                               uint64_t iteration, uint32_t token);

/* Sums over iterations, for reports; one iteration is added at a time. */
struct routing_stats {
    uint64_t iterations, tokens, choices, dropped;
    uint64_t expert_min, expert_max;         /* rows of an expert in one iteration */
    uint64_t rank_min, rank_max;             /* choices of a rank's experts in one iteration */
    double expert_mean, rank_mean;           /* means over iterations of the mean */
    double expert_imbalance, rank_imbalance; /* mean over iterations of max / mean */
};

/* All zeros to begin with. An iteration that there is no memory for is not counted. */
void routing_stats_add(struct routing_stats *, const struct experiment *, const struct op_source *,
                       uint64_t iteration);

/* The largest violation there can be: every token wants the hot expert. */
static inline double routing_maxvio_most(uint32_t experts, uint32_t topk)
{
    return (double)experts / topk - 1;
}

#endif
