/* Copies choices of 4 or 8 bytes to choices of 4 bytes, and their weights. A thread copies an
 * element. */
#include <epa2a/ptx.cuh>

#include "choices.h"
#include "launch_early.cuh"

namespace
{

enum { THREADS = 256 };

EPA_DEV int32_t choice_at(const struct epa_choices_copy &c, uint64_t i)
{
    if (c.bytes == sizeof(int64_t))
        return (int32_t) static_cast<const int64_t *>(c.expert)[i];
    return static_cast<const int32_t *>(c.expert)[i];
}

__global__ void copy_choices(const __grid_constant__ struct epa_choices_copy c)
{
    epa_dev_after_kernel();
    epa_dev_next_kernel();
    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < c.n;
         i += (uint64_t)gridDim.x * THREADS) {
        int32_t expert = choice_at(c, i);
        float weight = c.weight != NULL ? c.weight[i] : 0.0f;

        for (int to = 0; to < 2; to++) {
            if (c.to_expert[to] != NULL)
                c.to_expert[to][i] = expert;
            if (c.to_weight[to] != NULL)
                c.to_weight[to][i] = weight;
        }
    }
}

} // namespace

cudaError_t choices_queue(const struct epa_choices_copy *c, uint32_t blocks, bool early,
                          cudaStream_t stream)
{
    uint64_t most = (c->n + THREADS - 1) / THREADS;

    if (c->n == 0)
        return cudaSuccess;
    return launch_early(early, copy_choices, most < blocks ? (uint32_t)most : blocks, THREADS, 0,
                        stream, *c);
}
