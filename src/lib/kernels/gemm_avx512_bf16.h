/* Choice between the instruction sets avx512 and avx512_bf16. */
#ifndef KERNELS_GEMM_AVX512_BF16_H
#define KERNELS_GEMM_AVX512_BF16_H

#include <stdbool.h>

bool kernels_pairs_are_quicker(void); /* true: vdpbf16ps is faster than two FMA */

#endif
