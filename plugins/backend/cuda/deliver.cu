/* Copies received rows of layout expert to memory of the application. A warp copies a row. The rows
 * of an expert are sorted by source, so a binary search finds the rows of each source. */
#include "deliver.cuh"

namespace
{

/* Returns the number of rows of the expert whose source is below `rank`. */
EPA_DEV uint32_t rows_below(const struct deliver_args &a, uint64_t start, uint32_t n, uint32_t rank)
{
    uint32_t low = 0;

    while (low < n) {
        uint32_t middle = (low + n) / 2;

        if (__ldcg(origin_at(a, start + middle)) < rank)
            low = middle + 1;
        else
            n = middle;
    }
    return low;
}

__global__ void deliver(const __grid_constant__ struct deliver_args a)
{
    extern __shared__ __align__(16) char shared[];
    const uint32_t thread = blockIdx.x * THREADS + threadIdx.x, threads = gridDim.x * THREADS;
    uint32_t *before = reinterpret_cast<uint32_t *>(shared);

    count_entries(a.count, a.to.experts, before);
    for (uint32_t i = blockIdx.x * WARPS + threadIdx.x / EPA_DEV_WARP; i < before[a.to.experts];
         i += gridDim.x * WARPS) {
        uint32_t e = expert_at(before, a.to.experts, i), j = i - before[e];

        deliver_row(a, __ldcg(a.start + e) + j, a.to.stride != 0 ? e * a.to.stride + j : i);
    }
    for (uint32_t i = thread; a.to.source_range != NULL && i < a.to.experts * a.to.ranks;
         i += threads) {
        uint32_t e = i / a.to.ranks, rank = i % a.to.ranks, n = before[e + 1] - before[e];
        uint64_t start = __ldcg(a.start + e);
        uint32_t begin = rows_below(a, start, n, rank), end = rows_below(a, start, n, rank + 1);

        a.to.source_range[i] = (int64_t)((uint64_t)begin << 32 | (end - begin));
    }
    write_counts(a, before);
}

} // namespace

cudaError_t deliver_queue(const struct epa_moe *m, const struct epa_delivery *to, uint32_t blocks,
                          cudaStream_t stream)
{
    const struct deliver_args args = deliver_args_of(m, to);

    deliver<<<blocks, THREADS, (to->experts + 1) * sizeof(uint32_t), stream>>>(args);
    return cudaGetLastError();
}
