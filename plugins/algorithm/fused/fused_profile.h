/* Kernels of fused_profile.cu. */
#ifndef FUSED_PROFILE_H
#define FUSED_PROFILE_H

#include "fused_device.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Returns a kernel that takes a struct fused_args; NULL: no such kernel. */
const void *fused_profile_kernel(struct fused_kernel_kind);
#ifdef __cplusplus
}
#endif

#endif
