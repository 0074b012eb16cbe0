/* The kernel of dispatch of ll_v2 for few tokens that copies rows and choices to memory of the caller. */
#ifndef LL_V2_DISPATCH_FEW_COPIES_H
#define LL_V2_DISPATCH_FEW_COPIES_H

#include "ll_v2_device.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Returns a kernel that takes a struct ll_args. Mode: LL_DEDUP. */
const void *ll_dispatch_few_copies_kernel(enum device_input, bool profile);
#ifdef __cplusplus
}
#endif

#endif
