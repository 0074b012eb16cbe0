/* Dispatch, the half that receives: which rows have come, and for which experts.
 *
 * A row's slot says who sent it and which token it is. Which experts want it, and where it
 * stands among their entries, is in its choices and the routes that its rank told. */
#ifndef LL_V2_RECEIVE_CUH
#define LL_V2_RECEIVE_CUH

#include "ll_v2_device.cuh"
#include "ll_v2_routes.cuh"
#include "ll_v2_rows.cuh"

/* Whether a row comes here. One warp; *ok: the source has said so, or not. */
static __device__ __forceinline__ bool is_sent(const struct ll_args &a, uint32_t source,
                                               uint32_t token, uint64_t epoch, bool *ok)
{
    uint2 sent = make_uint2(0, 0);

    *ok = ll_packet_wait(
        a, dev_own(a.v, ll_route(a, source, token / LL_WINDOW_TOKENS, a.local)), epoch,
        source, &sent);
    *ok = __all_sync(DEV_ALL, *ok);
    return (sent.x >> token % LL_WINDOW_TOKENS & 1) != 0;
}

/* Which of a row's choices are for experts here, as bits; lane k has choice k, and gets its
 * entry. One warp. */
static __device__ __forceinline__ uint32_t find_entries(const struct ll_args &a,
                                                        const uint32_t *cell,
                                                        uint32_t source, uint32_t token,
                                                        uint32_t expert, uint64_t epoch,
                                                        uint32_t *entry)
{
    uint32_t e = expert - a.v.rank * a.local, position;
    bool here = expert < a.experts && e < a.local;

    *entry = 0;
    if (here && ll_position(a, ll_route(a, source, token / LL_WINDOW_TOKENS, e), epoch,
                            source, token, &position))
        *entry = cell[e * a.v.size + source] + position;
    return __ballot_sync(DEV_ALL, here);
}

/* Combine finds here what it expert outputs: routes themselves may be those of the next dispatch
 * by then. */
static __device__ __forceinline__ void keep_choices(const struct ll_args &a, uint32_t slot,
                                                    uint32_t wanted, uint32_t entry,
                                                    uint32_t expert, float weight)
{
    uint32_t before = __popc(wanted & ((1u << dev_lane()) - 1));
    size_t at = (size_t)slot * a.topk + before;

    if ((wanted >> dev_lane() & 1) != 0)
        a.share[at] = {entry, weight};
    if ((wanted >> dev_lane() & 1) != 0 && a.chosen != NULL)
        a.chosen[at] = (uint16_t)(expert - a.v.rank * a.local);
    if (dev_lane() == 0)
        a.wanted[slot] = wanted;
}

/* One warp, until all parts of a row are here. */
static __device__ __forceinline__ bool wait_row(const struct ll_args &a, uint32_t row,
                                                struct epa_dev_wait w, uint64_t epoch)
{
    bool ok = true;

    for (uint32_t unit = dev_lane(); unit < a.row_signals; unit += DEV_WARP)
        ok = ok && epa_dev_wait_for(
                       a.v, a.signal + ll_row_signal(a.v.size, a.row_signals, row, unit),
                       epoch, a.timeout_ns, w);
    ok = __all_sync(DEV_ALL, ok);
    __syncwarp(); /* what one lane has acquired, all may read */
    return ok;
}

/* One warp, until a row's choices for this rank are here; lane i gets the i-th, or expert
 * ~0. */
static __device__ __forceinline__ bool wait_choices(const struct ll_args &a,
                                                    const char *from, uint32_t source,
                                                    uint64_t epoch, uint2 *out)
{
    struct epa_dev_poll poll = {0, 0, 0};
    struct epa_dev_wait w = {LL_DISPATCH, LL_COUNT, source, 0};
    uint32_t lane = dev_lane(), n;
    uint64_t received;

    from += (lane < a.topk ? lane : 0) * LL_PACKET_BYTES;
    for (;;) {
        *out = dev_packet_load(from, &received);
        n = __shfl_sync(DEV_ALL, received >= epoch ? ll_choice_n(out->x) : DEV_WARP, 0);
        if (__all_sync(DEV_ALL, received >= epoch || lane >= n))
            break;
        if (!__all_sync(DEV_ALL,
                        !epa_dev_poll_expired(a.v, &poll, a.timeout_ns, w, received, epoch)))
            return false;
    }
    out->x = lane < n ? ll_choice_expert(out->x) : ~0u;
    return true;
}

/* Layout rank, one warp: a row that stays where it is; its experts get to know of it. */
static __device__ __forceinline__ bool receive_row(const struct ll_args &a,
                                                   const uint32_t *cell, uint32_t source,
                                                   uint32_t token, uint64_t epoch)
{
    uint32_t slot = ll_slot(a.max_tokens, source, token), wanted, entry;
    const char *message = dev_own(a.v, a.recv + (uint64_t)slot * a.message_bytes);
    struct epa_dev_wait w = {LL_DISPATCH, LL_DATA, source, token};
    uint2 chosen;

    if (!wait_choices(a, message + a.choices_at, source, epoch, &chosen))
        return false;
    wanted = find_entries(a, cell, source, token, chosen.x, epoch, &entry);
    if ((wanted >> dev_lane() & 1) != 0) {
        a.recv_row[entry] = slot;
        a.recv_weight[entry] = __uint_as_float(chosen.y);
    }
    if (dev_lane() == 0)
        a.wanted[slot] = wanted;
    return wait_row(a, slot, w, epoch);
}

/* A part that stands as a string in shared memory, to the rows of its experts. */
template <int IN>
static __device__ __forceinline__ void
copy_payload(const struct ll_args &a, uint32_t source, const struct part &p,
            const struct ll_payload &s, const uint64_t *payload, uint32_t wanted,
            uint32_t entry, uint64_t epoch)
{
    enum {
        BYTES = IN == LL_IN_PLAIN ? 2 : 1,
        VECTORS = LL_UNIT_CHANNELS * BYTES / 16 / DEV_WARP
    };
    const uint4 *token = reinterpret_cast<const uint4 *>(payload + s.token / 8) + dev_lane();
    const float *scales = reinterpret_cast<const float *>(payload + s.scales / 8);
    uint32_t groups = IN == LL_IN_PLAIN ? 0 : p.channels / a.group;
    uint4 v[VECTORS];

#pragma unroll
    for (int i = 0; i < VECTORS; i++)
        if ((i * DEV_WARP + dev_lane()) * 16 < p.channels * BYTES)
            v[i] = token[i * DEV_WARP];
    for (uint32_t left = wanted; left != 0; left &= left - 1) {
        uint32_t k = __ffs(left) - 1, e = __shfl_sync(DEV_ALL, entry, k);
        char *row = dev_own(a.v, a.recv + (uint64_t)e * a.message_bytes);
        float *to = reinterpret_cast<float *>(row + a.scales_at) + p.first / a.group;

#pragma unroll
        for (int i = 0; i < VECTORS; i++)
            if ((i * DEV_WARP + dev_lane()) * 16 < p.channels * BYTES)
                dev_store16(row + p.first * BYTES + (i * DEV_WARP + dev_lane()) * 16, v[i]);
        for (uint32_t g = dev_lane(); g < groups; g += DEV_WARP)
            to[g] = scales[g];
        if (p.unit == 0 && dev_lane() == 0)
            store_meta(a, source, p.token, epoch, k, row);
    }
}

/* Once, one warp: a part of a row that came as lines, to the rows of its experts. */
template <int IN, bool PROFILE>
static __device__ __forceinline__ bool
receive_part(const struct ll_args &a, const uint32_t *cell, uint32_t source,
             const struct part &p, uint64_t epoch, uint64_t *payload)
{
    enum { BYTES = IN == LL_IN_PLAIN ? 2 : 1, GROUPS = IN == LL_IN_PLAIN ? 9 : 6 };
    uint32_t slot = ll_slot(a.max_tokens, source, p.token), wanted, entry, expert = ~0u;
    uint32_t scales = IN == LL_IN_PLAIN ? 0 : p.channels / a.group;
    struct ll_payload s = ll_payload_of(a.topk, scales, p.channels * BYTES);
    const char *from =
        dev_own(a.v, a.arrival + ((uint64_t)slot * a.units + p.unit) * a.unit_bytes);
    struct epa_dev_wait w = {LL_DISPATCH, LL_DATA, source, p.token};
    struct dev_words v[GROUPS];
    float weight = 0.0f;

    dev_stamp<PROFILE, LL_WARPS>(a.stamps, LL_WAIT, false);
    if (!dev_packets_read<GROUPS>(a, from, dev_packets_of(s.bytes), epoch, w, v))
        return false;
    dev_stamp<PROFILE, LL_WARPS>(a.stamps, LL_WAIT, true);
    dev_stamp<PROFILE, LL_WARPS>(a.stamps, LL_POSTPROCESS, false);
    __syncwarp(); /* the string before this one has been read */
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        if (!dev_has_packet(g, dev_packets_of(s.bytes)))
            continue;
        payload[dev_word_at(g)] = v[g].w[0];
        if (!dev_ends_packet())
            payload[dev_word_at(g) + 1] = v[g].w[1];
    }
    __syncwarp();
    if (dev_lane() < a.topk) {
        expert = reinterpret_cast<const uint16_t *>(payload)[dev_lane()];
        weight = reinterpret_cast<const float *>(payload + s.weights / 8)[dev_lane()];
    }
    wanted = find_entries(a, cell, source, p.token, expert, epoch, &entry);
    if (p.unit == 0)
        keep_choices(a, slot, wanted, entry, expert, weight);
    copy_payload<IN>(a, source, p, s, payload, wanted, entry, epoch);
    dev_stamp<PROFILE, LL_WARPS>(a.stamps, LL_POSTPROCESS, true);
    return true;
}

/* Direct: where the i-th row in use stands. Its expert is the last that begins no later, and
 * is looked for only where it matters. `begin` [local] as compact rows would begin. */
static __device__ __forceinline__ uint32_t entry_at(const struct ll_args &a,
                                                    const uint32_t *begin, uint32_t i)
{
    uint32_t low = 0, high = a.local;

    while ((a.padded || a.chosen != NULL) && high - low > 1) {
        uint32_t middle = (low + high) / 2;

        if (begin[middle] <= i)
            low = middle;
        else
            high = middle;
    }
    if (a.chosen != NULL && dev_lane() == 0)
        a.chosen[i] = (uint16_t)low;
    return a.padded ? low * a.v.size * a.max_tokens + (i - begin[low]) : i;
}

#endif
