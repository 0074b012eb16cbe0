/* Reference of dispatch and combine: inputs of each rank from a seed, and the expected outputs bit
 * by bit, computed one element at a time with dtype.h and epa2a/logfmt.h. Uses neither kernels nor code
 * of the library. */
#ifndef LIB_MOE_MODEL_H
#define LIB_MOE_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include <epa2a.h>

enum { MODEL_HIDDEN = 2304 }; /* largest hidden of a shape */

struct setting {
    struct epa2a_moe_shape shape; /* size is unused */
    uint32_t ranks, flags;
    bool by_rank; /* EXPERT: outputs of a rank are summed and rounded there (dedup) */
    bool logfmt;  /* EPA2A_COMBINE_LOGFMT; most values of two of three tokens are small */
    uint64_t seed;
};

static inline bool is_rank_layout(const struct setting *s)
{
    return s->shape.layout == EPA2A_RANK_PACKED || s->shape.layout == EPA2A_RANK_PADDED;
}

static inline uint32_t local_of(const struct setting *s)
{
    return s->shape.experts / s->ranks;
}

/* ---- inputs ---- */

/* 0 to max_tokens; both ends occur. */
uint32_t model_tokens(const struct setting *, uint32_t rank, uint64_t iteration);
/* [topk] Experts of a token, some of them -1, and weights. `route`: iteration of the routes. */
void model_choices(const struct setting *, uint32_t rank, uint64_t route, uint32_t token,
                   int32_t *expert, float *weight);
/* [hidden] */
void model_x(const struct setting *, uint32_t rank, uint64_t iteration, uint32_t token,
             uint16_t *x);
void model_bias(const struct setting *, uint32_t rank, uint64_t iteration, uint32_t token,
                uint32_t which, uint16_t *out);

/* ---- delivered rows ---- */

bool model_is_fp8(const struct setting *);
/* Delivered row of a token: [hidden] elements, and [hidden / group] scales in FP8. */
void model_row(const struct setting *, const uint16_t *x, void *row, float *scale);

/* ---- outputs ---- */

/* Output of an expert for a delivered row. */
void model_output(const struct setting *, uint32_t expert, const void *row, const float *scale,
                  uint16_t *y);
/* Sum of expert outputs, times weights in float32, rounded. */
void model_sum(const struct setting *, uint32_t n, const uint16_t *const *y, const float *weight,
               uint16_t *out);
/* Expected sum of a token. `masked`: choices that combine leaves out have -1 here. */
void model_combined(const struct setting *, uint32_t rank, uint64_t route, uint64_t iteration,
                    uint32_t token, const int32_t *masked, uint16_t *out);

#endif
