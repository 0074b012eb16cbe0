/* The quantiser of kernels, by itself: a warp takes 512 channels. */
#include <epa2a/quant.cuh>

#include "quantise_kernels.h"

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

/* [n] bf16 or f16, n a multiple of 512, to [n] codes and [n / group] scales; host memory. */
int quantise_on_gpu(bool f16, const uint16_t *x, size_t n, uint32_t group, uint8_t *q, float *scale)
{
    uint32_t sweeps = (uint32_t)(n / SWEEP);
    void (*kernel)(const uint4 *, uint32_t, uint32_t, uint4 *, float *) =
        f16 ? quantise<true> : quantise<false>;
    void *from = NULL, *to = NULL, *by = NULL;
    cudaError_t code = cudaMalloc(&from, 2 * n);

    if (code == cudaSuccess)
        code = cudaMalloc(&to, n);
    if (code == cudaSuccess)
        code = cudaMalloc(&by, n / group * sizeof(float));
    if (code == cudaSuccess)
        code = cudaMemcpy(from, x, 2 * n, cudaMemcpyHostToDevice);
    if (code == cudaSuccess) {
        kernel<<<(sweeps + 7) / 8, 256>>>((const uint4 *)from, sweeps, group, (uint4 *)to,
                                          (float *)by);
        code = cudaGetLastError();
    }
    if (code == cudaSuccess)
        code = cudaMemcpy(q, to, n, cudaMemcpyDeviceToHost);
    if (code == cudaSuccess)
        code = cudaMemcpy(scale, by, n / group * sizeof(float), cudaMemcpyDeviceToHost);
    cudaFree(from);
    cudaFree(to);
    cudaFree(by);
    return (int)code;
}
