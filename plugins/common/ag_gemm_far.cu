/* AllGather and GEMM, rows for ranks of other nodes: a kernel before the main kernel, or beside it. It
 * copies this rank's rows to its own set, and queues puts from there to the same place of each such
 * rank, chunk after chunk, while the main kernel runs. The source of the puts is not the caller's
 * buffer: the proxy may read it after the call has ended, when the caller overwrites it.
 *
 * No kernel overwrites the own set before those puts are done: the call after the next one is the
 * first to write it, and the next call ends after those ranks have signalled it. They began the
 * next call after they had received this rank's rows. (Within a call the main kernel may write and
 * read own rows there: the same bytes.)
 *
 * Beside the main kernel, this kernel has few blocks, on a stream of its own. The main kernels of two
 * nodes wait for the puts of each other. If a main kernel occupied all multiprocessors, the kernel of
 * its puts would not start before the main kernel ends: CUDA does not order the starts of kernels of
 * two streams. Both main kernels would wait until their time-out. So the main kernel leaves one
 * multiprocessor free for each block of this kernel, and both kernels run beside each other,
 * whichever starts first. This kernel waits only for room in the ring, which the proxy makes without a
 * multiprocessor, so it ends, also if blocks or clusters of the main kernel cannot start before its
 * end. The main kernel may end before this kernel begins, if the other nodes are faster, so this
 * kernel reads the number of the call in a word that the previous call wrote. The next call begins
 * after both kernels have ended. */
#include <epa2a/quant.cuh>
#include <epa2a/ring.cuh>

#include "ag_gemm_far.h"

namespace
{

enum {
    THREADS = 1024,
    LOADS = 4 /* per thread, before its stores: a multiprocessor then copies faster than a NIC */
};

/* The whole grid copies; addresses and sizes are multiples of 16. */
EPA_DEV void copy_rows(char *to, const char *from, uint64_t bytes)
{
    const uint64_t step = (uint64_t)gridDim.x * THREADS, n = bytes / 16;

    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += LOADS * step) {
        uint4 v[LOADS];

#pragma unroll
        for (uint32_t j = 0; j < LOADS; j++)
            if (i + j * step < n)
                v[j] = epa_dev_load16(from + (i + j * step) * 16);
#pragma unroll
        for (uint32_t j = 0; j < LOADS; j++)
            if (i + j * step < n)
                epa_dev_store16(to + (i + j * step) * 16, v[j]);
    }
}

/* Copies words, since the scales of a row may not be a multiple of 16 bytes. */
EPA_DEV void copy_scales(float *to, const float *from, uint64_t n)
{
    const uint64_t step = (uint64_t)gridDim.x * THREADS;

    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step)
        to[i] = __ldcg(from + i);
}

/* Returns true in the block that is the last to copy its part of the chunk. */
EPA_DEV bool is_copied(uint32_t *stored)
{
    __shared__ uint32_t last;

    __syncthreads();
    if (threadIdx.x == 0) {
        epa_dev_fence(); /* the block's stores precede its count */
        last = atomicInc(stored, gridDim.x - 1) == gridDim.x - 1;
        if (last)
            epa_dev_fence(); /* the stores of the blocks counted before precede the puts */
    }
    __syncthreads();
    return last != 0;
}

/* Called by one thread. The signal follows both puts, since rings keep the order. */
EPA_DEV bool put_chunk(const struct ag_gemm_far_args &f, uint64_t call, uint32_t chunk,
                       uint64_t row, uint64_t n, uint32_t peer)
{
    const struct ag_gemm_args &a = f.a;
    const uint64_t scale_bytes = a.groups * sizeof(float);
    const char *heap = a.v.peer_heap[a.v.rank];
    const uint64_t scales = a.set_scales + row * scale_bytes;
    const uint64_t rows = a.set_rows + row * a.row_bytes;
    const struct epa_dev_wait w = {0, AG_GEMM_WAIT_RING, peer, chunk};

    if (n * scale_bytes != 0 && !epa_dev_far_put(a.v, f.ring, scales, heap + scales,
                                                 n * scale_bytes, peer, a.timeout_ns, w))
        return false;
    return epa_dev_far_put_signal(a.v, f.ring, rows, heap + rows, n * a.row_bytes,
                                  a.signal + a.v.rank * a.chunks + chunk, call, peer, a.timeout_ns,
                                  w);
}

__global__ void __launch_bounds__(THREADS)
    put_rows(const __grid_constant__ struct ag_gemm_far_args f)
{
    const struct ag_gemm_args &a = f.a;
    const uint32_t me = a.v.rank, peer = (me + 1 + threadIdx.x) % a.v.size;
    const uint32_t rows = min(__ldcg(a.rows + me), a.max_rows);
    const uint64_t call = __ldcg(f.number);
    char *heap = a.v.peer_heap[me];
    uint64_t start = (uint64_t)me * a.max_rows;
    bool ok = threadIdx.x < a.v.size && (f.peers >> peer & 1) != 0;

    if (!a.padded) {
        start = 0;
        for (uint32_t r = 0; r < me; r++)
            start += min(__ldcg(a.rows + r), a.max_rows);
    }
    for (uint32_t chunk = 0; chunk < a.chunks; chunk++) {
        uint64_t first = min(chunk * a.chunk_rows, rows);
        uint64_t n = min(a.chunk_rows, rows - (uint32_t)first);

        copy_rows(heap + a.set_rows + (start + first) * a.row_bytes, a.a + first * a.row_bytes,
                  n * a.row_bytes);
        if (a.groups != 0)
            copy_scales(reinterpret_cast<float *>(heap + a.set_scales) + (start + first) * a.groups,
                        a.a_scale + first * a.groups, n * a.groups);
        if (is_copied(f.copied + chunk))
            ok = ok && put_chunk(f, call, chunk, start + first, n, peer);
    }
}

} // namespace

extern "C" cudaError_t ag_gemm_far_load(void)
{
    cudaFuncAttributes attributes;

    return cudaFuncGetAttributes(&attributes, put_rows);
}

extern "C" cudaError_t ag_gemm_far_queue(cudaStream_t stream, uint32_t blocks,
                                         const struct ag_gemm_far_args *args)
{
    put_rows<<<blocks, THREADS, 0, stream>>>(*args);
    return cudaGetLastError();
}
