/* Layout rank: orders received rows by source rank, then by token.
 *
 * An algorithm stores rows anywhere, and entries name them. A bit of each token that has a row is set
 * for all entries of the row, and the prefix sums of the bits are the places of the rows. The steps
 * are kernels of their own, since each needs the previous one of all blocks. */
#include "places.cuh"
#include "places.h"

namespace
{

enum { SCAN_THREADS = 1024, SCAN_WARPS = SCAN_THREADS / EPA_DEV_WARP };

/* Sets the bits of the tokens that have a row. A thread takes an entry. */
__global__ void mark_rows(const __grid_constant__ struct deliver_args a)
{
    extern __shared__ __align__(16) uint32_t shared[];
    const uint32_t words = words_of(a.places);

    count_entries(a.count, a.to.experts, shared);
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < shared[a.to.experts];
         i += gridDim.x * THREADS) {
        uint32_t e = expert_at(shared, a.to.experts, i);
        uint32_t row = __ldcg(a.recv_row + __ldcg(a.start + e) + (i - shared[e]));
        uint32_t rank = __ldcg(origin_at(a, row)), token = __ldcg(origin_at(a, row) + 1);

        atomicOr(a.places.sent + rank * words + token / 32, 1u << token % 32);
        a.places.in_view[rank * words * 32 + token] = row;
    }
}

/* Returns the sum of `n` of the threads before this one in the block; *total: of all threads. */
EPA_DEV uint32_t sum_before(uint32_t n, uint32_t *total)
{
    __shared__ uint32_t of_warp[SCAN_WARPS];
    const uint32_t lane = epa_dev_lane(), warp = threadIdx.x / EPA_DEV_WARP;
    uint32_t up_to = n, earlier = 0, all = 0;

    for (uint32_t step = 1; step < EPA_DEV_WARP; step *= 2) {
        uint32_t other = __shfl_up_sync(EPA_DEV_ALL, up_to, step);

        up_to += lane >= step ? other : 0;
    }
    if (lane == EPA_DEV_WARP - 1)
        of_warp[warp] = up_to;
    __syncthreads();
    for (uint32_t w = 0; w < SCAN_WARPS; w++) {
        earlier += w < warp ? of_warp[w] : 0;
        all += of_warp[w];
    }
    *total = all;
    return earlier + up_to - n;
}

/* Adds up the bits. One block; each thread takes neighbouring words. */
__global__ void sum_rows(const __grid_constant__ struct epa_places p)
{
    const uint32_t words = words_of(p), all = p.ranks * words;
    const uint32_t each = (all + SCAN_THREADS - 1) / SCAN_THREADS;
    const uint32_t begin = min(all, threadIdx.x * each), end = min(all, begin + each);
    uint32_t n = 0, total;

    for (uint32_t i = begin; i < end; i++)
        n += __popc(__ldcg(p.sent + i));
    n = sum_before(n, &total);
    for (uint32_t i = begin; i < end; i++) {
        p.before[i] = n;
        if (i % words == 0)
            p.first[i / words] = n;
        n += __popc(__ldcg(p.sent + i));
    }
    if (threadIdx.x == 0)
        p.first[p.ranks] = total;
}

/* Copies the rows, and clears their choices. A warp copies a row. */
__global__ void deliver_rows(const __grid_constant__ struct deliver_args a)
{
    extern __shared__ __align__(16) uint32_t shared[];
    const uint32_t thread = blockIdx.x * THREADS + threadIdx.x, threads = gridDim.x * THREADS;
    const struct epa_places &p = a.places;
    const uint32_t slots = words_of(p) * 32;

    count_entries(a.count, a.to.experts, shared);
    for (uint32_t i = thread / EPA_DEV_WARP; i < p.ranks * p.max_tokens;
         i += threads / EPA_DEV_WARP) {
        uint32_t rank = i / p.max_tokens, token = i % p.max_tokens, place;

        if (!find_place(p, rank, token, &place))
            continue;
        deliver_row(a, __ldcg(p.in_view + rank * slots + token), place, 0, 1);
        for (uint32_t k = epa_dev_lane(); k < a.to.topk; k += EPA_DEV_WARP) {
            if (a.to.topk_idx != NULL)
                a.to.topk_idx[(size_t)place * a.to.topk + k] = -1;
            if (a.to.topk_weight != NULL)
                a.to.topk_weight[(size_t)place * a.to.topk + k] = 0.0f;
        }
    }
    for (uint32_t r = thread; a.to.source_range != NULL && r < p.ranks; r += threads) {
        uint32_t first = __ldcg(p.first + r), n = __ldcg(p.first + r + 1) - first;

        a.to.source_range[r] = (int64_t)((uint64_t)(p.padded ? r * p.max_tokens : first) << 32 | n);
    }
    write_counts(a, shared);
}

/* Writes the entries and the choices of their rows. A thread takes an entry. */
__global__ void deliver_entries(const __grid_constant__ struct deliver_args a)
{
    extern __shared__ __align__(16) uint32_t shared[];

    count_entries(a.count, a.to.experts, shared);
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < shared[a.to.experts];
         i += gridDim.x * THREADS) {
        uint32_t e = expert_at(shared, a.to.experts, i);
        struct entry entry = find_entry(a, e, i - shared[e]);
        size_t k = (size_t)entry.place * a.to.topk + entry.choice;

        if (a.to.row != NULL)
            a.to.row[i] = entry.place;
        if (a.to.topk_idx != NULL)
            a.to.topk_idx[k] = (int32_t)e;
        if (a.to.topk_weight != NULL)
            a.to.topk_weight[k] = __ldcg(a.recv_weight + __ldcg(a.start + e) + (i - shared[e]));
    }
}

struct gather_args {
    struct epa_places places;
    const char *from;
    char *to;
    uint32_t row_bytes;
};

/* Copies rows from their places to the view. A warp copies a row. */
__global__ void gather_rows(const __grid_constant__ struct gather_args a)
{
    const uint32_t warp = (blockIdx.x * THREADS + threadIdx.x) / EPA_DEV_WARP;
    const struct epa_places &p = a.places;
    const uint32_t slots = words_of(p) * 32;

    for (uint32_t i = warp; i < p.ranks * p.max_tokens; i += gridDim.x * WARPS) {
        uint32_t rank = i / p.max_tokens, token = i % p.max_tokens, place;

        if (!find_place(p, rank, token, &place))
            continue;
        for (uint32_t at = epa_dev_lane() * 16; at < a.row_bytes; at += EPA_DEV_WARP * 16)
            epa_dev_store16(a.to + (size_t)__ldcg(p.in_view + rank * slots + token) * a.row_bytes +
                                at,
                            epa_dev_load16(a.from + (size_t)place * a.row_bytes + at));
    }
}

} // namespace

cudaError_t places_queue(const struct epa_moe *m, uint32_t experts, const struct epa_places *places,
                         uint32_t blocks, cudaStream_t stream)
{
    struct epa_delivery to = {};
    struct deliver_args args;
    size_t words = (size_t)places->ranks * ((places->max_tokens + 31) / 32);
    cudaError_t code = cudaMemsetAsync(places->sent, 0, words * sizeof(*places->sent), stream);

    if (code != cudaSuccess)
        return code;
    to.experts = experts;
    to.places = places;
    args = deliver_args_of(m, &to);
    mark_rows<<<blocks, THREADS, (experts + 1) * sizeof(uint32_t), stream>>>(args);
    sum_rows<<<1, SCAN_THREADS, 0, stream>>>(*places);
    return cudaGetLastError();
}

cudaError_t places_deliver_queue(const struct epa_moe *m, const struct epa_delivery *to,
                                 uint32_t blocks, cudaStream_t stream)
{
    const struct deliver_args args = deliver_args_of(m, to);
    const size_t shared = (to->experts + 1) * sizeof(uint32_t);

    deliver_rows<<<blocks, THREADS, shared, stream>>>(args);
    if (to->row != NULL || to->topk_idx != NULL || to->topk_weight != NULL)
        deliver_entries<<<blocks, THREADS, shared, stream>>>(args);
    return cudaGetLastError();
}

cudaError_t places_gather_queue(const struct epa_places *places, uint32_t row_bytes, const void *y,
                                void *to, uint32_t blocks, cudaStream_t stream)
{
    const struct gather_args args = {*places, static_cast<const char *>(y),
                                     static_cast<char *>(to), row_bytes};

    gather_rows<<<blocks, THREADS, 0, stream>>>(args);
    return cudaGetLastError();
}
