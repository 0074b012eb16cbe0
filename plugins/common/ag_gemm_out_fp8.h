/* The kernel of AllGather and GEMM on GPUs with C in FP8. */
#ifndef AG_GEMM_OUT_FP8_H
#define AG_GEMM_OUT_FP8_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the kernel: as ag_gemm_kernel(). It needs the same shared memory. */
const void *ag_gemm_out_fp8_kernel(int dtype, uint32_t tile_cols, uint32_t cluster);

#ifdef __cplusplus
}
#endif

#endif
