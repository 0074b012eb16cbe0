/* Copies received rows of layout expert to memory of the application. A warp copies a row. The rows
 * of an expert are sorted by source, so a binary search finds the rows of each source. */
#include <epa2a/quant.cuh>

#include "deliver.h"

namespace
{

enum { THREADS = 256, WARPS = THREADS / EPA_DEV_WARP };

struct deliver_args {
    struct epa_delivery to;
    const uint32_t *count;
    const uint64_t *start;
    const char *recv, *recv_scale, *origin;
    size_t recv_stride, scale_stride, origin_stride;
};

/* All threads: writes the number of rows before each expert, and the total, to shared memory. */
EPA_DEV void count_rows(const struct deliver_args &a, uint32_t *before)
{
    if (threadIdx.x < EPA_DEV_WARP) {
        uint32_t sum = 0;

        for (uint32_t first = 0; first < a.to.experts; first += EPA_DEV_WARP) {
            uint32_t e = first + epa_dev_lane(), n = e < a.to.experts ? __ldcg(a.count + e) : 0;
            uint32_t up_to = n;

            for (uint32_t step = 1; step < EPA_DEV_WARP; step *= 2) {
                uint32_t other = __shfl_up_sync(EPA_DEV_ALL, up_to, step);

                up_to += epa_dev_lane() >= step ? other : 0;
            }
            if (e < a.to.experts)
                before[e] = sum + up_to - n;
            sum += __shfl_sync(EPA_DEV_ALL, up_to, EPA_DEV_WARP - 1);
        }
        if (epa_dev_lane() == 0)
            before[a.to.experts] = sum;
    }
    __syncthreads();
}

EPA_DEV uint32_t expert_at(const struct deliver_args &a, const uint32_t *before, uint32_t at)
{
    uint32_t low = 0, high = a.to.experts;

    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;

        if (before[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

EPA_DEV const uint32_t *origin_at(const struct deliver_args &a, uint64_t row)
{
    return reinterpret_cast<const uint32_t *>(a.origin + row * a.origin_stride);
}

EPA_DEV void copy_row(const struct deliver_args &a, uint64_t from, uint64_t to)
{
    const uint32_t lane = epa_dev_lane();
    const char *row = a.recv + from * a.recv_stride, *scale = a.recv_scale + from * a.scale_stride;

    for (uint32_t at = lane * 16; a.to.x != NULL && at < a.to.row_bytes; at += EPA_DEV_WARP * 16)
        epa_dev_store16(static_cast<char *>(a.to.x) + to * a.to.row_bytes + at,
                        epa_dev_load16(row + at));
    for (uint32_t g = lane; a.to.x_scale != NULL && g < a.to.groups; g += EPA_DEV_WARP)
        a.to.x_scale[to * a.to.groups + g] = __ldcg(reinterpret_cast<const float *>(scale) + g);
    if (a.to.source_token != NULL && lane == 0)
        a.to.source_token[to] = (int32_t)__ldcg(origin_at(a, from) + 1);
}

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

    count_rows(a, before);
    for (uint32_t i = blockIdx.x * WARPS + threadIdx.x / EPA_DEV_WARP; i < before[a.to.experts];
         i += gridDim.x * WARPS) {
        uint32_t e = expert_at(a, before, i), j = i - before[e];

        copy_row(a, __ldcg(a.start + e) + j, a.to.stride != 0 ? e * a.to.stride + j : i);
    }
    for (uint32_t i = thread; a.to.source_range != NULL && i < a.to.experts * a.to.ranks;
         i += threads) {
        uint32_t e = i / a.to.ranks, rank = i % a.to.ranks, n = before[e + 1] - before[e];
        uint64_t start = __ldcg(a.start + e);
        uint32_t begin = rows_below(a, start, n, rank), end = rows_below(a, start, n, rank + 1);

        a.to.source_range[i] = (int64_t)((uint64_t)begin << 32 | (end - begin));
    }
    for (uint32_t e = thread; e < a.to.experts; e += threads) {
        uint32_t n = before[e + 1] - before[e];

        if (a.to.count != NULL)
            a.to.count[e] = n;
        if (a.to.start != NULL)
            a.to.start[e] = a.to.stride != 0 ? e * a.to.stride : before[e];
        if (a.to.seen != NULL)
            a.to.seen[e] += (int32_t)n;
    }
}

} // namespace

cudaError_t deliver_queue(const struct epa_moe *m, const struct epa_delivery *to, uint32_t blocks,
                          cudaStream_t stream)
{
    const struct deliver_args args = {
        *to,
        m->recv_count,
        m->recv_start,
        static_cast<const char *>(m->recv),
        reinterpret_cast<const char *>(m->recv_scale),
        reinterpret_cast<const char *>(m->origin),
        m->recv_stride,
        m->scale_stride,
        m->origin_stride,
    };

    deliver<<<blocks, THREADS, (to->experts + 1) * sizeof(uint32_t), stream>>>(args);
    return cudaGetLastError();
}
