/* allgather on GPUs: one kernel, whose blocks are all resident (allgather_cuda.c has the protocol).
 *
 * The rows of a rank form chunks. A chunk has one part per block, or fewer parts of at least
 * AG_PART_BYTES. Blocks take parts in turn, chunk after chunk. The block that stores the last part
 * of a chunk signals the chunk to all peers. Peers of other nodes (FAR) receive a put of the chunk
 * with the signal. */
#include <epa2a/quant.cuh>
#include <epa2a/ring.cuh>

#include "allgather_kernels.h"

enum { AG_UNROLL = 4 };

/* A range of 16-byte vectors, counted from the start of the output. */
struct ag_span {
    uint64_t first, end;
};

/* Computes, in vectors, the start of each rank's rows in the output and the end of the last rank's
 * rows. `start`: [size + 1], shared by the block. */
EPA_DEV void find_starts(const struct ag_args &a, uint64_t *start)
{
    __shared__ uint32_t rows[EPA_DEVICE_RANKS];

    if (threadIdx.x < a.v.size)
        rows[threadIdx.x] = __ldcg(a.rows + threadIdx.x);
    __syncthreads();
    if (threadIdx.x <= a.v.size) {
        uint64_t before = 0;

        for (uint32_t r = 0; r < threadIdx.x; r++)
            before += rows[r];
        start[threadIdx.x] = before * (a.row_bytes / 16);
    }
    __syncthreads();
}

/* Returns a chunk of the rows of `rank`, possibly empty. */
EPA_DEV struct ag_span chunk_span(const struct ag_args &a, const uint64_t *start, uint32_t rank,
                                  uint32_t chunk)
{
    uint64_t step = (uint64_t)a.chunk_rows * (a.row_bytes / 16);
    uint64_t first = start[rank] + chunk * step;

    return {min(first, start[rank + 1]), min(first + step, start[rank + 1])};
}

/* Number of parts of a chunk, and the index of this block's part; an index >= `parts`: no part. */
struct ag_part {
    uint32_t parts, mine;
};

/* Deals the parts of a chunk to blocks. *dealt: block that gets the next part. */
EPA_DEV struct ag_part deal_parts(struct ag_span chunk, uint32_t *dealt)
{
    uint64_t most = (chunk.end - chunk.first + AG_THREADS - 1) / AG_THREADS;
    uint32_t parts = (uint32_t)min(max(most, (uint64_t)1), (uint64_t)gridDim.x);
    uint32_t mine = blockIdx.x >= *dealt ? blockIdx.x - *dealt : blockIdx.x + gridDim.x - *dealt;

    *dealt = (*dealt + parts) % gridDim.x;
    return {parts, mine};
}

EPA_DEV struct ag_span part_span(struct ag_span chunk, struct ag_part part)
{
    uint64_t n = chunk.end - chunk.first;

    return {chunk.first + n * part.mine / part.parts,
            chunk.first + n * (part.mine + 1) / part.parts};
}

/* Copies `span` to the same place in the sets of the ranks at distance `first` to `end` - 1 from
 * this rank. `from`: address that corresponds to the output's first vector. Called by all threads
 * of a block. */
template <bool FAR>
EPA_DEV void copy_span(const struct ag_args &a, struct ag_span span, const char *from,
                       uint32_t first, uint32_t end)
{
    for (uint64_t at = span.first + threadIdx.x; at < span.end; at += AG_UNROLL * AG_THREADS) {
        uint4 v[AG_UNROLL];

#pragma unroll
        for (int i = 0; i < AG_UNROLL; i++)
            if (at + i * AG_THREADS < span.end)
                v[i] = epa_dev_load16(from + (at + i * AG_THREADS) * 16);
        for (uint32_t p = first; p < end; p++) {
            uint32_t rank = a.v.rank + p < a.v.size ? a.v.rank + p : a.v.rank + p - a.v.size;
            char *to = a.v.peer_heap[rank] + a.set;

            if (FAR && epa_dev_is_far(a.v, rank))
                continue;
#pragma unroll
            for (int i = 0; i < AG_UNROLL; i++)
                if (at + i * AG_THREADS < span.end)
                    epa_dev_store16(to + (at + i * AG_THREADS) * 16, v[i]);
        }
    }
}

/* Returns true in the block that stored the last part of the chunk. Its signal releases the stores
 * of all blocks to the chunk. */
EPA_DEV bool all_parts_stored(const struct ag_args &a, uint32_t chunk, uint32_t parts)
{
    __shared__ uint32_t last;

    __syncthreads();
    if (parts == 1)
        return true;
    if (threadIdx.x == 0) {
        epa_dev_fence(); /* orders the block's stores before its count */
        last = atomicInc(a.stored + chunk, parts - 1) == parts - 1;
        if (last)
            epa_dev_fence(); /* orders the counted blocks' stores before the signal */
    }
    __syncthreads();
    return last != 0;
}

/* Signals a chunk to all peers, with one thread per peer. */
template <bool FAR>
EPA_DEV void signal_chunk(const struct ag_args &a, uint64_t epoch, uint32_t chunk,
                          struct ag_span span)
{
    if (FAR && threadIdx.x < a.v.size && epa_dev_is_far(a.v, threadIdx.x)) {
        uint64_t at = a.set + span.first * 16;

        /* A time-out of this wait also ends the waits for chunks, so its result is unused. */
        (void)epa_dev_far_put_signal(a.v, a.ring, at, a.v.peer_heap[a.v.rank] + at,
                                     (span.end - span.first) * 16,
                                     a.signal + a.v.rank * a.chunks + chunk, epoch, threadIdx.x,
                                     a.timeout_ns, {0, AG_FOR_ROOM, threadIdx.x, chunk});
        return;
    }
    if (threadIdx.x < a.v.size && threadIdx.x != a.v.rank)
        epa_dev_signal(a.v, a.signal + a.v.rank * a.chunks + chunk, epoch, threadIdx.x);
}

/* Sends this rank's rows to its own set, unless they are there already, and in mode push to the
 * sets of all peers. */
template <bool PULL, bool FAR>
EPA_DEV void send_rows(const struct ag_args &a, uint64_t epoch, const uint64_t *start)
{
    const char *from = a.in != NULL ? a.in - start[a.v.rank] * 16 : a.v.peer_heap[a.v.rank] + a.set;
    uint32_t first = a.in != NULL ? 0 : 1, end = PULL ? 1 : a.v.size;
    uint32_t dealt = 0;

    for (uint32_t c = 0; c < a.chunks; c++) {
        struct ag_span chunk = chunk_span(a, start, a.v.rank, c);
        struct ag_part part = deal_parts(chunk, &dealt);

        if (part.mine >= part.parts)
            continue;
        if (first < end)
            copy_span<FAR>(a, part_span(chunk, part), from, first, end);
        if (all_parts_stored(a, c, part.parts))
            signal_chunk<FAR>(a, epoch, c, chunk);
    }
}

EPA_DEV bool wait_for_chunk(const struct ag_args &a, uint64_t epoch, uint32_t source,
                            uint32_t chunk)
{
    return epa_dev_wait_for(a.v, a.signal + source * a.chunks + chunk, epoch, a.timeout_ns,
                            {0, AG_FOR_CHUNK, source, chunk});
}

/* Loads the rows of all peers, in the order of ranks after this rank. Returns false if a chunk did
 * not arrive. */
EPA_DEV bool pull_rows(const struct ag_args &a, uint64_t epoch, const uint64_t *start)
{
    uint32_t dealt = 0;

    for (uint32_t c = 0; c < a.chunks; c++)
        for (uint32_t i = 1; i < a.v.size; i++) {
            uint32_t source = a.v.rank + i < a.v.size ? a.v.rank + i : a.v.rank + i - a.v.size;
            struct ag_span chunk = chunk_span(a, start, source, c);
            struct ag_part part = deal_parts(chunk, &dealt);

            if (part.mine >= part.parts)
                continue;
            if (!__syncthreads_and(threadIdx.x != 0 || wait_for_chunk(a, epoch, source, c)))
                return false;
            copy_span<false>(a, part_span(chunk, part), a.v.peer_heap[source] + a.set, 0, 1);
        }
    return true;
}

/* Waits for all chunks. Called by one block, whose end is the end of the kernel. */
EPA_DEV void wait_for_all(const struct ag_args &a, uint64_t epoch)
{
    for (uint32_t i = threadIdx.x; i < a.v.size * a.chunks; i += AG_THREADS) {
        uint32_t source = i / a.chunks;

        if (source != a.v.rank && !wait_for_chunk(a, epoch, source, i - source * a.chunks))
            return;
    }
}

/* Stamps a phase of this warp that began at `begun` (epa_dev_time()) and ends now. */
EPA_DEV void stamp_phase(const struct ag_args &a, uint64_t epoch, enum ag_phase phase,
                         uint32_t begun)
{
    const uint32_t warp = blockIdx.x * AG_WARPS + threadIdx.x / EPA_DEV_WARP;

    if (a.stamps == NULL || epa_dev_lane() != 0)
        return;
    uint64_t now = epa_dev_time();

    a.stamps[warp * AG_PHASES + phase] = {now, (uint32_t)now - begun, (uint32_t)epoch};
}

EPA_DEV uint32_t begin_phase(const struct ag_args &a)
{
    return a.stamps != NULL ? (uint32_t)epa_dev_time() : 0;
}

template <bool PULL, bool FAR>
static __global__ void __launch_bounds__(AG_THREADS, 2)
    allgather(const __grid_constant__ struct ag_args a)
{
    __shared__ uint64_t start[EPA_DEVICE_RANKS + 1];
    uint64_t epoch;
    uint32_t begun;

    epa_dev_after_kernel();
    epa_dev_next_kernel();
    epoch = __ldcg(a.calls + blockIdx.x) + 1;
    find_starts(a, start);
    begun = begin_phase(a);
    send_rows<PULL, FAR>(a, epoch, start);
    stamp_phase(a, epoch, AG_PHASE_SEND, begun);
    if (PULL) {
        begun = begin_phase(a);
        if (!pull_rows(a, epoch, start))
            return;
        stamp_phase(a, epoch, AG_PHASE_PULL, begun);
    }
    if (blockIdx.x == 0) {
        begun = begin_phase(a);
        wait_for_all(a, epoch);
        __syncwarp();
        stamp_phase(a, epoch, AG_PHASE_WAIT, begun);
    }
    __syncthreads(); /* all threads have read the count */
    if (threadIdx.x == 0)
        a.calls[blockIdx.x] = epoch;
}

const void *ag_kernel(bool pull, bool far)
{
    return pull  ? (const void *)allgather<true, false>
           : far ? (const void *)allgather<false, true>
                 : (const void *)allgather<false, false>;
}
