/* Adds biases to sums. A thread adds two values, which share a word. */
#include <epa2a/quant.cuh>

#include "bias.h"

namespace
{

enum { THREADS = 256 };

struct bias_args {
    const uint32_t *bias[2];
    uint32_t *out;
    uint64_t words;
};

template <bool F16> __global__ void add_bias(const __grid_constant__ struct bias_args a)
{
    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < a.words;
         i += (uint64_t)gridDim.x * THREADS) {
        float low = epa_dev_low<F16>(a.out[i]), high = epa_dev_high<F16>(a.out[i]);

        for (int b = 0; b < 2; b++)
            if (a.bias[b] != NULL) {
                low += epa_dev_low<F16>(a.bias[b][i]);
                high += epa_dev_high<F16>(a.bias[b][i]);
            }
        a.out[i] = epa_dev_pack2<F16>(low, high);
    }
}

} // namespace

cudaError_t bias_queue(const void *const bias[2], enum epa_dtype dtype, uint64_t n, void *out,
                       uint32_t blocks, cudaStream_t stream)
{
    const struct bias_args a = {
        {static_cast<const uint32_t *>(bias[0]), static_cast<const uint32_t *>(bias[1])},
        static_cast<uint32_t *>(out),
        n / 2,
    };
    void (*const kernel)(struct bias_args) = dtype == EPA_F16 ? add_bias<true> : add_bias<false>;
    uint64_t most = (a.words + THREADS - 1) / THREADS;
    uint32_t grid = most < blocks ? (uint32_t)most : blocks;

    if (a.words == 0)
        return cudaSuccess;
    kernel<<<grid, THREADS, 0, stream>>>(a);
    return cudaGetLastError();
}
