/* The kernel between the two halves of a call of ll_v2. */
#ifndef LL_V2_FAR_H
#define LL_V2_FAR_H

#include "ll_v2_device.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Puts the data that the previous kernel has stored for other nodes, waits for their data, or
 * both. */
struct device_far ll_far(void);
#ifdef __cplusplus
}
#endif

#endif
