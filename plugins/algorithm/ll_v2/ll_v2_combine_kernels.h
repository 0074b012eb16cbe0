/* The kernel of combine of ll_v2. */
#ifndef LL_V2_COMBINE_KERNELS_H
#define LL_V2_COMBINE_KERNELS_H

#include "ll_v2_device.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Returns a kernel that takes a struct ll_args; NULL for unsupported combinations. */
const void *ll_combine_kernel(struct ll_combine_kind);
#ifdef __cplusplus
}
#endif

#endif
