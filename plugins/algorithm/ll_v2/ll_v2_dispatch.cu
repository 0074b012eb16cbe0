/* Kernels of dispatch whose rows stay where they arrive, and the table of all kernels. These
 * kernels are up to 3 % faster with the lane's number in a register. Kernels with dedup would be up
 * to 4 % slower, as they have no free register. */
#define EPA_DEV_KEEP_LANE
#include "ll_v2_dispatch.cuh"
#include "ll_v2_dispatch.h"
#include "ll_v2_dispatch_dedup.h"

#define KERNELS(in, mode) \
    { \
        (const void *)dispatch<in, mode, false>, (const void *)dispatch<in, mode, true> \
    }
#define MODES(in) \
    { \
        [LL_BY_RANK] = KERNELS(in, LL_BY_RANK), [LL_ORDERED] = KERNELS(in, LL_ORDERED), \
        [LL_DEDUP] = {}, [LL_DIRECT] = KERNELS(in, LL_DIRECT) \
    }

const void *ll_dispatch_kernel(enum device_input in, enum ll_mode mode, bool profile)
{
    static const void *const kernel[DEVICE_INPUTS][LL_MODES][2] = {
        MODES(DEVICE_PLAIN), MODES(DEVICE_QUANTISE), MODES(DEVICE_QUANTISE_F16), MODES(DEVICE_FP8)};

    return mode == LL_DEDUP ? ll_dispatch_dedup_kernel(in, profile) : kernel[in][mode][profile];
}
