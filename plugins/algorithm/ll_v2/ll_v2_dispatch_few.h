/* The kernel of dispatch of ll_v2 for few tokens. */
#ifndef LL_V2_DISPATCH_FEW_H
#define LL_V2_DISPATCH_FEW_H

#include "ll_v2_device.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Returns a kernel that takes a struct ll_args. Modes: LL_BY_RANK, LL_DEDUP. */
const void *ll_dispatch_few_kernel(enum device_input, enum ll_mode, bool profile);
#ifdef __cplusplus
}
#endif

#endif
