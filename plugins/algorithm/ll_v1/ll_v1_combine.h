/* The kernel of combine of ll_v1. */
#ifndef LL_V1_COMBINE_H
#define LL_V1_COMBINE_H

#include "ll_v1_device.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Returns a kernel that takes a struct v1_args. */
const void *v1_combine_kernel(bool f16, bool pull, bool profile);
#ifdef __cplusplus
}
#endif

#endif
