/* What the files of this folder share: the sets, and which of them this build has. */
#ifndef KERNELS_SETS_H
#define KERNELS_SETS_H

#include <stdbool.h>

#include "epa2a/quant.h"

/* For code that is written once for both types and has to know which one when compiled. */
#define INLINED static inline __attribute__((always_inline))

struct kernels_candidate {
    const struct epa_kernels *set;
    bool (*usable)(void); /* the CPU has it and the system saves its registers */
};

/* Best first; the scalar ones, then one without a set, end it. */
extern const struct kernels_candidate kernels_candidates[];

extern const struct epa_kernels kernels_scalar, kernels_avx2, kernels_avx512;
extern const struct epa_kernels kernels_scalar_f16, kernels_avx2_f16, kernels_avx512_f16;

void kernels_avx512_quantise(const uint16_t *x, uint32_t hidden, uint32_t group,
                             const uint16_t *next, uint8_t *q, float *scale);
void kernels_avx512_quantise_f16(const uint16_t *x, uint32_t hidden, uint32_t group,
                                 const uint16_t *next, uint8_t *q, float *scale);

#endif
