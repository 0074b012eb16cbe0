/* Inputs of a data call: struct epa2a_tokens to the fields of struct epa_moe. */
#ifndef API_TOKENS_H
#define API_TOKENS_H

#include <epa2a.h>
#include <epa2a/backend.h>

/* A copy of rows with gaps to dense rows. */
struct tokens_copy {
    void *to;
    const void *from;
    size_t stride, row_bytes;
};

enum { TOKENS_COPIES = 2 }; /* of x and x_scale */

/* Copies of inputs that are not dense or have indices of 8 bytes. Initially zero. */
struct tokens {
    bool host; /* inputs are in host memory */
    int32_t *expert;
    uint32_t *last; /* [experts + 1]: work space of the check of indices */
    void *x, *x_scale;
    /* On a device: memory of the caller for dense rows, [max_tokens][hidden] of 16 bits; NULL: rows
     * must be dense. tokens_read() lists the copies that the caller has to queue. */
    char *dense;
    struct tokens_copy copy[TOKENS_COPIES];
    uint32_t copies;
};

/* Allocates copies of indices for the shape of `moe`; the others are allocated at first use. */
enum epa_status tokens_init(struct tokens *, const struct epa_moe *moe, enum epa_memory,
                            struct epa_error *err);
void tokens_finish(struct tokens *); /* accepts a zeroed struct */

/* Checks the struct of the caller, copies it to `in`, and sets tokens, x, x_dtype, x_fp8, x_scale,
 * expert and weight of `moe`, which contains the shape. A weight of the caller may be NULL: the
 * weight of `moe` is then NULL. On hosts the indices are checked, too. */
enum epa_status tokens_read(struct tokens *, const struct epa2a_tokens *from,
                            struct epa2a_tokens *in, struct epa_moe *moe, struct epa_error *err);

/* Converts indices of 4 or 8 bytes on hosts, and checks them: global experts, distinct for each
 * token, or -1. `to` has room for tokens * topk indices. *out points to `from` if no conversion is
 * necessary. */
enum epa_status tokens_read_experts(struct tokens *, const struct epa_moe *moe, uint32_t tokens,
                                    const void *from, int32_t bytes, int32_t *to,
                                    const int32_t **out, struct epa_error *err);

#endif
