/* Kernels of fused. */
#ifndef FUSED_LAYER_H
#define FUSED_LAYER_H

#include "fused_device.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Returns a kernel that takes a struct fused_args; NULL: no such kernel. */
const void *fused_kernel(struct fused_kernel_kind);
/* Returns the kernel that packs weights; it takes a struct fused_args. */
const void *fused_pack_kernel(void);
uint32_t fused_shared_bytes(struct fused_kernel_kind, struct fused_args *);
#ifdef __cplusplus
}
#endif

#endif
