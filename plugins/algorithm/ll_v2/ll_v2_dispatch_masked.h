/* The kernel of dispatch of ll_v2 with dedup and masks. */
#ifndef LL_V2_DISPATCH_MASKED_H
#define LL_V2_DISPATCH_MASKED_H

#include "ll_v2_device.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Returns a kernel that takes a struct ll_args. */
const void *ll_dispatch_masked_kernel(enum device_input);
#ifdef __cplusplus
}
#endif

#endif
