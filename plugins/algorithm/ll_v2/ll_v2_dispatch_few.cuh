/* Dispatch on GPUs for few tokens (struct ll_layout.few), where the number of dependent loads and of
 * waits decides. A rank publishes the experts of all its tokens in one step, as a list at each rank.
 * Each receiving block computes counts and routes from the lists of all ranks, in its shared memory.
 * Rows are packets in layout rank, too: the fence before a signal would wait until the row has
 * arrived, which takes longer than the copy from the packets to the row's slot. */
#ifndef LL_V2_DISPATCH_FEW_CUH
#define LL_V2_DISPATCH_FEW_CUH

#define LL_PART_CHANNELS LL_FEW_CHANNELS
#include "ll_v2_dispatch.cuh"

/* ---- lists ---- */

/* Returns the offset of the list of a source. */
EPA_DEV uint64_t list_at(const struct ll_args &a, uint32_t source)
{
    return a.routes + (uint64_t)source * a.list_packets * EPA_PACKET;
}

/* Returns the number of groups of packets in a list; a warp handles a group at a time. */
EPA_DEV uint32_t list_groups(const struct ll_args &a)
{
    return (a.list_packets + EPA_DEV_PACKETS - 1) / EPA_DEV_PACKETS;
}

/* Returns word `at` of this rank's list. */
EPA_DEV uint64_t list_word(const struct ll_args &a, uint32_t at)
{
    uint32_t expert[LL_LIST_WORD];
    uint64_t word = 0;

#pragma unroll
    for (uint32_t i = 0; i < LL_LIST_WORD; i++) {
        uint32_t choice = at * LL_LIST_WORD + i;

        expert[i] = choice < a.c.tokens * a.c.topk ? dev_choice(a.c, choice) : ~0u;
    }
#pragma unroll
    for (uint32_t i = 0; i < LL_LIST_WORD; i++)
        word |= (uint64_t)(expert[i] < a.c.experts ? expert[i] : LL_NO_EXPERT) << i * LL_LIST_BITS;
    return word;
}

/* Stores this rank's list at all ranks. Called by one block. */
EPA_DEV void publish_list(const struct ll_args &a, uint64_t epoch)
{
    for (uint32_t i = threadIdx.x / EPA_DEV_WARP; i < a.c.v.size * list_groups(a);
         i += DEVICE_WARPS) {
        uint32_t peer = i % a.c.v.size, g = i / a.c.v.size, at = epa_dev_word_at(g);

        if (epa_dev_has_packet(g, a.list_packets))
            epa_dev_packet_store(a.c.v.peer_heap[peer] + list_at(a, a.c.v.rank), g,
                                 {{list_word(a, at), list_word(a, at + 1)}}, epoch);
    }
}

/* ---- routes ---- */

/* Routes to this rank in shared memory; `chosen` and `sent`: bit masks of the tokens of a source that
 * choose an expert, or any expert of this rank. */
struct few_routes {
    uint32_t *cell;   /* [local][size]: the source's first entry for the expert */
    uint32_t *chosen; /* [local][size] */
    uint32_t *begin;  /* [local]: the expert's first entry without padding */
    uint32_t *sent;   /* [size] */
};

EPA_DEV struct few_routes routes_of(const struct ll_args &a)
{
    return {shared, shared + a.c.experts, shared + 2 * a.c.experts,
            shared + 2 * a.c.experts + a.c.local};
}

/* Reads a payload of up to 4 * GROUPS packets. Loads it `a.tries` times before the wait for its last
 * packet, since a payload that arrives after this wait is loaded once more. One warp. */
template <int GROUPS>
EPA_DEV bool read_payload(const struct ll_args &a, const char *from, uint32_t packets,
                          uint64_t epoch, struct epa_dev_wait w, struct epa_dev_words *v)
{
    for (uint32_t i = 0; i < a.tries; i++)
        if (epa_dev_packets_load<GROUPS>(from, packets, epoch, v))
            return true;
    return epa_dev_packets_read<GROUPS>(a.c, from, packets, epoch, w, v);
}

/* Marks the choices of group `g` of a source's list. Returns false if it did not arrive. One warp. */
EPA_DEV bool mark_list(const struct ll_args &a, const struct few_routes &to, uint32_t source,
                       uint32_t g, uint64_t epoch)
{
    const char *from = dev_own(a.c.v, list_at(a, source)) + g * EPA_DEV_PACKETS * EPA_PACKET;
    uint32_t packets = min(a.list_packets - g * EPA_DEV_PACKETS, (uint32_t)EPA_DEV_PACKETS);
    struct epa_dev_wait w = {LL_DISPATCH, LL_COUNT, source, 0};
    struct epa_dev_words v;
    uint32_t sent = 0;

    if (!read_payload<1>(a, from, packets, epoch, w, &v))
        return false;
    for (uint32_t i = 0; i < 2 * LL_LIST_WORD && epa_dev_has_packet(0, packets); i++) {
        uint32_t choice = epa_dev_word_at(g) * LL_LIST_WORD + i, token = choice / a.c.topk;
        uint64_t word = v.w[i / LL_LIST_WORD] >> i % LL_LIST_WORD * LL_LIST_BITS;
        uint32_t e = (uint32_t)(word & LL_NO_EXPERT) - a.c.v.rank * a.c.local;

        if (e >= a.c.local || (epa_dev_ends_packet() && i >= LL_LIST_WORD))
            continue;
        atomicOr(&to.chosen[e * a.c.v.size + source], 1u << token);
        sent |= 1u << token;
    }
    sent = __reduce_or_sync(EPA_DEV_ALL, sent);
    if (epa_dev_lane() == 0)
        atomicOr(&to.sent[source], sent);
    return true;
}

/* Computes the routes from the lists of all ranks, and *total, the number of entries in use. Returns
 * false if a list is missing. */
static __device__ bool find_routes(const struct ll_args &a, uint64_t epoch,
                                   const struct few_routes &to, uint32_t *total)
{
    uint32_t size = a.c.v.size, n = a.c.local * size, groups = list_groups(a);
    bool ok = true;

    for (uint32_t i = threadIdx.x; i < n; i += DEVICE_THREADS)
        to.chosen[i] = 0;
    if (threadIdx.x < size)
        to.sent[threadIdx.x] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x / EPA_DEV_WARP; i < size * groups && ok; i += DEVICE_WARPS)
        ok = mark_list(a, to, i % size, i / size, epoch);
    if (!__syncthreads_and(ok))
        return false;
    *total = 0;
    for (uint32_t at = 0; at < n; at += DEVICE_THREADS) {
        uint32_t i = at + threadIdx.x, all, before;

        before = *total + dev_scan(i < n ? __popc(to.chosen[i]) : 0, &all);
        if (i < n)
            to.cell[i] = before;
        if (i < n && i % size == 0)
            to.begin[i / size] = before;
        *total += all;
    }
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < a.c.local; e += DEVICE_THREADS)
        publish_views(a, e, (e + 1 < a.c.local ? to.begin[e + 1] : *total) - to.begin[e],
                      to.begin[e], to.cell + e * size);
    __syncthreads();
    return true;
}

/* Returns the bit mask of the row's choices of local experts. Lane k has choice k and gets its
 * entry. Called by one warp. */
EPA_DEV uint32_t find_entries(const struct ll_args &a, const struct few_routes &routes,
                              uint32_t source, uint32_t token, uint32_t expert, uint32_t *entry)
{
    uint32_t e = expert - a.c.v.rank * a.c.local, i = e * a.c.v.size + source;
    bool here = e < a.c.local;

    *entry = here ? routes.cell[i] + __popc(routes.chosen[i] & ((1u << token) - 1)) : 0;
    return __ballot_sync(EPA_DEV_ALL, here);
}

/* ---- rows ---- */

/* Layout rank: enters a row in the lists of its experts. Lanes have choices. Called by one warp. */
EPA_DEV void enter_row(const struct ll_args &a, uint32_t slot, uint32_t wanted, uint32_t entry,
                       float weight)
{
    if ((wanted >> epa_dev_lane() & 1) != 0) {
        a.recv_row[entry] = slot;
        a.recv_weight[entry] = weight;
        a.recv_k[entry] = (uint8_t)epa_dev_lane();
    }
    if (epa_dev_lane() == 0)
        a.wanted[slot] = wanted;
}

/* Copies a part from the payload in shared memory to messages. Lane k has the entry of choice k, of which
 * `wanted` is the bit mask. A lane has at most one scale. */
template <int IN>
EPA_DEV void copy_part_of(const struct ll_args &a, uint32_t source, const struct dev_part &p,
                          const struct ll_payload &s, const uint64_t *payload, uint32_t wanted,
                          uint32_t entry, uint64_t epoch)
{
    enum { BYTES = ll_width<IN>::BYTES, VECTORS = LL_PART_CHANNELS * BYTES / 16 / EPA_DEV_WARP };
    const uint4 *token = reinterpret_cast<const uint4 *>(payload + s.token / 8) + epa_dev_lane();
    const float *scales = reinterpret_cast<const float *>(payload + s.scales / 8);
    uint32_t groups = IN == DEVICE_PLAIN ? 0 : p.channels / a.c.group;
    uint32_t at = p.first * BYTES + epa_dev_lane() * 16;
    uint32_t scale_at =
        a.scales_at + (IN == DEVICE_PLAIN ? 0 : p.first / a.c.group + epa_dev_lane()) * 4;
    float scale = epa_dev_lane() < groups ? scales[epa_dev_lane()] : 0.0f;
    char *message = dev_own(a.c.v, a.recv + (uint64_t)entry * a.message_bytes);
    uint4 v[VECTORS];

#pragma unroll
    for (int i = 0; i < VECTORS; i++)
        if ((i * EPA_DEV_WARP + epa_dev_lane()) * 16 < p.channels * BYTES)
            v[i] = token[i * EPA_DEV_WARP];
    for (uint32_t left = wanted; left != 0; left &= left - 1) {
        uint32_t k = __ffs(left) - 1;
        char *to = dev_from_lane(message, k);

#pragma unroll
        for (int i = 0; i < VECTORS; i++)
            if ((i * EPA_DEV_WARP + epa_dev_lane()) * 16 < p.channels * BYTES)
                epa_dev_store16(to + at + i * EPA_DEV_WARP * 16, v[i]);
        if (epa_dev_lane() < groups)
            *reinterpret_cast<float *>(to + scale_at) = scale;
        if (p.unit == 0 && epa_dev_lane() == 0)
            store_meta(a, source, p.token, epoch, k, to);
    }
}

/* Receives a part of a row and copies it to the rows of its experts, or in layout rank to its slot.
 * Called by one warp. */
template <int IN, int MODE, bool PROFILE>
EPA_DEV bool receive_few(const struct ll_args &a, const struct few_routes &routes, uint32_t source,
                         const struct dev_part &p, uint64_t epoch, struct dev_since *since)
{
    enum { BYTES = ll_width<IN>::BYTES, GROUPS = IN == DEVICE_PLAIN ? 3 : 2 };
    uint32_t slot = ll_slot(a.c.max_tokens, source, p.token), wanted, entry, expert = ~0u;
    uint32_t scales = IN == DEVICE_PLAIN ? 0 : p.channels / a.c.group;
    struct ll_payload s = ll_payload_of(a.c.topk, scales, p.channels * BYTES);
    const char *from =
        dev_own(a.c.v, a.arrival + ((uint64_t)slot * a.units + p.unit) * a.unit_bytes);
    struct epa_dev_wait w = {LL_DISPATCH, LL_DATA, source, p.token};
    uint64_t *payload = payload_of(a);
    struct epa_dev_words v[GROUPS];
    float weight = 0.0f;

    if (!read_payload<GROUPS>(a, from, epa_packets_of(s.bytes), epoch, w, v))
        return false;
    dev_waited<PROFILE>(a.c, epoch, LL_WAIT, since);
    epa_dev_words_keep<GROUPS>(v, epa_packets_of(s.bytes), payload);
    if (epa_dev_lane() < a.c.topk) {
        expert = reinterpret_cast<const uint16_t *>(payload)[epa_dev_lane()];
        weight = reinterpret_cast<const float *>(payload + s.weights / 8)[epa_dev_lane()];
    }
    wanted = find_entries(a, routes, source, p.token, expert, &entry);
    if (MODE == LL_BY_RANK && p.unit == 0)
        enter_row(a, slot, wanted, entry, weight);
    else if (p.unit == 0)
        keep_choices(a, slot, wanted, entry, expert, weight);
    if (COPIES && MODE == LL_DEDUP && a.into.x != NULL)
        copy_payload<IN>(a, source, p, s, payload, wanted, entry, epoch);
    else
        copy_part_of<IN>(a, source, p, s, payload, MODE == LL_BY_RANK ? 1 : wanted,
                         MODE == LL_BY_RANK ? slot : entry, epoch);
    dev_ended<PROFILE>(a.c, epoch, LL_POSTPROCESS, since->work);
    return true;
}

/* ---- the kernel ---- */

/* Sends this rank's list and rows, as block `blockIdx.x` of `blocks`. The first block sends rows only
 * if it is alone. */
template <int IN, bool PROFILE>
EPA_DEV void send_all(const struct ll_args &a, uint64_t epoch, uint32_t blocks)
{
    uint32_t apart = blocks > 1 ? 1 : 0, warps = (blocks - apart) * DEVICE_WARPS, begun;
    float carried = 0.0f; /* no row has scales that are carried */

    if (blockIdx.x == 0) {
        begun = dev_begun<PROFILE>();
        publish_list(a, epoch);
        dev_ended<PROFILE>(a.c, epoch, LL_COUNT_PUT, begun);
    }
    if (blockIdx.x < apart)
        return;
    begun = dev_begun<PROFILE>();
    for (uint32_t u = dev_warp_of(blockIdx.x - apart, blocks - apart); u < a.c.tokens * a.units;
         u += warps)
        send_unit<IN, LL_DEDUP>(a, u / a.units, u % a.units, epoch, NULL, payload_of(a), &carried);
    dev_ended<PROFILE>(a.c, epoch, LL_QUANT_AND_PUT, begun);
}

/* Receives the rows of this rank, as block `block` of `blocks`. */
template <int IN, int MODE, bool PROFILE>
EPA_DEV void receive_all(const struct ll_args &a, uint64_t epoch, uint32_t block, uint32_t blocks)
{
    struct dev_since since = {dev_begun<PROFILE>(), 0, false};
    struct few_routes routes = routes_of(a);
    uint32_t total, all = a.c.v.size * a.c.max_tokens * a.units;

    if (!find_routes(a, epoch, routes, &total) || !publish_total(a, total, block))
        return;
    if (COPIES && MODE == LL_DEDUP && block == 0 && a.into.x != NULL)
        list_experts(a, routes.cell, routes.begin, total);
    for (uint32_t u = dev_warp_of(block, blocks); u < all; u += blocks * DEVICE_WARPS) {
        uint32_t source, token, unit = u % a.units;

        ll_slot_at(a.c.v.size, a.c.v.rank, u / a.units, &source, &token);
        if ((routes.sent[source] >> token & 1) == 0) {
            if (unit == 0 && epa_dev_lane() == 0)
                a.wanted[ll_slot(a.c.max_tokens, source, token)] = 0;
            continue;
        }
        if (!receive_few<IN, MODE, PROFILE>(a, routes, source, part_at(a, token, unit), epoch,
                                            &since))
            return;
    }
}

namespace
{

/* The last blocks only receive. The only block of a kernel does both. */
template <int IN, int MODE, bool PROFILE>
__global__ void __launch_bounds__(DEVICE_THREADS, 2)
    dispatch_few(const __grid_constant__ struct ll_args a)
{
    bool sends = (a.halves & LL_SEND) != 0, receives = (a.halves & LL_RECEIVE) != 0;
    uint32_t first = sends && receives ? a.receivers_from : 0;
    uint64_t epoch = dev_begin(a.c, a.counts_early != 0, true);

    if (sends && (first == 0 || blockIdx.x < first))
        send_all<IN, PROFILE>(a, epoch, first == 0 ? gridDim.x : first);
    __syncthreads(); /* receive_all() reuses the shared memory of send_all() */
    if (receives && blockIdx.x >= first)
        receive_all<IN, MODE, PROFILE>(a, epoch, blockIdx.x - first, gridDim.x - first);
    dev_end(a.c, epoch, receives);
}

} // namespace

#endif
