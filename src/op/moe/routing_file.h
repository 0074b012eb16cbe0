/* Routing and hidden states from files, as tables in memory. The parsers work on bytes in
 * memory, which is what the fuzzers call. */
#ifndef ROUTING_FILE_H
#define ROUTING_FILE_H

#include <epa2a/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the experiment expects of a routing file. */
struct routing_shape {
    uint32_t topk, experts;
    uint32_t layer; /* UINT32_MAX: the file has one */
};

struct routing_table {
    uint64_t tokens;
    int32_t *expert; /* [tokens][topk]; -1: dropped */
    float *weight;   /* [tokens][topk]; not negative, finite */
};

struct hidden_table {
    uint64_t tokens;
    uint16_t *x; /* [tokens][hidden], bf16 or f16, finite */
};

/* `name` begins each message: name:line:column, or "name: offset N". */
enum epa_status routing_parse_jsonl(const char *name, const char *text, size_t bytes,
                                    const struct routing_shape *, struct routing_table *out,
                                    struct epa_error *);
enum epa_status routing_parse_npy(const char *name, const void *data, size_t bytes,
                                  const struct routing_shape *, struct routing_table *out,
                                  struct epa_error *);
enum epa_status hidden_parse_npy(const char *name, const void *data, size_t bytes, uint32_t hidden,
                                 bool f16, struct hidden_table *out, struct epa_error *);

/* The format is told by the first bytes of the file. */
enum epa_status routing_read(const char *path, const struct routing_shape *,
                             struct routing_table *out, struct epa_error *);
enum epa_status hidden_read(const char *path, uint32_t hidden, bool f16, struct hidden_table *out,
                            struct epa_error *);

/* Puts in weight 1 / (kept choices) for each kept choice of a row and 0 for others. */
void routing_even_weights(const int32_t *expert, uint32_t topk, float *weight);

/* The first choice k of a row that is out of range or stands there already (*twice is then
 * its first place, else topk); topk where the row is good. */
uint32_t routing_bad_choice(const int64_t *id, const struct routing_shape *, uint32_t *twice);

#endif
