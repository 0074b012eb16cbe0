/* Which experts tokens want: generated from (seed, rank, iteration), or read from a
 * file. */
#ifndef ROUTING_H
#define ROUTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/problem.h>
#include <epa2a/status.h>

struct experiment;

struct routing_table {
    uint64_t tokens;
    uint32_t topk, experts;
    int32_t *expert; /* [tokens][topk]; -1: dropped */
    float *weight;   /* [tokens][topk]; not negative, finite */
};

struct hidden_table {
    uint64_t tokens;
    uint16_t *x; /* [tokens][hidden], bf16 or f16, finite */
};

/* What the operation reads: choices with weights, distinct in a row and in range, and hidden
 * states. No tokens: nothing of that kind. */
struct op_source {
    struct routing_table table;
    struct hidden_table hidden;
    uint64_t skipped; /* tokens before them that routing.skip left out */
};

/* EPA_ERR_CONFIG with path and line or offset; *out stays NULL where nothing is read from
 * files. Needs 1 <= topk <= experts <= EXPERIMENT_EXPERTS_MAX. */
enum epa_status routing_open(const struct experiment *, struct op_source **out, struct epa_error *);
void routing_close(struct op_source *);

/* The others take NULL for "nothing is read". */

/* Whole iterations that the files serve; with more of them they start again from their
 * first token, which reports say. UINT64_MAX where nothing is read. */
uint64_t routing_period(const struct op_source *, const struct experiment *);

/* In how many of the first `iterations` most tokens of all ranks have the choices of one token, as
 * in the log of a server's warm-up; and how many tokens at the start of the file, after
 * routing.skip, are of such iterations. No iterations of fewer than 8 tokens, and none after the
 * file starts again. */
uint64_t routing_repeats(const struct op_source *, const struct experiment *, uint64_t iterations,
                         uint64_t *leading);

/* How many tokens `rank` has in `iteration`, and their choices. expert and weight have
 * room for [max_tokens][topk]. Any rank may ask for any other's. A dropped choice (-1)
 * has weight 0; the others are as routing.weights says, or, from a file, as they are
 * there. */
uint32_t routing_tokens_of(const struct experiment *, uint32_t rank, uint64_t iteration);
void routing_fill(const struct experiment *, const struct op_source *, uint32_t rank,
                  uint64_t iteration, uint32_t tokens, int32_t *expert, float *weight);
/* Replaces the weights of kept choices by weights of both signs, as routing.weights: signed. */
void routing_fill_signed(const struct experiment *, uint32_t rank, uint64_t iteration,
                         uint32_t tokens, const int32_t *expert, float *weight);

/* The hidden state of a token in dtype, from routing.hidden_states; NULL: there is none. */
const uint16_t *routing_hidden(const struct op_source *, const struct experiment *, uint32_t rank,
                               uint64_t iteration, uint32_t token);

/* Over iterations: the least and the most in one, and means of what one has. */
struct routing_spread {
    uint64_t min, max;
    double mean, imbalance; /* max / mean */
};

/* Sums over iterations, for reports; one iteration is added at a time. */
struct routing_stats {
    uint64_t iterations, tokens, choices, dropped;
    struct routing_spread expert, rank; /* choices of an expert, of a rank's experts */
};

/* The largest violation there can be: every token wants the hot expert. */
static inline double routing_maxvio_most(uint32_t experts, uint32_t topk)
{
    return (double)experts / topk - 1;
}

/* ---- routing of files (routing_file.c) ---- */

enum { ROUTING_TOPK_MAX = 32 };

/* What the experiment expects of files of routing and of hidden states. */
struct routing_shape {
    uint32_t topk, experts; /* 0: as the file says */
    uint32_t layer;         /* UINT32_MAX: the file has one */
    uint32_t hidden;
    bool f16; /* of hidden states; false: bf16 */
    const struct experiment
        *x; /* messages suggest its settings; NULL: options of `routing stats` */
};

/* `name` begins each message: name:line:column, or "name: offset N". */
enum epa_status routing_parse_jsonl(const char *name, const char *text, size_t bytes,
                                    const struct routing_shape *, struct routing_table *out,
                                    struct epa_error *);
enum epa_status routing_parse_npy(const char *name, const void *data, size_t bytes,
                                  const struct routing_shape *, struct routing_table *out,
                                  struct epa_error *);
enum epa_status hidden_parse_npy(const char *name, const void *data, size_t bytes,
                                 const struct routing_shape *, struct hidden_table *out,
                                 struct epa_error *);

/* The first bytes of the file say which format it is. */
enum epa_status routing_read(const char *path, const struct routing_shape *,
                             struct routing_table *out, struct epa_error *);
enum epa_status hidden_read(const char *path, const struct routing_shape *,
                            struct hidden_table *out, struct epa_error *);

/* Tokens at the start of a file that are one token repeated, as a server's warm-up leaves them: the
 * windows of so many tokens, most of which are one, up to the last of these. *repeated: such tokens
 * in all windows of the file. */
enum { ROUTING_WARMUP_TOKENS = 64 };
uint64_t routing_warmup(const struct routing_table *, uint64_t *repeated);

#endif
