/* The state behind ll_v1's CUDA code, for ll_v1_cuda.c (calls) and ll_v1_cuda_setup.c. What
 * stays the same in all calls stands ready in `args`; a call adds its set and inputs. */
#ifndef LL_V1_CUDA_STATE_H
#define LL_V1_CUDA_STATE_H

#include "ll_v1_cuda.h"

/* What a dispatch leaves for its combine, and the views it hands out. */
struct v1_cuda_set {
    bool open;
    uint64_t epoch;
    uint32_t *place, *rows, *recv_count;
    uint64_t *recv_start;
    struct v1_back *back;
};

struct v1_cuda {
    struct epa_algorithm base; /* first */
    struct v1_layout l;
    struct epa_transport *t;
    struct epa_backend *backend;
    struct v1_args args; /* what is the same in all calls */
    const char *profile;
    uint64_t heap, epoch,
        combined; /* epoch: of the last dispatch; combined: last combined */
    struct v1_cuda_set set[2];
    /* By mode; resident: blocks that fit on the device at once. */
    uint32_t resident[V1_MODES];
    unsigned long long *calls[V1_MODES];
    struct v1_tickets *tickets[V1_MODES];
    uint32_t shared_bytes[V1_MODES];
    bool early; /* a kernel may be set up while the one before runs */
    void *memory;
    struct epa_error last; /* of the host's making */
};

static inline struct v1_cuda *v1_cuda_of(struct epa_algorithm *a)
{
    return (struct v1_cuda *)a; /* base is the first member */
}

/* Offset of one of a region's buffers, from the start of any rank's heap. */
static inline uint64_t v1_cuda_region(const struct v1_cuda *c, const struct v1_region *r,
                                      uint32_t which)
{
    return c->heap + r->at + r->bytes * which;
}

static inline char *v1_cuda_own(const struct v1_cuda *c, uint64_t offset)
{
    return c->t->peer_heap[c->t->rank] + offset;
}

/* Keep a sentence for v1_cuda_explain(); `code`: a cudaError_t. They return the status. */
EPA_PRINTF(3, 4)
enum epa_status v1_cuda_fail(struct v1_cuda *, enum epa_status, const char *fmt, ...);
enum epa_status v1_cuda_call_failed(struct v1_cuda *, const char *what, int code);
void v1_cuda_explain(struct epa_algorithm *, struct epa_error *);

extern const struct epa_stage v1_cuda_stages[2];
enum epa_status v1_cuda_discard(struct epa_algorithm *, struct epa_problem *);

#endif
