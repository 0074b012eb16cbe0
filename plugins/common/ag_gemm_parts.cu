/* AllGather and GEMM with products by cuBLASLt: the kernels before and after the products.
 *
 * A warp waits for the words of a rank's chunks before the product of its rows. A wait of the stream
 * (cuStreamWaitValue64) would need no multiprocessor, but has no time limit, ignores the stop word,
 * and compares with a constant, while in a graph only the device knows the number of the call. The
 * warp starts after the product of the previous rows, so it delays no product.
 *
 * The places of the products in C are fixed when they are queued: the rows of rank r begin at row
 * r * max_rows. Only the device knows the number of rows. If a rank has fewer rows than its room, the
 * rows of the later ranks move up behind the products. */
#include <epa2a/device.cuh>
#include <epa2a/quant.cuh>

#include "ag_gemm_parts.h"

namespace
{

enum {
    THREADS = 256,
    WIDE = 8, /* columns of a block, of 16 bytes each: a line of memory */
    DOWN = THREADS / WIDE,
    LOADS = 8, /* rows of a thread, before its stores */
    SIDE = 32  /* rows and columns of a block that transposes scales */
};

__global__ void __launch_bounds__(EPA_DEV_WARP)
    await_rows(const __grid_constant__ struct ag_gemm_await a)
{
    const uint64_t call = __ldcg(a.number);
    const uint32_t first = a.signal + a.source * a.chunks;

    for (uint32_t chunk = threadIdx.x; chunk < a.chunks; chunk += EPA_DEV_WARP)
        if (!epa_dev_wait_for(a.v, first + chunk, call, a.timeout_ns,
                              {0, AG_GEMM_WAIT_END, a.source, chunk}))
            break;
    if (threadIdx.x == 0 && a.next_call != nullptr)
        *a.next_call = call + 1;
}

/* cuBLASLt reads the scales of A by columns. A block transposes a square in shared memory. */
__global__ void __launch_bounds__(THREADS) transpose_scales(const struct ag_gemm_transpose t)
{
    __shared__ float square[SIDE][SIDE + 1];
    const uint32_t row = blockIdx.x * SIDE, group = blockIdx.y * SIDE;
    const uint32_t x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;

    for (uint32_t i = y; i < SIDE; i += THREADS / SIDE)
        if (row + i < t.rows && group + x < t.groups)
            square[i][x] = __ldcg(t.from + (size_t)(row + i) * t.groups + group + x);
    __syncthreads();
    for (uint32_t i = y; i < SIDE; i += THREADS / SIDE)
        if (group + i < t.groups && row + x < t.rows)
            t.to[(size_t)(group + i) * t.rows + row + x] = square[x][i];
}

/* A block owns some columns of C, and moves their rows from the first to the last. Each step loads
 * rows before it stores rows, at lower places. So a step overwrites only rows of former steps, and
 * its own. */
__global__ void __launch_bounds__(THREADS) close_gaps(const struct ag_gemm_gaps g)
{
    const uint32_t vector = blockIdx.x * WIDE + threadIdx.x % WIDE;
    uint64_t to = 0;

    for (uint32_t r = 0; r < g.size; r++) {
        const uint64_t from = (uint64_t)r * g.max_rows;
        const uint32_t rows = min(__ldcg(g.rows + r), g.max_rows);

        for (uint32_t first = 0; first < rows && to < from; first += LOADS * DOWN) {
            const uint32_t row = first + threadIdx.x / WIDE;
            uint4 v[LOADS];

#pragma unroll
            for (uint32_t j = 0; j < LOADS; j++)
                if (row + j * DOWN < rows && vector < g.vectors)
                    v[j] =
                        epa_dev_load16(g.c + ((from + row + j * DOWN) * g.vectors + vector) * 16);
            __syncthreads();
#pragma unroll
            for (uint32_t j = 0; j < LOADS; j++)
                if (row + j * DOWN < rows && vector < g.vectors)
                    epa_dev_store16(g.c + ((to + row + j * DOWN) * g.vectors + vector) * 16, v[j]);
            __syncthreads();
        }
        to += rows;
    }
}

} // namespace

extern "C" cudaError_t ag_gemm_parts_load(void)
{
    cudaFuncAttributes attributes;
    cudaError_t code = cudaFuncGetAttributes(&attributes, await_rows);

    if (code == cudaSuccess)
        code = cudaFuncGetAttributes(&attributes, transpose_scales);
    return code == cudaSuccess ? cudaFuncGetAttributes(&attributes, close_gaps) : code;
}

extern "C" cudaError_t ag_gemm_await_queue(cudaStream_t stream, const struct ag_gemm_await *args)
{
    await_rows<<<1, EPA_DEV_WARP, 0, stream>>>(*args);
    return cudaGetLastError();
}

extern "C" cudaError_t ag_gemm_transpose_queue(cudaStream_t stream,
                                               const struct ag_gemm_transpose *args)
{
    const dim3 grid((args->rows + SIDE - 1) / SIDE, (args->groups + SIDE - 1) / SIDE);

    transpose_scales<<<grid, THREADS, 0, stream>>>(*args);
    return cudaGetLastError();
}

extern "C" cudaError_t ag_gemm_gaps_queue(cudaStream_t stream, const struct ag_gemm_gaps *args)
{
    close_gaps<<<(args->vectors + WIDE - 1) / WIDE, THREADS, 0, stream>>>(*args);
    return cudaGetLastError();
}
