/* Ranks of other nodes: a kernel behind the one of a stage that sends, which has what that stored
 * in mirrors of their heaps put there by the transport, a block for each rank; and one before that
 * of a stage that receives, which waits for what those ranks have put here. */
#include <epa2a/ring.cuh>

#include "token_flag_send.cuh"

/* Counts, then rows with the flag of this source behind them. One thread, for one rank. */
EPA_DEV bool far_put_rows(const struct tf_far_args &f, uint32_t peer, uint64_t epoch,
                          struct epa_dev_wait w)
{
    const struct tf_args &a = f.a;
    uint64_t counts = tf_counts_of(a, epoch, a.c.v.rank);
    uint64_t rows_at = a.comm + (uint64_t)a.c.v.rank * a.source_rows * a.wire_bytes;
    const char *mirror = a.c.v.peer_heap[peer];
    const unsigned long long *count = reinterpret_cast<const unsigned long long *>(mirror + counts);
    uint32_t rows = 0;

    for (uint32_t e = 0; e < a.c.local; e++)
        rows += tf_rows_of_flag(__ldcg(count + e));
    return epa_dev_far_put(f.v, f.ring, counts, count, a.c.local * 8, peer, a.c.timeout_ns, w) &&
           epa_dev_far_put_signal(f.v, f.ring, rows_at, mirror + rows_at,
                                  (uint64_t)rows * a.wire_bytes,
                                  a.c.signal + epoch % 2 * a.c.v.size + a.c.v.rank,
                                  tf_count_flag(epoch, rows), peer, a.c.timeout_ns, w);
}

EPA_DEV bool far_put_outputs(const struct tf_far_args &f, uint32_t peer, uint64_t epoch,
                             struct epa_dev_wait w)
{
    const struct tf_args &a = f.a;
    uint64_t at = a.outputs + (uint64_t)a.c.v.rank * a.source_rows * a.slot_bytes;

    return epa_dev_far_put_signal(f.v, f.ring, at, a.c.v.peer_heap[peer] + at,
                                  (uint64_t)__ldcg(a.received + peer) * a.slot_bytes,
                                  a.c.signal + 2 * a.c.v.size + a.c.v.rank, epoch, peer,
                                  a.c.timeout_ns, w);
}

/* One block, a thread for each rank. */
static __global__ void __launch_bounds__(EPA_DEVICE_RANKS)
    exchange(const __grid_constant__ struct tf_far_args f)
{
    const struct tf_args &a = f.a;
    uint64_t epoch = __ldcg(a.c.calls) + 1; /* the kernel that receives will count this call */
    uint32_t peer = threadIdx.x, stage = a.c.stage;

    if (peer >= a.c.v.size || !epa_dev_is_far(f.v, peer))
        return;
    if (stage == TF_DISPATCH_SEND)
        (void)far_put_rows(f, peer, epoch, {stage, TF_WAIT_RING, peer, 0});
    else if (stage == TF_COMBINE_SEND)
        (void)far_put_outputs(f, peer, epoch, {stage, TF_WAIT_RING, peer, 0});
    else if (stage == TF_DISPATCH_RECV)
        (void)epa_dev_wait_for(f.v, a.c.signal + epoch % 2 * a.c.v.size + peer,
                               tf_count_flag(epoch, 0), a.c.timeout_ns,
                               {stage, TF_WAIT_ROWS, peer, 0});
    else
        (void)epa_dev_wait_for(f.v, a.c.signal + 2 * a.c.v.size + peer, epoch, a.c.timeout_ns,
                               {stage, TF_WAIT_OUTPUTS, peer, 0});
}

cudaError_t tf_far_load(void)
{
    cudaFuncAttributes attributes;

    return cudaFuncGetAttributes(&attributes, exchange);
}

cudaError_t tf_far_queue(cudaStream_t stream, const struct tf_far_args *args)
{
    exchange<<<1, EPA_DEVICE_RANKS, 0, stream>>>(*args);
    return cudaGetLastError();
}
