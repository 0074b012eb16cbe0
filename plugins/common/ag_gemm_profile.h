/* The kernels of AllGather and GEMM on GPUs that record intervals for the profile. */
#ifndef AG_GEMM_PROFILE_H
#define AG_GEMM_PROFILE_H

#include <stdbool.h>

#include "ag_gemm_device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Same as ag_gemm_kernel(); the kernel stores intervals in ag_gemm_args.notes. */
const void *ag_gemm_profile_kernel(int dtype, bool out_fp8, uint32_t tile_cols, uint32_t cluster);

#ifdef __cplusplus
}
#endif

#endif
