/* The state behind ll_v1's CUDA code, for ll_v1_cuda.c (calls) and ll_v1_cuda_setup.c. What
 * stays the same in all calls stands ready in `args`; a call adds its set and inputs. */
#ifndef LL_V1_CUDA_STATE_H
#define LL_V1_CUDA_STATE_H

#include "device/call.h"
#include "ll_v1_cuda.h"

/* What a dispatch leaves for its combine, and the views it hands out. */
struct v1_cuda_set {
    uint32_t *place, *rows, *recv_count;
    uint64_t *recv_start;
    struct v1_back *back;
};

struct v1_cuda {
    struct epa_algorithm base; /* first */
    struct v1_layout l;
    struct device d;
    struct v1_args args; /* what is the same in all calls */
    const char *profile;
    struct device_sets sets;
    struct v1_cuda_set set[2];
    /* By mode; resident: blocks that fit on the device at once. */
    uint32_t resident[V1_MODES];
    unsigned long long *calls[V1_MODES];
    struct v1_work_counters *work_counters[V1_MODES];
    uint32_t shared_bytes[V1_MODES];
};

static inline struct v1_cuda *v1_cuda_of(struct epa_algorithm *a)
{
    return (struct v1_cuda *)a; /* base is the first member */
}

/* Offset of one of a region's buffers, from the start of any rank's heap. */
static inline uint64_t v1_cuda_region(const struct v1_cuda *c, const struct v1_region *r,
                                      uint32_t which)
{
    return device_region(&c->d, r->at, r->bytes, which);
}

void v1_cuda_explain(struct epa_algorithm *, struct epa_error *);

extern const struct epa_stage v1_cuda_stages[2];
enum epa_status v1_cuda_discard(struct epa_algorithm *, struct epa_problem *);

#endif
