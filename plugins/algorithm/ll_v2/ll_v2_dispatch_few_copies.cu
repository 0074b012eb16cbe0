/* Kernels of dispatch for few tokens with dedup that also make the copies that the caller requested. */
#define LL_DISPATCH_COPIES
#include "ll_v2_dispatch_few_copies.h"
#include "ll_v2_dispatch_few.cuh"

#define KERNELS(in) \
    { \
        (const void *)dispatch_few<in, LL_DEDUP, false>, \
            (const void *)dispatch_few<in, LL_DEDUP, true> \
    }

const void *ll_dispatch_few_copies_kernel(enum device_input in, bool profile)
{
    static const void *const kernel[DEVICE_INPUTS][2] = {
        KERNELS(DEVICE_PLAIN), KERNELS(DEVICE_QUANTISE), KERNELS(DEVICE_QUANTISE_F16),
        KERNELS(DEVICE_FP8)};

    return kernel[in][profile];
}
