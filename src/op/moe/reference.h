/* Outputs of real experts in float64, as intervals that hold every right output. */
#ifndef REFERENCE_H
#define REFERENCE_H

#include "op/moe/weights.h"

struct reference;

struct reference_params {
    const struct weights *weights;
    bool f16;              /* what the intermediate and outputs are rounded to; else bf16 */
    bool rounded;          /* outputs are; else they stay float32 */
    uint32_t fp8_sum_bits; /* as in epa_moe_footprint */
    uint32_t rows;         /* at most, of one call below */
};

/* A row as the up projection reads it, [hidden]: values of dtype, or codes with a scale for each
 * 128 channels (NULL: native weights); and where its outputs go, [hidden] each. */
struct reference_row {
    const float *x, *scale;
    float *low, *high;
};

/* NULL: no memory. */
struct reference *reference_create(const struct reference_params *);
void reference_destroy(struct reference *); /* takes NULL */

/* Outputs of n rows of one expert. An interval from -infinity to infinity: not known, as
 * something before it may have overflowed. */
void reference_expert(struct reference *, uint32_t expert, uint32_t n,
                      const struct reference_row *);

/* Bytes that create takes. */
uint64_t reference_bytes(const struct weights *, uint32_t rows);

/* Multiply-adds of a row: what a caller bounds its time by. */
double reference_cost(const struct weights *);

/* A group of n values, each somewhere from low to high, quantised to FP8: codes, and its
 * scale. */
struct reference_scale {
    float low, high;
};
struct reference_scale reference_quantise(const float *low, const float *high, uint32_t n,
                                          float *q_low, float *q_high);

#endif
