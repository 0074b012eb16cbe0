/* Copies received rows of layout expert to memory of the application. Several warps copy a row, since
 * a decode step has fewer rows than a GPU has warps, and the loads of one warp would wait for each
 * other. The rows of an expert are sorted by source: a warp finds the begin of each source. */
#include "deliver.cuh"
#include "launch_early.cuh"

namespace
{

/* Returns the number of rows of the expert whose source is below `rank`, which differs by lane. */
EPA_DEV uint32_t rows_below(const struct deliver_args &a, uint64_t start, uint32_t n, uint32_t rank)
{
    uint32_t low = 0;

    if (n <= EPA_DEV_WARP) { /* one load instead of a search */
        uint32_t source = epa_dev_lane() < n ? __ldcg(origin_at(a, start + epa_dev_lane())) : ~0u;

        for (uint32_t i = 0; i < n; i++)
            low += __shfl_sync(EPA_DEV_ALL, source, i) < rank ? 1 : 0;
        return low;
    }
    while (low < n) {
        uint32_t middle = (low + n) / 2;

        if (__ldcg(origin_at(a, start + middle)) < rank)
            low = middle + 1;
        else
            n = middle;
    }
    return low;
}

/* Writes the range of each source in the n rows of an expert. Called by one warp, whose lanes find the
 * begins of successive sources; the last lane only finds the end of the source before. */
EPA_DEV void write_ranges(const struct deliver_args &a, uint32_t e, uint32_t n)
{
    const uint32_t last = EPA_DEV_WARP - 1;
    uint64_t start = __ldcg(a.start + e);

    for (uint32_t first = 0; first < a.to.ranks; first += last) {
        uint32_t rank = first + epa_dev_lane(), begin = rows_below(a, start, n, rank);
        uint32_t end = __shfl_sync(EPA_DEV_ALL, begin, (epa_dev_lane() + 1) % EPA_DEV_WARP);

        if (epa_dev_lane() < last && rank < a.to.ranks)
            a.to.source_range[(size_t)e * a.to.ranks + rank] =
                (int64_t)((uint64_t)begin << 32 | (end - begin));
    }
}

__global__ void deliver(const __grid_constant__ struct deliver_args a)
{
    extern __shared__ __align__(16) char shared[];
    const uint32_t parts = parts_of_row(a), ranges = a.to.source_range != NULL ? a.to.experts : 0;
    uint32_t *before = reinterpret_cast<uint32_t *>(shared);

    epa_dev_after_kernel();
    epa_dev_next_kernel();
    count_entries(a.count, a.to.experts, before);
    write_counts(a, before);
    /* The ranges first: they take longer than a part of a row. */
    for (uint64_t i = blockIdx.x * WARPS + threadIdx.x / EPA_DEV_WARP;
         i < ranges + (uint64_t)before[a.to.experts] * parts; i += gridDim.x * WARPS) {
        uint32_t row, e, j;

        if (i < ranges) {
            write_ranges(a, (uint32_t)i, before[i + 1] - before[i]);
            continue;
        }
        row = (uint32_t)((i - ranges) / parts);
        e = expert_at(before, a.to.experts, row);
        j = row - before[e];
        deliver_row(a, __ldcg(a.start + e) + j, a.to.stride != 0 ? e * a.to.stride + j : row,
                    (uint32_t)((i - ranges) % parts), parts);
    }
}

} // namespace

cudaError_t deliver_queue(const struct epa_moe *m, const struct epa_delivery *to, uint32_t blocks,
                          bool early, cudaStream_t stream)
{
    const struct deliver_args args = deliver_args_of(m, to);

    return launch_early(early, deliver, blocks, THREADS, (to->experts + 1) * sizeof(uint32_t),
                        stream, args);
}
