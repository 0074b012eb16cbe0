/* For kernels that distribute the entries of all local experts to their threads. Entries are numbered
 * without gaps between experts. */
#ifndef CUDA_ENTRIES_CUH
#define CUDA_ENTRIES_CUH

#include <epa2a/quant.cuh>

enum { THREADS = 256, WARPS = THREADS / EPA_DEV_WARP };

/* All threads: writes the number of entries before each expert, and the total, to shared memory. The
 * loads of all counts overlap. */
EPA_DEV void count_entries(const uint32_t *count, uint32_t experts, uint32_t *before)
{
    for (uint32_t e = threadIdx.x; e < experts; e += THREADS)
        before[e] = __ldcg(count + e);
    __syncthreads();
    if (threadIdx.x < EPA_DEV_WARP) {
        uint32_t sum = 0;

        for (uint32_t first = 0; first < experts; first += EPA_DEV_WARP) {
            uint32_t e = first + epa_dev_lane(), n = e < experts ? before[e] : 0;
            uint32_t up_to = n;

            for (uint32_t step = 1; step < EPA_DEV_WARP; step *= 2) {
                uint32_t other = __shfl_up_sync(EPA_DEV_ALL, up_to, step);

                up_to += epa_dev_lane() >= step ? other : 0;
            }
            if (e < experts)
                before[e] = sum + up_to - n;
            sum += __shfl_sync(EPA_DEV_ALL, up_to, EPA_DEV_WARP - 1);
        }
        if (epa_dev_lane() == 0)
            before[experts] = sum;
    }
    __syncthreads();
}

/* Returns the expert of entry `at`. */
EPA_DEV uint32_t expert_at(const uint32_t *before, uint32_t experts, uint32_t at)
{
    uint32_t low = 0, high = experts;

    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;

        if (before[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

#endif
