/* Kernels of fused_picks.cu. */
#ifndef FUSED_PICKS_H
#define FUSED_PICKS_H

#include "fused_device.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Returns a kernel that takes a struct fused_args; NULL: no such kernel. */
const void *fused_picks_kernel(struct fused_kernel_kind);
#ifdef __cplusplus
}
#endif

#endif
