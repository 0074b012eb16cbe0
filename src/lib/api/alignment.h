/* Alignment of the tensors that an application passes. */
#ifndef API_ALIGNMENT_H
#define API_ALIGNMENT_H

#include <epa2a.h>
#include <epa2a/status.h>

#include <stdbool.h>
#include <stddef.h>

struct tensor {
    const char *name; /* field or argument of epa2a.h */
    const void *at;   /* NULL has any alignment */
    size_t alignment; /* a power of two */
};

/* Returns the alignment of dense rows of elements of `element` bytes. On a CUDA device kernels load and
 * store 16 bytes at once, and tensor maps begin at multiples of 16. */
static inline size_t alignment_of_rows(bool cuda, size_t element)
{
    return cuda ? 16 : element;
}

/* The functions return EPA_ERR_CONFIG if a tensor is not at a multiple of its alignment. */
EPA_CHECKED enum epa_status alignment_check(const struct tensor *, size_t n, struct epa_error *);

/* topk_idx_bytes is 4 or 8. */
EPA_CHECKED enum epa_status alignment_check_tokens(const struct epa2a_tokens *, uint32_t hidden,
                                                   bool cuda, struct epa_error *);
/* topk_idx with 8 bytes per element. */
EPA_CHECKED enum epa_status alignment_check_choices(const void *topk_idx, struct epa_error *);
EPA_CHECKED enum epa_status alignment_check_received(const struct epa2a_received *, bool cuda,
                                                     struct epa_error *);
/* `y`: the expert outputs, which epa2a_received may name. */
EPA_CHECKED enum epa_status alignment_check_outputs(const struct epa2a_outputs *, const void *y,
                                                    bool cuda, struct epa_error *);
EPA_CHECKED enum epa_status alignment_check_experts(const struct epa2a_experts *, bool cuda,
                                                    struct epa_error *);

#endif
