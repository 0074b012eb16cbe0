/* Files of routing and of hidden states. */
#ifndef ROUTING_FILE_H
#define ROUTING_FILE_H

#include "op/moe/routing.h"

enum { ROUTING_TOPK_MAX = 32 };

/* Required shape of files of routing and of hidden states. */
struct routing_shape {
    uint32_t topk, experts; /* 0: taken from the file */
    uint32_t layer;         /* UINT32_MAX: the file has one layer */
    uint32_t hidden;
    bool f16; /* of hidden states; false: bf16 */
    /* Settings of the experiment that messages suggest; NULL: options of `routing stats`. */
    const struct op_advice *advice;
};

/* Each message begins with `name`: name:line:column, or "name: offset N". */
enum epa_status routing_parse_jsonl(const char *name, const char *text, size_t bytes,
                                    const struct routing_shape *, struct routing_table *out,
                                    struct epa_error *);
enum epa_status routing_parse_npy(const char *name, const void *data, size_t bytes,
                                  const struct routing_shape *, struct routing_table *out,
                                  struct epa_error *);
enum epa_status hidden_parse_npy(const char *name, const void *data, size_t bytes,
                                 const struct routing_shape *, struct hidden_table *out,
                                 struct epa_error *);

/* Reads a file of either format; the first bytes determine the format. */
enum epa_status routing_read(const char *path, const struct routing_shape *,
                             struct routing_table *out, struct epa_error *);
enum epa_status hidden_read(const char *path, const struct routing_shape *,
                            struct hidden_table *out, struct epa_error *);

#endif
