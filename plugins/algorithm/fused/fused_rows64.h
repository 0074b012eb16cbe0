/* Kernels of fused_rows64.cu. */
#ifndef FUSED_ROWS64_H
#define FUSED_ROWS64_H

#include "fused_device.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Returns a kernel that takes a struct fused_args; NULL: no such kernel. */
const void *fused_rows64_kernel(struct fused_kernel_kind);
#ifdef __cplusplus
}
#endif

#endif
