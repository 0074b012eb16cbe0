/* The state behind ll_v2's CUDA code, for ll_v2_cuda.c (calls) and ll_v2_cuda_setup.c. What
 * stays the same in all calls stands ready in `args`; a call adds its buffer set and
 * inputs. */
#ifndef LL_V2_CUDA_STATE_H
#define LL_V2_CUDA_STATE_H

#include "ll_v2_cuda.h"

struct ll_set {
    bool open;
    uint64_t epoch;
    uint32_t *recv_count, *recv_row, *wanted, *place, *rows;
    uint64_t *recv_start;
    float *recv_weight;
    struct ll_share *share;
    uint16_t *chosen;
};

/* The stage whose second half is to come. */
enum ll_half { LL_NO_HALF, LL_HALF_DISPATCH, LL_HALF_COMBINE };

struct ll_cuda {
    struct epa_algorithm base; /* first */
    struct ll_layout l;
    struct epa_transport *t;
    struct epa_backend *backend;
    struct ll_args args; /* what is the same in all calls */
    enum ll_mode mode;
    const char *profile;
    uint64_t heap, epoch, combined; /* combined: the epoch of the last combine */
    uint32_t answers; /* region that this combine, or the last, pushes answers to */
    bool dispatched;  /* since the last combine */
    unsigned long long last_graph; /* that the last kernel was recorded in; 0: none */
    uint32_t last_stage;           /* and which it was: enum ll_cuda_stage */
    enum ll_half half;
    struct ll_set set[2];
    /* By enum ll_cuda_stage; resident: blocks that fit on the device at once. */
    uint32_t resident[2];
    unsigned long long *calls[2];
    struct ll_tickets *tickets[2];
    uint32_t shared_bytes[2];
    bool early; /* a kernel may be set up while the one before runs */
    void *memory;
    struct epa_error last; /* of the host's making */
};

static inline struct ll_cuda *ll_cuda_of(struct epa_algorithm *a)
{
    return (struct ll_cuda *)a; /* base is the first member */
}

/* Offset of one of a region's buffers, from the start of any rank's heap. */
static inline uint64_t ll_cuda_region(const struct ll_cuda *c, uint64_t at, uint64_t bytes,
                                      uint32_t which)
{
    return c->heap + at + bytes * which;
}

static inline char *ll_cuda_own(const struct ll_cuda *c, uint64_t offset)
{
    return c->t->peer_heap[c->t->rank] + offset;
}

static inline struct ll_combine_kind ll_cuda_combine_kind(const struct ll_cuda *c)
{
    return (struct ll_combine_kind){
        .mode = c->mode,
        .from = !c->l.fused ? LL_FROM_Y
                : c->l.fp8  ? LL_FROM_CODES
                            : LL_FROM_ROWS,
        .f16 = c->l.dtype == EPA_F16,
        .fp8 = c->l.answer_fp8,
        .pushed = c->l.pushes,
        .profile = c->profile != NULL,
    };
}

/* Keep a sentence for ll_cuda_explain(); `code`: a cudaError_t. They return the status. */
EPA_PRINTF(3, 4)
enum epa_status ll_cuda_fail(struct ll_cuda *, enum epa_status, const char *fmt, ...);
enum epa_status ll_cuda_call_failed(struct ll_cuda *, const char *what, int code);
void ll_cuda_explain(struct epa_algorithm *, struct epa_error *);

/* Calls, by `overlap`. */
extern const struct epa_stage ll_cuda_fused[2], ll_cuda_split[4];
enum epa_status ll_cuda_discard(struct epa_algorithm *, struct epa_problem *);

#endif
