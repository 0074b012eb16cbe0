/* Kernels of fused_ways.cu. */
#ifndef FUSED_WAYS_H
#define FUSED_WAYS_H

#include "fused_device.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Returns a kernel that takes a struct fused_args; NULL: no such kernel. */
const void *fused_ways_kernel(struct fused_kernel_kind);
#ifdef __cplusplus
}
#endif

#endif
