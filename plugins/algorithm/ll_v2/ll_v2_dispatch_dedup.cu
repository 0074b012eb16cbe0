/* Kernels of dispatch with dedup, which copy rows to their experts. */
#include "ll_v2_dispatch.cuh"
#include "ll_v2_dispatch_dedup.h"

#define KERNELS(in) \
    { \
        (const void *)dispatch<in, LL_DEDUP, false>, (const void *)dispatch<in, LL_DEDUP, true> \
    }

const void *ll_dispatch_dedup_kernel(enum device_input in, bool profile)
{
    static const void *const kernel[DEVICE_INPUTS][2] = {
        KERNELS(DEVICE_PLAIN), KERNELS(DEVICE_QUANTISE), KERNELS(DEVICE_QUANTISE_F16),
        KERNELS(DEVICE_FP8)};

    return kernel[in][profile];
}
