/* Kernels of dispatch for few tokens. */
#include "ll_v2_dispatch_few.h"
#include "ll_v2_dispatch_few.cuh"

#define KERNELS(in, mode) \
    { \
        (const void *)dispatch_few<in, mode, false>, (const void *)dispatch_few<in, mode, true> \
    }
#define MODES(in) \
    { \
        KERNELS(in, LL_BY_RANK), KERNELS(in, LL_DEDUP) \
    }

const void *ll_dispatch_few_kernel(enum device_input in, enum ll_mode mode, bool profile)
{
    static const void *const kernel[DEVICE_INPUTS][2][2] = {
        MODES(DEVICE_PLAIN), MODES(DEVICE_QUANTISE), MODES(DEVICE_QUANTISE_F16), MODES(DEVICE_FP8)};

    return kernel[in][mode == LL_DEDUP][profile];
}
