/* Dispatch, the half that sends: a part of a token to all who want it.
 *
 * There are three ways, by enum ll_mode. LL_DIRECT: to the row of each expert. LL_BY_RANK:
 * to its slot at each rank. LL_DEDUP: there too, but as lines, for the rank to copy to its
 * experts. Rows of the first two are followed by signals, of the third by none. */
#ifndef LL_V2_SEND_CUH
#define LL_V2_SEND_CUH

#include "ll_v2_device.cuh"
#include "ll_v2_routes.cuh"
#include "ll_v2_rows.cuh"

/* To the row of each expert that wants it. `first` as ll_places() made it. */
template <int IN>
static __device__ __forceinline__ void
send_to_experts(const struct ll_args &a, const struct part &p, const struct load<IN> &l,
                const struct scales &scales, uint32_t expert, uint64_t epoch,
                const uint32_t *first, uint32_t *place)
{
    uint32_t position;

    *place = ~0u;
    if (expert < a.experts &&
        ll_position(a, ll_own_route(a, p.token / LL_WINDOW_TOKENS, expert), epoch, a.v.rank,
                    p.token, &position))
        *place = first[expert] + position;
    if (*place >= a.entries) /* without room for it the receiver gives up */
        *place = ~0u;
    if (dev_lane() < a.topk && p.unit == 0)
        a.place[(size_t)p.token * a.topk + dev_lane()] = *place;
    for (uint32_t i = 0; i < a.topk; i++) {
        uint32_t k = (i + p.token) % a.topk;
        uint32_t e = __shfl_sync(DEV_ALL, expert, k), row = __shfl_sync(DEV_ALL, *place, k);

        if (row == ~0u)
            continue;
        char *message =
            a.v.peer_heap[e / a.local] + a.recv + (uint64_t)row * a.message_bytes;

        store_part<IN>(a, p, l, scales, message);
        if (p.unit == 0 && dev_lane() == 0)
            store_meta(a, a.v.rank, p.token, epoch, k, message);
    }
}

/* To the slot that it has at each rank that wants it, with its choices. */
template <int IN>
static __device__ __forceinline__ void
send_to_ranks(const struct ll_args &a, const struct part &p, const struct load<IN> &l,
              const struct scales &scales, uint32_t ranks)
{
    uint64_t message =
        a.recv + (uint64_t)ll_slot(a.max_tokens, a.v.rank, p.token) * a.message_bytes;

    for (uint32_t i = 1; i <= a.v.size; i++) {
        uint32_t r = (a.v.rank + p.token + i) % a.v.size;

        if ((ranks >> r & 1) != 0)
            store_part<IN>(a, p, l, scales, a.v.peer_heap[r] + message);
    }
}

/* Its choices go first, so that the receiver has made room for it among its experts'
 * entries by the time that it comes. Each rank gets its own. */
static __device__ __forceinline__ void send_choices(const struct ll_args &a, uint32_t token,
                                                    uint32_t expert, float weight,
                                                    uint32_t ranks, uint64_t epoch)
{
    uint64_t at = a.recv +
                  (uint64_t)ll_slot(a.max_tokens, a.v.rank, token) * a.message_bytes +
                  a.choices_at;
    uint32_t owner = expert < a.experts ? expert / a.local : ~0u;

    for (uint32_t left = ranks; left != 0; left &= left - 1) {
        uint32_t r = __ffs(left) - 1, those = __ballot_sync(DEV_ALL, owner == r);
        uint32_t before = __popc(those & ((1u << dev_lane()) - 1));

        if (owner == r)
            dev_packet_store(a.v.peer_heap[r] + at + before * LL_PACKET_BYTES,
                             ll_choice_of(expert, __popc(those)), __float_as_uint(weight),
                             epoch);
    }
}

/* As lines. The string is put together in shared memory, where lanes find the words of
 * lines. */
template <int IN>
static __device__ __forceinline__ void
send_packets(const struct ll_args &a, const struct part &p, const struct load<IN> &l,
           uint32_t expert, float weight, uint32_t ranks, uint64_t epoch, uint64_t *payload)
{
    enum { BYTES = IN == LL_IN_PLAIN ? 2 : 1, LANE = load<IN>::width::LANE };
    uint32_t scales = IN == LL_IN_PLAIN ? 0 : p.channels / a.group;
    struct ll_payload at = ll_payload_of(a.topk, scales, p.channels * BYTES);
    uint32_t packets = dev_packets_of(at.bytes);
    uint64_t to = a.arrival +
                  ((uint64_t)ll_slot(a.max_tokens, a.v.rank, p.token) * a.units + p.unit) *
                      a.unit_bytes;
    char *bytes = reinterpret_cast<char *>(payload);

    __syncwarp(); /* the string before this one has left */
    if (dev_lane() < a.topk) {
        reinterpret_cast<uint16_t *>(bytes)[dev_lane()] = (uint16_t)expert;
        reinterpret_cast<float *>(bytes + at.weights)[dev_lane()] = weight;
    }
    if (IN != LL_IN_PLAIN)
        store_many_scales<IN>(a, p, l, reinterpret_cast<float *>(bytes + at.scales));
#pragma unroll
    for (int i = 0; i < load<IN>::width::UNIT_SWEEPS; i++) {
        uint2 *v =
            reinterpret_cast<uint2 *>(bytes + at.token + (i * DEV_WARP + dev_lane()) * 16);

        if (i * load<IN>::width::SWEEP + dev_lane() * LANE < p.channels) {
            v[0] = make_uint2(l.v[i].x, l.v[i].y);
            v[1] = make_uint2(l.v[i].z, l.v[i].w);
        }
    }
    __syncwarp();
    for (uint32_t g = 0; g * DEV_PACKETS < packets; g++) {
        if (!dev_has_packet(g, packets))
            continue;
        struct dev_words words = dev_words_of(payload, g);

        for (uint32_t i = 1; i <= a.v.size; i++) {
            uint32_t r = (a.v.rank + p.token + i) % a.v.size;

            if ((ranks >> r & 1) != 0)
                dev_packet128_store(a.v.peer_heap[r] + to, g, words, epoch);
        }
    }
}

/* What a warp has stored and has still to tell. */
struct reported {
    uint32_t row, unit, ranks; /* LL_BY_RANK: bits; the row is its slot */
    uint32_t place, expert;    /* LL_DIRECT: of this lane's choice; ~0: none */
};

/* One warp: a part of a token from x to all who want it. */
template <int IN, int MODE>
static __device__ __forceinline__ struct reported
send_unit(const struct ll_args &a, uint32_t token, uint32_t unit, uint64_t epoch,
          const uint32_t *first, uint64_t *payload, float *carried)
{
    struct part p = part_at(a, token, unit);
    struct reported t = {ll_slot(a.max_tokens, a.v.rank, token), unit, 0, ~0u, ~0u};
    struct scales scales = {0.0f, 0, 0};
    bool weighs = MODE == LL_DEDUP || (MODE == LL_BY_RANK && unit == 0);
    size_t choice = (size_t)token * a.topk + dev_lane();
    float weight = 0.0f;
    struct raw<IN> raw;
    struct load<IN> l;

    /* All loads are on their way before the first is used. */
    if (dev_lane() < a.topk)
        t.expert = (uint32_t)__ldg(a.expert + choice);
    if (dev_lane() < a.topk && weighs)
        weight = __ldg(a.weight + choice);
    read_part<IN>(a, p, &raw);
    t.ranks =
        __reduce_or_sync(DEV_ALL, t.expert < a.experts ? 1u << t.expert / a.local : 0u);
    if (MODE == LL_BY_RANK && unit == 0)
        send_choices(a, token, t.expert, weight, t.ranks, epoch);
    quantise_part<IN>(a, raw, &l);
    if (IN != LL_IN_PLAIN && MODE != LL_DEDUP)
        scales = join_scales(a, p, gather_scales<IN>(a, raw, l), carried);
    if (MODE == LL_DIRECT)
        send_to_experts<IN>(a, p, l, scales, t.expert, epoch, first, &t.place);
    else if (MODE == LL_BY_RANK)
        send_to_ranks<IN>(a, p, l, scales, t.ranks);
    else
        send_packets<IN>(a, p, l, t.expert, weight, t.ranks, epoch, payload);
    return t;
}

/* The signals of what a warp has stored, after one wait for it to be in place: of a part,
 * or of the last part for all of the row. Pairs with the acquire in wait_row(). */
template <int MODE>
static __device__ __forceinline__ void tell_row(const struct ll_args &a,
                                                const struct reported &t, uint64_t epoch)
{
    uint32_t unit = a.row_signals == 1 ? 0 : t.unit, lane = dev_lane();

    __syncwarp();
    if (MODE == LL_BY_RANK && lane < EPA_DEVICE_RANKS && (t.ranks >> lane & 1) != 0)
        epa_dev_signal(a.v, a.signal + ll_row_signal(a.v.size, a.row_signals, t.row, unit),
                       epoch, lane);
    if (MODE == LL_DIRECT && t.place != ~0u)
        epa_dev_signal(a.v,
                       a.signal + ll_row_signal(a.v.size, a.row_signals, t.place, unit),
                       epoch, t.expert / a.local);
}

#endif
