/* The kernel between the two halves of a call of ll_v1. */
#ifndef LL_V1_FAR_H
#define LL_V1_FAR_H

#include "ll_v1_device.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Puts the data that the previous kernel has stored for other nodes, and waits for theirs. */
struct device_far v1_far(void);
#ifdef __cplusplus
}
#endif

#endif
