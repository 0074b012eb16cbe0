/* AllGather and GEMM on GPUs: the kernels that record intervals for the profile. */
#include "ag_gemm_profile.h"

#define AG_GEMM_PROFILE 1
#include "ag_gemm_kernel.cuh"

extern "C" const void *ag_gemm_profile_kernel(int dtype, bool out_fp8, uint32_t tile_cols,
                                              uint32_t cluster)
{
    return out_fp8 ? kernel_for<true>(dtype, tile_cols, cluster)
                   : kernel_for<false>(dtype, tile_cols, cluster);
}
