/* Copy of expert outputs to the heap, from which other ranks pull them. Only the device knows the
 * number of rows, so a copy by the driver would move the capacity. A warp takes a part of a row. */
#include <epa2a/quant.cuh>

#include "ll_v2_copy.h"

namespace
{

enum {
    BLOCKS = 4, /* per multiprocessor */
    LOADS = 4,  /* number of loads of a lane in flight */
    PART = LOADS * EPA_DEV_WARP * 16
};

__global__ void __launch_bounds__(DEVICE_THREADS)
    copy(const __grid_constant__ struct ll_copy_args a)
{
    const uint32_t parts = (a.row_bytes + PART - 1) / PART;
    const uint64_t all = (uint64_t)a.size * a.max_tokens * parts;
    const uint32_t warp = blockIdx.x * DEVICE_WARPS + threadIdx.x / EPA_DEV_WARP;

    for (uint64_t u = warp; u < all; u += gridDim.x * DEVICE_WARPS) {
        uint32_t i = (uint32_t)(u / parts),
                 first = (uint32_t)(u % parts) * PART + epa_dev_lane() * 16;
        uint64_t range =
            (uint64_t)__ldcg(reinterpret_cast<const long long *>(a.range) + i / a.max_tokens);
        uint64_t row = ((range >> 32) + i % a.max_tokens) * a.row_bytes;
        uint4 v[LOADS];

        if (i % a.max_tokens >= (uint32_t)range)
            continue;
#pragma unroll
        for (uint32_t l = 0; l < LOADS; l++)
            if (first + l * EPA_DEV_WARP * 16 < a.row_bytes)
                v[l] = epa_dev_load16(a.from + row + first + l * EPA_DEV_WARP * 16);
#pragma unroll
        for (uint32_t l = 0; l < LOADS; l++)
            if (first + l * EPA_DEV_WARP * 16 < a.row_bytes)
                epa_dev_store16(a.to + row + first + l * EPA_DEV_WARP * 16, v[l]);
    }
}

} // namespace

int ll_copy_load(void)
{
    cudaFuncAttributes attributes;

    return cudaFuncGetAttributes(&attributes, copy);
}

int ll_copy_rows(const struct ll_copy_args *args, uint32_t multiprocessors, void *stream)
{
    copy<<<BLOCKS * multiprocessors, DEVICE_THREADS, 0, static_cast<cudaStream_t>(stream)>>>(*args);
    return cudaGetLastError();
}
