/* The kernel of AllGather and GEMM on GPUs with C in 16 bits. */
#ifndef AG_GEMM_KERNELS_H
#define AG_GEMM_KERNELS_H

#include "ag_gemm_device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the kernel, which takes a struct ag_gemm_args. dtype: type of A and B; tile_cols: 128 or
 * 256; cluster: 1 block, or 2 blocks with 256 columns. */
const void *ag_gemm_kernel(int dtype, uint32_t tile_cols, uint32_t cluster);
uint32_t ag_gemm_shared_bytes(uint32_t tile_cols, uint32_t cluster);

#ifdef __cplusplus
}
#endif

#endif
