/* The kernel of dispatch of ll_v1. */
#ifndef LL_V1_DISPATCH_H
#define LL_V1_DISPATCH_H

#include "ll_v1_device.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Returns a kernel that takes a struct v1_args. */
const void *v1_dispatch_kernel(enum device_input, bool profile);
#ifdef __cplusplus
}
#endif

#endif
