/* Combine on GPUs. With pushed expert outputs, the rank of the experts stores each output in
 * packets with the number of the call, at the index of its choice in the source's sorted order. The
 * outputs for a rank thus form one block from recv_offset. With pulled expert outputs, the rank of
 * the token loads them from the place where the experts wrote them. Both ways add up in float32 in
 * the order of choices, independent of the order of arrival.
 *
 * At the start of each call, every rank signals to all ranks that it has begun: the data that it
 * read in earlier calls may be overwritten, and its experts have written their outputs. Every rank
 * waits for the signals of all ranks, even of ranks without outputs for it. */
#include "../../common/algo_cuda.cuh"
#include "ll_v1_combine.h"

/* Choices of a token: lane k holds choice k. */
struct v1_choices {
    uint32_t expert, place; /* place: ~0 if dropped */
    float weight;
    uint32_t list; /* bit mask of the lanes with a choice */
};

EPA_DEV struct v1_choices v1_choices_of(const struct v1_args &a, uint32_t token)
{
    struct v1_choices of = {0, ~0u, 0.0f, 0};
    size_t choice = (size_t)token * a.c.topk + epa_dev_lane();

    if (epa_dev_lane() < a.c.topk) {
        of.expert = (uint32_t)__ldg(a.c.expert + choice);
        of.place = __ldcg(a.place + choice);
        of.weight = __ldg(a.c.weight + choice);
    }
    of.list = __ballot_sync(EPA_DEV_ALL, of.place != ~0u);
    return of;
}

/* Returns false for dropped choices and for indices beyond top-k. */
EPA_DEV bool v1_has(const struct v1_choices &of, uint32_t choice)
{
    return (of.list >> choice & 1) != 0;
}

/* ---- pushed ---- */

/* Sends up to 16 lines of an entry's expert output, from line 16 * `piece`, to the rank of the
 * entry. Called by one warp. */
EPA_DEV void v1_push_piece(const struct v1_args &a, uint32_t entry, uint32_t piece, uint64_t call)
{
    enum { GROUPS = V1_PIECE_PACKETS / EPA_DEV_PACKETS };
    uint32_t first = piece * V1_PIECE_PACKETS;
    uint32_t words = a.c.hidden / DEV_CHANNELS - first * EPA_PACKET_WORDS; /* remaining words */
    uint2 back = __ldcg(reinterpret_cast<const uint2 *>(a.back) + entry);
    struct epa_dev_words v[GROUPS];

    dev_words_load<GROUPS>(static_cast<const char *>(a.c.y) + (uint64_t)entry * a.output_bytes +
                               first * EPA_PACKET_WORDS * 8,
                           words, v);
    epa_dev_packets_store<GROUPS>(a.c.v.peer_heap[back.x] + a.outputs[call % V1_POSITIONS] +
                                      (uint64_t)back.y * a.sent_bytes + first * EPA_PACKET,
                                  min(a.sent_bytes / EPA_PACKET - first, V1_PIECE_PACKETS), v,
                                  call);
}

/* Waits in lane k for the last line of choice k's expert output, if the choice is in `list`. Called
 * by one warp. */
EPA_DEV bool v1_wait_outputs(const struct v1_args &a, const char *from, uint32_t packets,
                             uint32_t list, uint32_t token, uint64_t call,
                             struct epa_dev_poll *poll)
{
    bool ok = true;

    if ((list >> epa_dev_lane() & 1) != 0) {
        uint32_t expert = (uint32_t)__ldg(a.c.expert + (size_t)token * a.c.topk + epa_dev_lane());
        struct epa_dev_wait w = {V1_COMBINE, V1_WAIT_OUTPUT, expert / a.c.local, token};

        ok = epa_dev_packet_wait(a.c, from, packets, call, w, poll);
    }
    return __all_sync(EPA_DEV_ALL, ok);
}

enum { V1_TAKE = 4 }; /* number of expert outputs that a warp holds at a time */

/* Adds up a share of a token's sum from four lines of each expert output. Returns false if an
 * output did not arrive. Called by one warp. */
template <bool F16>
EPA_DEV bool v1_take_share(const struct v1_args &a, uint32_t token, uint32_t share,
                           const struct v1_choices &of, uint64_t call)
{
    struct dev_part s = dev_part_at(token, share, a.share_channels, a.c.hidden);
    uint32_t packets = epa_packets_of(2 * s.channels);
    struct epa_dev_poll poll = {};
    struct epa_dev_words word;
    float sum[2 * DEV_CHANNELS] = {};
    char *from = dev_own(a.c.v, a.outputs[call % V1_POSITIONS] + (uint64_t)of.place * a.sent_bytes +
                                    share * EPA_DEV_PACKETS * EPA_PACKET);

    for (uint32_t k = 0; k < a.c.topk;) {
        struct epa_dev_words v[V1_TAKE];
        bool all = true;

#pragma unroll
        for (int i = 0; i < V1_TAKE; i++) {
            char *at = dev_from_lane(from, k + i);

            /* a choice without an output passes the test below */
            v[i].w[0] = v[i].w[1] = ~0ull;
            if (v1_has(of, k + i) && epa_dev_has_packet(0, packets))
                v[i] = epa_dev_packet_load(at, 0);
        }
#pragma unroll
        for (int i = 0; i < V1_TAKE; i++)
            all = all && (!epa_dev_ends_packet() || v[i].w[1] >= call);
        if (!__all_sync(EPA_DEV_ALL, all)) {
            uint32_t list = of.list & ((1u << V1_TAKE) - 1) << k;

            if (!v1_wait_outputs(a, from, packets, list, token, call, &poll))
                return false;
            continue;
        }
#pragma unroll
        for (int i = 0; i < V1_TAKE; i++) {
            float weight = __shfl_sync(EPA_DEV_ALL, of.weight, k + i), value[2 * DEV_CHANNELS];

            dev_unpack_words<F16>(v[i], value);
            if (v1_has(of, k + i))
                dev_add8(value, weight, sum);
        }
        k += V1_TAKE;
    }
    word = dev_pack_words<F16>(sum);
    dev_words_store<1>(static_cast<char *>(a.c.out) + 2 * ((size_t)token * a.c.hidden + s.first),
                       s.channels / DEV_CHANNELS, &word);
    return true;
}

/* ---- pulled ---- */

enum { V1_BATCH = 4 }; /* number of expert outputs that a warp loads at a time */

/* Adds up a share of a token's sum, 16 bytes per lane, from the ranks of its experts. Called by one
 * warp. */
template <bool F16>
EPA_DEV void v1_pull_share(const struct v1_args &a, uint32_t token, uint32_t share,
                           const struct v1_choices &of)
{
    struct dev_part s = dev_part_at(token, share, a.share_channels, a.c.hidden);
    const uint32_t *starts = reinterpret_cast<const uint32_t *>(dev_own(a.c.v, a.starts));
    uint32_t at = 2 * s.first + 16 * epa_dev_lane();
    bool has = epa_dev_lane() * 8 < s.channels;
    char *from = NULL;
    float sum[8] = {};

    if (of.place != ~0u)
        from = a.c.v.peer_heap[of.expert / a.c.local] + a.y_space +
               (uint64_t)(__ldcg(starts + of.expert) + of.place) * a.output_bytes;
    for (uint32_t k = 0; k < a.c.topk; k += V1_BATCH) {
        uint4 row[V1_BATCH];

#pragma unroll
        for (int i = 0; i < V1_BATCH; i++) {
            const char *y = dev_from_lane(from, k + i);

            row[i] = make_uint4(0, 0, 0, 0);
            if (v1_has(of, k + i) && has)
                row[i] = epa_dev_load16(y + at);
        }
#pragma unroll
        for (int i = 0; i < V1_BATCH; i++) {
            float weight = __shfl_sync(EPA_DEV_ALL, of.weight, k + i), value[8];

            epa_dev_unpack<F16>(row[i], value);
            if (v1_has(of, k + i))
                dev_add8(value, weight, sum);
        }
    }
    if (has)
        epa_dev_store16(static_cast<char *>(a.c.out) + 2 * (size_t)token * a.c.hidden + at,
                        epa_dev_pack<F16>(sum));
}

/* ---- the kernel ---- */

template <bool PROFILE> EPA_DEV void send(const struct v1_args &a, uint64_t call)
{
    uint32_t warps = a.senders * DEVICE_WARPS, all = __ldcg(a.c.rows) * a.pieces;

    uint32_t begun = dev_begun<PROFILE>();

    for (uint32_t u = dev_warp_of(blockIdx.x, a.senders), asked; u < all;
         u = dev_next(asked, warps, all)) {
        asked = dev_ask(a.c, DEV_SENDING, call, warps, all);
        v1_push_piece(a, u / a.pieces, u % a.pieces, call);
    }
    dev_ended<PROFILE>(a.c, call, V1_SEND_OUTPUTS, begun);
}

/* Receives and adds up outputs. Loads of choices overlap the wait for signals or outputs. */
template <bool F16, bool PULL, bool PROFILE>
EPA_DEV void receive(const struct v1_args &a, uint64_t call, uint32_t block, uint32_t blocks)
{
    uint32_t warps = blocks * DEVICE_WARPS, all = a.c.tokens * a.shares;
    uint32_t u = dev_warp_of(block, blocks), asked;
    struct v1_choices of = {};

    if (u < all)
        of = v1_choices_of(a, u / a.shares);
    uint32_t begun = dev_begun<PROFILE>();
    if ((PULL || block == 0) &&
        !dev_wait_all(a.c, v1_signal_of(a.c.v.size, V1_COMBINE, call, 0), call, V1_WAIT_BEGUN))
        return;
    uint32_t came = dev_begun<PROFILE>();
    while (u < all) {
        asked = dev_ask(a.c, DEV_RECEIVING, call, warps, all);
        if (PULL)
            v1_pull_share<F16>(a, u / a.shares, u % a.shares, of);
        else if (!v1_take_share<F16>(a, u / a.shares, u % a.shares, of, call))
            return;
        u = dev_next(asked, warps, all);
        if (u < all)
            of = v1_choices_of(a, u / a.shares);
    }
    dev_ended<PROFILE>(a.c, call, V1_REDUCE, came);
    if (threadIdx.x < EPA_DEV_WARP) /* one warp records the times of the block */
        dev_had_ended<PROFILE>(a.c, call, V1_WAIT_OUTPUTS, begun, came);
}

namespace
{

/* With pushed expert outputs, the last blocks only receive; the only block of a kernel does both.
 * The limit of 64 registers leaves room to set up the next kernel beside this one. With float16,
 * four unpacked expert outputs need more registers. */
template <bool F16, bool PULL, bool PROFILE>
__global__ void __launch_bounds__(DEVICE_THREADS, F16 && !PULL ? 3 : 4)
    combine(const __grid_constant__ struct v1_args a)
{
    bool sends = (a.halves & V1_SEND) != 0, receives = (a.halves & V1_RECEIVE) != 0;
    uint32_t first = a.senders < gridDim.x ? a.senders : 0;
    uint64_t call = dev_begin(a.c, false, true);

    /* the release covers the experts' stores of the previous kernel */
    if (sends && blockIdx.x == 0)
        dev_signal_all(a.c, v1_signal_of(a.c.v.size, V1_COMBINE, call, 0), call);
    if (!PULL && blockIdx.x < a.senders)
        send<PROFILE>(a, call);
    if (receives && blockIdx.x >= first)
        receive<F16, PULL, PROFILE>(a, call, blockIdx.x - first, gridDim.x - first);
    dev_end(a.c, call, receives);
}

} // namespace

#define KERNELS(f16, pull) \
    { \
        (const void *)combine<f16, pull, false>, (const void *)combine<f16, pull, true> \
    }

const void *v1_combine_kernel(bool f16, bool pull, bool profile)
{
    static const void *const kernel[2][2][2] = {{KERNELS(false, false), KERNELS(false, true)},
                                                {KERNELS(true, false), KERNELS(true, true)}};

    return kernel[f16][pull][profile];
}
