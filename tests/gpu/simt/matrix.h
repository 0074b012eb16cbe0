/* wgmma: products of tiles in shared memory, by warpgroups. */
#ifndef SIMT_MATRIX_H
#define SIMT_MATRIX_H

#include "simt.h"

#ifdef __cplusplus
extern "C" {
#endif

enum simt_type { SIMT_BF16, SIMT_F16, SIMT_E4M3 };

/* An instruction: D = A * B^T (+ D if `sum`), 64 x n, over 32 bytes of K. */
struct simt_product {
    uint64_t a, b; /* descriptors */
    uint32_t n;
    enum simt_type type;
    uint32_t sum;
};

/* For kernels: as the functions of epa2a/sm90.cuh. */
SIMT_EXPORT void simt_wgmma_begin(void);
SIMT_EXPORT void simt_wgmma(float *d, const struct simt_product *);
SIMT_EXPORT void simt_wgmma_commit(void);
SIMT_EXPORT void simt_wgmma_wait(uint32_t pending);

#ifdef __cplusplus
}
#else

void simt_matrix_begin(struct worker *);
/* Ends the program where a warpgroup has not done together what it should. */
void simt_matrix_end(struct worker *);

#endif
#endif
