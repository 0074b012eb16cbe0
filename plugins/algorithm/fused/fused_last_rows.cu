/* Kernel of fused: rows of the experts of this rank in the last call, for the GEMMs alone. */
#include "../../common/algo_cuda.cuh"

#include "fused_last_rows.h"

enum { THREADS = 256 };

EPA_DEV uint64_t packet(const char *packets, uint64_t index)
{
    uint64_t value, call;

    epa_dev_load_pair(packets + index * 16, &value, &call);
    return value;
}

EPA_DEV void add_choice(const struct fused_count_args &a, uint32_t expert)
{
    if (expert < a.experts && expert / a.local == a.rank)
        atomicAdd(a.count + expert % a.local, 1u);
}

/* Many tokens: the packets are numbers of rows. */
EPA_DEV void add_counts(const struct fused_count_args &a, const char *packets)
{
    uint32_t words = a.waves * a.experts + a.size;

    for (uint32_t e = threadIdx.x; e < a.local; e += THREADS)
        for (uint32_t r = 0; r < a.size; r++)
            for (uint32_t w = 0; w < a.waves; w++)
                a.count[e] += (uint32_t)packet(packets, (uint64_t)r * words + w * a.experts +
                                                            a.rank * a.local + e);
}

/* Few tokens: the packets are choices, with picks of four experts. */
EPA_DEV void add_choices(const struct fused_count_args &a, const char *packets)
{
    uint32_t each = a.picks ? fused_picks_experts(a.topk) : a.topk;

    for (uint32_t i = threadIdx.x; i < a.few * each; i += THREADS) {
        uint64_t value = packet(packets, i);

        if (!a.picks)
            add_choice(a, (uint32_t)value);
        for (uint32_t k = 0; a.picks && k < 4 && i % each * 4 + k < a.topk; k++)
            add_choice(a, (uint32_t)(value >> 16 * k) & 0xffff);
    }
}

/* Computes the first received row of each expert. Called by one warp. */
EPA_DEV void place_rows(const struct fused_count_args &a, uint64_t call)
{
    uint32_t lane = epa_dev_lane(), base = 0;

    for (uint32_t first = 0; first < a.local; first += EPA_DEV_WARP) {
        uint32_t e = first + lane, rows = e < a.local ? a.count[e] : 0;
        uint32_t blocks = (rows + a.block_rows - 1) / a.block_rows, sum = blocks;

        for (uint32_t step = 1; step < EPA_DEV_WARP; step *= 2) {
            uint32_t lower = __shfl_up_sync(EPA_DEV_ALL, sum, step);

            sum += lane >= step ? lower : 0;
        }
        if (e < a.local && a.few != 0 && !a.picks) { /* each expert multiplies all tokens */
            a.count[e] = rows != 0 ? a.few : 0;
            a.start[e] = call % 2 * FUSED_FEW;
        } else if (e < a.local) {
            a.start[e] = (a.picks ? 2 * a.few : 0) + (uint64_t)(base + sum - blocks) * a.block_rows;
        }
        base += __shfl_sync(EPA_DEV_ALL, sum, EPA_DEV_WARP - 1);
    }
}

static __global__ void count_rows(const __grid_constant__ struct fused_count_args a)
{
    uint64_t call = *a.calls;

    for (uint32_t e = threadIdx.x; e < a.local; e += THREADS)
        a.count[e] = 0;
    __syncthreads();
    if (call != 0 && a.few == 0)
        add_counts(a, a.packets[call % 2]);
    else if (call != 0)
        add_choices(a, a.packets[call % 2]);
    __syncthreads();
    if (threadIdx.x < EPA_DEV_WARP)
        place_rows(a, call);
}

extern "C" cudaError_t fused_count_rows(const struct fused_count_args *a, cudaStream_t stream)
{
    count_rows<<<1, THREADS, 0, stream>>>(*a);
    return cudaGetLastError();
}
