/* Kernels of dispatch with dedup and masks, which also make copies. They record no phases. */
#define LL_MASKS 1
#define LL_DISPATCH_COPIES
#include "ll_v2_dispatch.cuh"
#include "ll_v2_dispatch_masked.h"

const void *ll_dispatch_masked_kernel(enum device_input in)
{
    static const void *const kernel[DEVICE_INPUTS] = {
        (const void *)dispatch<DEVICE_PLAIN, LL_DEDUP, false>,
        (const void *)dispatch<DEVICE_QUANTISE, LL_DEDUP, false>,
        (const void *)dispatch<DEVICE_QUANTISE_F16, LL_DEDUP, false>,
        (const void *)dispatch<DEVICE_FP8, LL_DEDUP, false>};

    return kernel[in];
}
