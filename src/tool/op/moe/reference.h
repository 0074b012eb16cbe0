/* Outputs of real experts in float64, as intervals. */
#ifndef OP_MOE_REFERENCE_H
#define OP_MOE_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "op/moe/weights.h"

struct reference;

struct reference_params {
    const struct weights *weights;
    bool f16;              /* intermediate and outputs are rounded to f16; false: to bf16 */
    bool rounded;          /* outputs are rounded; false: they stay float32 */
    uint32_t fp8_sum_bits; /* as in epa_moe_footprint */
    uint32_t rows;         /* maximum number of rows of a call below */
};

/* A row in the input format of the up projection, [hidden]: values of dtype, or codes with a scale per
 * weights.x_group channels, with INT8 one scale (NULL: native weights); and the destinations of its outputs, [hidden] each. */
struct reference_row {
    const float *x, *scale;
    float *low, *high;
};

/* Returns NULL without memory. */
struct reference *reference_create(const struct reference_params *);
void reference_destroy(struct reference *); /* accepts NULL */

/* Computes the outputs of n rows of one expert. An interval from -infinity to infinity means that the
 * output is unknown, since an earlier value may have overflowed. */
void reference_expert(struct reference *, uint32_t expert, uint32_t n,
                      const struct reference_row *);

/* Returns the bytes that reference_create() allocates. */
uint64_t reference_bytes(const struct weights *, uint32_t rows);

/* Returns the multiply-adds of a row, so that callers can limit their time. */
double reference_cost(const struct weights *);

/* Quantises a group of n values, each in an interval from low to high, to FP8 codes and a scale. */
struct reference_scale {
    float low, high;
};
struct reference_scale reference_quantise(const float *low, const float *high, uint32_t n,
                                          float *q_low, float *q_high);
/* The same for INT8. The outputs may be the inputs. */
struct reference_scale reference_quantise_int8(const float *low, const float *high, uint32_t n,
                                               float *q_low, float *q_high);

#endif
