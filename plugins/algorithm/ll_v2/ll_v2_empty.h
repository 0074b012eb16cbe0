/* A kernel without work, whose time is the floor of a launch. */
#ifndef LL_V2_EMPTY_H
#define LL_V2_EMPTY_H

#include "ll_v2_device.h"

#ifdef __cplusplus
extern "C" {
#endif

const void *ll_empty_kernel(void);

#ifdef __cplusplus
}
#endif

#endif
