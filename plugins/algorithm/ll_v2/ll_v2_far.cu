/* Exchange with ranks of other nodes: a kernel between the sending half and the receiving half of a
 * call. The sending half stores data for such a rank in a local mirror of the rank's heap. This
 * kernel lets the transport put the data, one block per rank and call, and waits for the data of
 * those ranks. */
#include <epa2a/ring.cuh>

#include "ll_v2_far.h"
#include "ll_v2_send.cuh"

EPA_DEV bool far_put(const struct ll_far_args &f, uint32_t peer, uint64_t at, uint64_t bytes)
{
    return epa_dev_far_put(f.v, f.ring, at, f.a.c.v.peer_heap[peer] + at, bytes, peer,
                           f.a.c.timeout_ns, {f.a.c.stage, LL_WAIT_RING, peer, 0});
}

/* Puts counts, routes and the slots of all tokens to `peer`. Slots of tokens that the peer does not
 * get lie between the others, and their contents from earlier calls are there already. Called by
 * one thread. */
EPA_DEV bool far_put_rows(const struct ll_far_args &f, uint32_t peer, uint64_t epoch)
{
    const struct ll_args &a = f.a;
    uint64_t counts = ((uint64_t)a.c.v.rank * a.c.experts + peer * a.c.local) * LL_PACKET_BYTES;
    uint64_t windows = (a.c.tokens + LL_WINDOW_TOKENS - 1) / LL_WINDOW_TOKENS;
    uint64_t row = f.arrives ? (uint64_t)a.units * a.unit_bytes : a.message_bytes;
    uint64_t rows = (f.arrives ? a.arrival : a.recv) + ll_slot(a.c.max_tokens, a.c.v.rank, 0) * row;

    return far_put(f, peer, a.counts + counts, a.c.local * LL_PACKET_BYTES) &&
           far_put(f, peer, ll_route(a, a.c.v.rank, 0, 0),
                   windows * (a.c.local + 1) * LL_PACKET_BYTES) &&
           epa_dev_far_put_signal(f.v, f.ring, rows, a.c.v.peer_heap[peer] + rows, a.c.tokens * row,
                                  a.c.signal + LL_COUNT * a.c.v.size + a.c.v.rank, epoch, peer,
                                  a.c.timeout_ns, {a.c.stage, LL_WAIT_RING, peer, 0});
}

/* Puts the expert outputs of the tokens of `peer`. Outputs of other ranks lie between them, so the
 * put has a stride. */
EPA_DEV bool far_put_outputs(const struct ll_far_args &f, uint32_t peer, uint64_t epoch)
{
    const struct ll_args &a = f.a;
    uint64_t count = ((uint64_t)peer * a.c.experts + a.c.v.rank * a.c.local) * LL_PACKET_BYTES;
    const uint32_t *told =
        /* a struct ll_packet */
        reinterpret_cast<const uint32_t *>(dev_own(a.c.v, a.counts + count));
    uint32_t tokens = __ldcg(told + 1);
    uint64_t at = a.outputs + (uint64_t)a.c.v.rank * a.sent_bytes;
    struct epa_descriptor what = {0,
                                  EPA_RING_PUT | EPA_RING_SET,
                                  peer,
                                  at,
                                  a.c.v.peer_heap[peer] + at,
                                  tokens > 0 ? a.sent_bytes : 0,
                                  epoch,
                                  a.c.signal + LL_OUTPUT * a.c.v.size + a.c.v.rank,
                                  tokens,
                                  (uint64_t)a.places * a.sent_bytes};

    return epa_dev_ask_far(f.v, f.ring, what, a.c.timeout_ns, {a.c.stage, LL_WAIT_RING, peer, 0});
}

/* One block, with a thread per rank. */
static __global__ void __launch_bounds__(EPA_DEVICE_RANKS)
    exchange(const __grid_constant__ struct ll_far_args f)
{
    const struct ll_args &a = f.a;
    bool dispatch = a.c.stage == LL_DISPATCH;
    uint32_t peer = threadIdx.x, what = dispatch ? LL_COUNT : LL_OUTPUT;
    uint64_t epoch = __ldcg(a.c.calls) + 1; /* the receiving kernel will count this call */

    if (peer >= a.c.v.size || !epa_dev_is_far(f.v, peer))
        return;
    if ((a.halves & LL_SEND) != 0 &&
        !(dispatch ? far_put_rows(f, peer, epoch) : far_put_outputs(f, peer, epoch)))
        return;
    if ((a.halves & LL_RECEIVE) != 0)
        (void)epa_dev_wait_for(f.v, a.c.signal + what * a.c.v.size + peer, epoch, a.c.timeout_ns,
                               {a.c.stage, what, peer, 0});
}

static int queue(void *stream, const void *args)
{
    exchange<<<1, EPA_DEVICE_RANKS, 0, static_cast<cudaStream_t>(stream)>>>(
        *static_cast<const struct ll_far_args *>(args));
    return cudaGetLastError();
}

struct device_far ll_far(void)
{
    return {(const void *)exchange, queue};
}
