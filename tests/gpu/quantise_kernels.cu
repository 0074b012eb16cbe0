/* The quantiser of kernels on its own: each warp handles 512 channels. */
#include <epa2a/quant.cuh>

enum { LANE = 16, SWEEP = LANE * EPA_DEV_WARP };

template <bool F16>
static __global__ void quantise(const uint4 *x, uint32_t sweeps, uint32_t group, uint4 *q,
                                float *scale)
{
    uint32_t sweep = blockIdx.x * (blockDim.x / EPA_DEV_WARP) + threadIdx.x / EPA_DEV_WARP;
    size_t at = (size_t)sweep * EPA_DEV_WARP + epa_dev_lane();
    float by;
    uint4 codes;

    if (sweep >= sweeps)
        return;
    codes = epa_dev_quantise16<F16>(x[2 * at], x[2 * at + 1], group / LANE, &by);
    q[at] = codes;
    scale[at * LANE / group] = by;
}

extern "C" cudaError_t quantise_queue(bool f16, const uint4 *x, uint32_t n, uint32_t group,
                                      uint4 *q, float *scale)
{
    const auto kernel = f16 ? quantise<true> : quantise<false>;
    const uint32_t sweeps = n / SWEEP;

    kernel<<<(sweeps + 7) / 8, 256>>>(x, sweeps, group, q, scale);
    return cudaGetLastError();
}
