/* A kernel without work, whose time is the floor of a launch. */
#ifndef LL_V1_EMPTY_H
#define LL_V1_EMPTY_H

#include "ll_v1_device.h"

#ifdef __cplusplus
extern "C" {
#endif

const void *v1_empty_kernel(void);

#ifdef __cplusplus
}
#endif

#endif
