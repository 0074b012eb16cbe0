/* Roundings of the reference (reference.c): the ends of intervals after activations, conversions and
 * quantisation. reference_round.c is compiled once for each instruction set; all sets return the same
 * bits. */
#ifndef OP_MOE_REFERENCE_ROUND_H
#define OP_MOE_REFERENCE_ROUND_H

#include <stdbool.h>
#include <stdint.h>

#include "op/moe/reference.h"

/* All arrays have n elements. */
struct reference_round {
    /* The activation of `gate` (none: the identity), outwards to float32. up NULL: no SwiGLU. */
    void (*activate)(uint32_t n, const double *gate, const double *gate_radius, const double *up,
                     const double *up_radius, float *low, float *high);
    /* Rounds intervals to f16 or bf16: c +- r. */
    void (*native)(bool f16, uint32_t n, const float *low, const float *high, float *c, float *r);
    /* Quantises a group of intervals: c +- r in units of the scale, which is the result. q: [2][n],
     * work space. */
    float (*fp8)(uint32_t n, const float *low, const float *high, float *q, float *c, float *r);
    /* The same for INT8 and all n channels of a token, which are rounded to f16 or bf16 before. */
    float (*int8)(bool f16, uint32_t n, const float *low, const float *high, float *q, float *c,
                  float *r);
    /* See reference.h. */
    struct reference_scale (*quantise)(const float *low, const float *high, uint32_t n,
                                       float *q_low, float *q_high);
    struct reference_scale (*quantise_int8)(const float *low, const float *high, uint32_t n,
                                            float *q_low, float *q_high);
    /* Outputs; rounded: to f16 or bf16. */
    void (*outputs)(bool rounded, bool f16, uint32_t n, const double *center, const double *radius,
                    float *low, float *high);
};

extern const struct reference_round reference_round_portable, reference_round_avx2;

#endif
