/* Kernels of fused_groups.cu. */
#ifndef FUSED_GROUPS_H
#define FUSED_GROUPS_H

#include "fused_device.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Returns a kernel that takes a struct fused_args; NULL: no such kernel. */
const void *fused_groups_kernel(struct fused_kernel_kind);
#ifdef __cplusplus
}
#endif

#endif
