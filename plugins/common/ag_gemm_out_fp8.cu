/* AllGather and GEMM on GPUs: the kernels with C in FP8. */
#include "ag_gemm_out_fp8.h"

#include "ag_gemm_kernel.cuh"

extern "C" const void *ag_gemm_out_fp8_kernel(int dtype, uint32_t tile_cols, uint32_t cluster)
{
    return kernel_for<true>(dtype, tile_cols, cluster);
}
