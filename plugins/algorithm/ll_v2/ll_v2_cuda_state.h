/* The state behind ll_v2's CUDA code, for ll_v2_cuda.c (calls) and ll_v2_cuda_setup.c. What
 * stays the same in all calls stands ready in `args`; a call adds its buffer set and
 * inputs. */
#ifndef LL_V2_CUDA_STATE_H
#define LL_V2_CUDA_STATE_H

#include "device/call.h"
#include "ll_v2_cuda.h"

struct ll_set {
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
    struct device d;
    struct ll_args args; /* what is the same in all calls */
    enum ll_mode mode;
    const char *profile;
    uint32_t outputs; /* region that this combine, or the last, pushes answers to */
    bool dispatched;  /* since the last combine */
    unsigned long long last_graph; /* that the last kernel was recorded in; 0: none */
    uint32_t last_stage;           /* and which it was: enum ll_cuda_stage */
    enum ll_half half;
    struct device_sets sets;
    struct ll_set set[2];
    /* By enum ll_cuda_stage; resident: blocks that fit on the device at once. */
    uint32_t resident[2];
    unsigned long long *calls[2];
    struct ll_work_counters *work_counters[2];
    uint32_t shared_bytes[2];
};

static inline struct ll_cuda *ll_cuda_of(struct epa_algorithm *a)
{
    return (struct ll_cuda *)a; /* base is the first member */
}

static inline struct ll_combine_kind ll_cuda_combine_kind(const struct ll_cuda *c)
{
    return (struct ll_combine_kind){
        .mode = c->mode,
        .from = !c->l.fused ? LL_FROM_Y
                : c->l.fp8  ? LL_FROM_CODES
                            : LL_FROM_ROWS,
        .f16 = c->l.dtype == EPA_F16,
        .fp8 = c->l.output_fp8,
        .pushed = c->l.pushes,
        .profile = c->profile != NULL,
    };
}

void ll_cuda_explain(struct epa_algorithm *, struct epa_error *);

/* Calls, by `overlap`. */
extern const struct epa_stage ll_cuda_fused[2], ll_cuda_split[4];
enum epa_status ll_cuda_discard(struct epa_algorithm *, struct epa_problem *);

#endif
