/* AllGather and GEMM on GPUs: the kernels with C in 16 bits. */
#include "ag_gemm_kernels.h"

#include "ag_gemm_kernel.cuh"

extern "C" const void *ag_gemm_kernel(int dtype, uint32_t tile_cols, uint32_t cluster)
{
    return kernel_for<false>(dtype, tile_cols, cluster);
}

extern "C" uint32_t ag_gemm_shared_bytes(uint32_t tile_cols, uint32_t cluster)
{
    return (uint32_t)(tile_cols == GEMM_BOX ? sizeof(shared_head<1, 1>)
                      : cluster == 1        ? sizeof(shared_head<2, 1>)
                                            : sizeof(shared_head<2, 2>));
}
