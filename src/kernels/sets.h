/* What the files of this folder share: the sets, and which of them this build has. */
#ifndef KERNELS_SETS_H
#define KERNELS_SETS_H

#include <stdbool.h>

#include "epa2a/gemm.h"
#include "epa2a/quant.h"

/* For code that is written once for both types and has to know which one when compiled. */
#define INLINED static inline __attribute__((always_inline))

/* An instruction set, as EPA2A_ISA names it. One that has no kernels of some kind for some type
 * stands for the next one that has. */
struct kernels_isa {
    const char *name;
    bool (*usable)(void); /* the CPU has it and the system saves its registers */
    /* Asked where no one has chosen: does it multiply quicker than the next? NULL: yes. */
    bool (*quicker)(void);
};

/* Best first; the scalar one, which any CPU can run, then one without a name, end it. */
extern const struct kernels_isa kernels_isas[];

/* All that this build has, in any order; NULL ends them. */
extern const struct epa_kernels *const kernels_all[];
extern const struct epa_gemm *const kernels_all_gemms[];

extern const struct epa_kernels kernels_scalar, kernels_avx2, kernels_avx512;
extern const struct epa_kernels kernels_scalar_f16, kernels_avx2_f16, kernels_avx512_f16;

/* By the type of the weights. */
extern const struct epa_gemm kernels_gemm_scalar[3], kernels_gemm_avx2[3], kernels_gemm_avx512[3];
extern const struct epa_gemm kernels_gemm_avx512_bf16[2], kernels_gemm_amx[2]; /* bf16, FP8 */

bool kernels_pairs_are_quicker(void); /* vdpbf16ps than two FMA */

void kernels_avx512_quantise(const uint16_t *x, uint32_t hidden, uint32_t group,
                             const uint16_t *next, uint8_t *q, float *scale);
void kernels_avx512_quantise_f16(const uint16_t *x, uint32_t hidden, uint32_t group,
                                 const uint16_t *next, uint8_t *q, float *scale);

#endif
