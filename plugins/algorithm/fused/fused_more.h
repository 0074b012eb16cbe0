/* Kernels of fused_more.cu. */
#ifndef FUSED_MORE_H
#define FUSED_MORE_H

#include "fused_device.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Returns a kernel that takes a struct fused_args; NULL: no such kernel. */
const void *fused_more_kernel(struct fused_kernel_kind);
#ifdef __cplusplus
}
#endif

#endif
