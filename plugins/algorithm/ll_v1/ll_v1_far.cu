/* Exchange with ranks of other nodes: a kernel between the sending half and the receiving half of a
 * call. The sending half stores data for such a rank in a local mirror of the rank's heap. This
 * kernel lets the transport put the data, which are splits and a block of rows in dispatch, and a
 * block of expert outputs in combine. It then waits for the data of those ranks. */
#include <epa2a/ring.cuh>

#include "ll_v1_far.h"

/* Returns the number of rows for all local experts according to `splits`; *begin: start of the rows
 * in the sorted order. */
EPA_DEV uint32_t v1_far_rows(const struct v1_args &a, const char *splits, uint32_t *begin)
{
    const struct v1_packet *split = reinterpret_cast<const struct v1_packet *>(splits);

    *begin = __ldcg(&split[0].begin);
    return __ldcg(&split[a.c.local - 1].begin) + __ldcg(&split[a.c.local - 1].rows) - *begin;
}

/* One block, with a thread per rank. */
static __global__ void __launch_bounds__(EPA_DEVICE_RANKS)
    exchange(const __grid_constant__ struct v1_far_args f)
{
    const struct v1_args &a = f.a;
    uint32_t peer = threadIdx.x, rank = a.c.v.rank, begin, rows;
    uint64_t call = __ldcg(a.c.calls) + 1; /* the receiving kernel will count this call */
    enum v1_mode mode = (enum v1_mode)a.c.stage;
    uint64_t row = mode == V1_DISPATCH ? (uint64_t)a.units * a.unit_bytes : a.sent_bytes, at;
    uint64_t mine =
        a.splits[call % V1_POSITIONS] + (uint64_t)rank * a.c.local * sizeof(struct v1_packet);
    struct epa_dev_wait w = {a.c.stage, V1_WAIT_RING, peer, 0};
    bool ok = true;

    if (peer >= a.c.v.size || !epa_dev_is_far(f.v, peer))
        return;
    if (mode == V1_DISPATCH) {
        rows = v1_far_rows(a, a.c.v.peer_heap[peer] + mine, &begin);
        at = a.arrival[call % V1_POSITIONS] + (uint64_t)rank * a.max_m * row;
        ok = epa_dev_far_put(f.v, f.ring, mine, a.c.v.peer_heap[peer] + mine,
                             a.c.local * sizeof(struct v1_packet), peer, a.c.timeout_ns, w);
    } else { /* the slices that the preceding dispatch recorded */
        begin = __ldcg(a.far_slice + 2 * peer);
        rows = __ldcg(a.far_slice + 2 * peer + 1);
        at = a.outputs[call % V1_POSITIONS] + (uint64_t)begin * row;
    }
    ok = ok && epa_dev_far_put_signal(f.v, f.ring, at, a.c.v.peer_heap[peer] + at, rows * row,
                                      a.c.signal + v1_signal_of(a.c.v.size, mode, call, rank), call,
                                      peer, a.c.timeout_ns, w);
    w.what = V1_WAIT_FAR;
    ok = ok && epa_dev_wait_for(f.v, a.c.signal + v1_signal_of(a.c.v.size, mode, call, peer), call,
                                a.c.timeout_ns, w);
    if (!ok || mode == V1_COMBINE)
        return;
    rows = v1_far_rows(a,
                       a.c.v.peer_heap[rank] + a.splits[call % V1_POSITIONS] +
                           (uint64_t)peer * a.c.local * sizeof(struct v1_packet),
                       &begin);
    a.far_slice[2 * peer] = begin;
    a.far_slice[2 * peer + 1] = rows;
}

static int queue(void *stream, const void *args)
{
    exchange<<<1, EPA_DEVICE_RANKS, 0, static_cast<cudaStream_t>(stream)>>>(
        *static_cast<const struct v1_far_args *>(args));
    return cudaGetLastError();
}

struct device_far v1_far(void)
{
    return {(const void *)exchange, queue};
}
