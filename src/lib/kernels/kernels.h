/* The row operations of the instruction set of this CPU. */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include "kernels/rows.h"

/* Returns the set for this CPU and EPA2A_ISA, like epa_kernels_get(). */
const struct gemm_rows *gemm_rows_get(void);

/* Returns true if this set contains AVX2 and FMA. */
bool kernels_use_avx2(void);

#endif
