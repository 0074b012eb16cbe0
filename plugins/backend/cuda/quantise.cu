/* Quantises tokens to FP8. A warp quantises a group. */
#include "quantise.cuh"
#include "quantise.h"

namespace
{

enum { THREADS = 256, WARPS = THREADS / EPA_DEV_WARP };

template <bool F16> __global__ void quantise(const __grid_constant__ struct epa_quantise q)
{
    const uint32_t groups = q.hidden / q.group;
    const uint64_t all = (uint64_t)q.rows * groups;

    for (uint64_t i = (uint64_t)blockIdx.x * WARPS + threadIdx.x / EPA_DEV_WARP; i < all;
         i += (uint64_t)gridDim.x * WARPS) {
        uint64_t first = i / groups * q.hidden + i % groups * q.group;
        float scale = quantise_group<F16>(static_cast<const char *>(q.x) + 2 * first, q.group,
                                          q.pow2, static_cast<char *>(q.codes) + first);

        if (epa_dev_lane() == 0)
            q.scale[i] = scale;
    }
}

} // namespace

cudaError_t quantise_queue(const struct epa_quantise *q, uint32_t blocks, cudaStream_t stream)
{
    void (*const kernel)(struct epa_quantise) =
        q->dtype == EPA_F16 ? quantise<true> : quantise<false>;
    uint64_t most = ((uint64_t)q->rows * (q->hidden / q->group) + WARPS - 1) / WARPS;
    uint32_t grid = most < blocks ? (uint32_t)most : blocks;

    if (grid == 0)
        return cudaSuccess;
    kernel<<<grid, THREADS, 0, stream>>>(*q);
    return cudaGetLastError();
}
