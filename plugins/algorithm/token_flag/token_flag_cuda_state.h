/* The state behind token_flag's CUDA code, for token_flag_cuda.c (calls) and
 * token_flag_cuda_setup.c. What stays the same in all calls stands ready in `args`; a call
 * adds its buffer set and inputs. */
#ifndef TOKEN_FLAG_CUDA_STATE_H
#define TOKEN_FLAG_CUDA_STATE_H

#include "device/call.h"
#include "token_flag_cuda.h"

/* The calls that an iteration has made of its four. */
enum tf_cuda_state { TF_CUDA_FREE, TF_CUDA_SENT, TF_CUDA_RECEIVED, TF_CUDA_ANSWERED };

struct tf_cuda_set {
    enum tf_cuda_state state;
    uint64_t epoch;
    uint32_t *recv_count, *rows, *received, *entry;
    uint64_t *recv_start;
};

struct tf_cuda {
    struct epa_algorithm base; /* first */
    struct tf_layout l;
    struct device d;
    struct tf_args args; /* what is the same in all calls */
    const char *profile;
    bool f16;
    uint64_t epoch;
    struct tf_cuda_set set[2];
    /* By enum tf_stage; resident: blocks that fit on the device at once. */
    uint32_t resident[TF_STAGES], shared_bytes[TF_STAGES];
    unsigned long long *calls[2]; /* of dispatches, of combines */
};

static inline struct tf_cuda *tf_cuda_of(struct epa_algorithm *a)
{
    return (struct tf_cuda *)a; /* base is the first member */
}

/* Bytes of the counters that `reset` is about. */
static inline size_t tf_counter_bytes(const struct tf_layout *l)
{
    return offsetof(struct tf_counters, chosen) + l->experts * sizeof(uint32_t);
}

/* What makes rows of x, and expert outputs. */
enum tf_input tf_input_of(const struct tf_layout *, const struct epa_moe *);
const void *tf_kernel_of(const struct tf_cuda *, enum tf_stage, enum tf_input);

void tf_cuda_explain(struct epa_algorithm *, struct epa_error *);

extern const struct epa_stage tf_cuda_stages[TF_STAGES];
enum epa_status tf_cuda_discard(struct epa_algorithm *, struct epa_problem *);

#endif
