/* Copies received rows of layout rank to memory of the application. A warp copies a part of a row; the
 * first part includes the choices. The rows keep their numbers. */
#include "deliver.cuh"
#include "deliver_ordered.h"
#include "ranges.cuh"

namespace
{

/* Copies the choices of a row. Called by one warp. */
EPA_DEV void deliver_choices(const struct deliver_args &a, uint64_t row)
{
    for (uint32_t k = epa_dev_lane(); k < a.to.topk; k += EPA_DEV_WARP) {
        uint64_t at = row * a.to.topk + k;

        if (a.to.topk_idx != NULL)
            a.to.topk_idx[at] = __ldcg(a.recv_local + at);
        if (a.to.topk_weight != NULL)
            a.to.topk_weight[at] = __ldcg(a.recv_local_weight + at);
    }
}

__global__ void deliver_ordered(const __grid_constant__ struct deliver_args a)
{
    extern __shared__ __align__(16) uint32_t shared[];
    const uint32_t thread = blockIdx.x * THREADS + threadIdx.x, threads = gridDim.x * THREADS;
    const uint32_t parts = parts_of_row(a);
    const uint64_t all = (uint64_t)a.to.ranks * a.to.max_tokens * parts;

    count_entries(a.count, a.to.experts, shared);
    for (uint64_t i = thread / EPA_DEV_WARP; i < all; i += threads / EPA_DEV_WARP) {
        uint32_t slot = (uint32_t)(i / parts), part = (uint32_t)(i % parts);
        uint64_t row;

        if (!row_of_source(a.recv_range, slot / a.to.max_tokens, slot % a.to.max_tokens, &row))
            continue;
        deliver_row(a, row, row, part, parts);
        if (part == 0)
            deliver_choices(a, row);
    }
    for (uint32_t i = thread; a.to.row != NULL && i < shared[a.to.experts]; i += threads)
        a.to.row[i] = __ldcg(a.recv_row + i);
    for (uint32_t r = thread; a.to.source_range != NULL && r < a.to.ranks; r += threads)
        a.to.source_range[r] = __ldcg(reinterpret_cast<const long long *>(a.recv_range) + r);
    write_counts(a, shared);
}

} // namespace

cudaError_t deliver_ordered_queue(const struct epa_moe *m, const struct epa_delivery *to,
                                  uint32_t blocks, cudaStream_t stream)
{
    const struct deliver_args args = deliver_args_of(m, to);

    deliver_ordered<<<blocks, THREADS, (to->experts + 1) * sizeof(uint32_t), stream>>>(args);
    return cudaGetLastError();
}
