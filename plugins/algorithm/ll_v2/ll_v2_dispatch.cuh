/* Dispatch on GPUs. The first blocks count choices and publish the counts at all ranks. The next
 * blocks store rows at their ranks, quantised during the copy. With dedup or layout: rank they do
 * not wait for counts, since source and token determine the slot of a row. The last blocks receive.
 * With layout: expert and dedup: false, rows go directly to the rows of their experts; senders then
 * wait for the counts of all ranks, which determine the places.
 *
 * With row_order the receiver copies each part of a row from its slot to its place in the order. The
 * number of rows of earlier sources and the number of earlier tokens of the source, both from routes,
 * determine the place.
 *
 * Routes and counts are packets with the epoch. Rows of dedup, which receivers copy to their
 * experts, are packets, too. Rows that stay where they arrive have a signal per part. */
#ifndef LL_V2_DISPATCH_CUH
#define LL_V2_DISPATCH_CUH

#include "ll_v2_send.cuh"

/* Shared memory of the block: tables by expert, then a payload buffer per warp. */
extern __shared__ __align__(16) uint32_t shared[];

EPA_DEV uint64_t *payload_of(const struct ll_args &a)
{
    return reinterpret_cast<uint64_t *>(reinterpret_cast<char *>(shared) + a.payloads +
                                        threadIdx.x / EPA_DEV_WARP * a.payload);
}

template <int IN, int MODE, bool PROFILE>
EPA_DEV bool send(const struct ll_args &a, uint64_t epoch, uint32_t senders)
{
    /* The first blocks count; they send rows only if all blocks count. */
    bool apart = senders > a.publishers;
    uint32_t blocks = apart ? senders - a.publishers : senders;
    uint32_t block = apart ? blockIdx.x - a.publishers : blockIdx.x;
    uint32_t *first = shared + a.c.experts, warps = blocks * DEVICE_WARPS;
    uint32_t units = a.units / a.row_signals; /* number of parts that a warp sends at a time */
    uint32_t all = a.c.tokens * a.row_signals;
    uint64_t *payload = payload_of(a);

    if (blockIdx.x < a.publishers) {
        uint32_t begun = dev_begun<PROFILE>();

        ll_publish<MODE>(a, epoch, shared);
        dev_ended<PROFILE>(a.c, epoch, LL_COUNT_PUT, begun);
    }
    if (blockIdx.x < a.publishers && apart)
        return true;
    if (MODE == LL_DIRECT && !ll_slots(a, epoch, shared, first))
        return false;
    uint32_t begun = dev_begun<PROFILE>();

    for (uint32_t u = dev_warp_of(block, blocks), asked; u < all; u = dev_next(asked, warps, all)) {
        struct reported t;
        float carried = 0.0f;

        asked = dev_ask(a.c, DEV_SENDING, epoch, warps, all);
        for (uint32_t i = u * units; i < (u + 1) * units; i++)
            t = send_unit<IN, MODE>(a, i / a.units, i % a.units, epoch, first, payload, &carried);
        tell_row<MODE>(a, t, epoch);
    }
    dev_ended<PROFILE>(a.c, epoch, LL_QUANT_AND_PUT, begun);
    return true;
}

/* ---- receiving ----
 *
 * The slot of a row determines its source and token. The row's choices and the routes of its source
 * determine its experts and its index among their entries. */

/* Returns true if the source sends the token to this rank. *ok: the route has arrived. *before: with
 * row_order, number of earlier tokens that the source sends to this rank. Called by one warp. */
EPA_DEV bool is_sent(const struct ll_args &a, uint32_t source, uint32_t token, uint64_t epoch,
                     bool *ok, uint32_t *before)
{
    uint2 sent = make_uint2(0, 0);

    *ok =
        ll_packet_wait(a, dev_own(a.c.v, ll_route(a, source, token / LL_WINDOW_TOKENS, a.c.local)),
                       epoch, source, &sent);
    *ok = __all_sync(EPA_DEV_ALL, *ok);
    *before = sent.y + __popc(sent.x & ((1u << token % LL_WINDOW_TOKENS) - 1));
    return (sent.x >> token % LL_WINDOW_TOKENS & 1) != 0;
}

/* Returns the bit mask of the row's choices of local experts. Lane k has choice k and gets its
 * entry. Called by one warp. */
EPA_DEV uint32_t find_entries(const struct ll_args &a, const uint32_t *cell, uint32_t source,
                              uint32_t token, uint32_t expert, uint64_t epoch, uint32_t *entry)
{
    uint32_t e = expert - a.c.v.rank * a.c.local, position;
    bool here = expert < a.c.experts && e < a.c.local;

    *entry = 0;
    if (here && ll_position(a, ll_route(a, source, token / LL_WINDOW_TOKENS, e), epoch, source,
                            token, &position))
        *entry = cell[e * a.c.v.size + source] + position;
    return __ballot_sync(EPA_DEV_ALL, here);
}

/* Keeps the local choices of a row for combine, since the next dispatch may overwrite the routes
 * before combine runs. */
EPA_DEV void keep_choices(const struct ll_args &a, uint32_t slot, uint32_t wanted, uint32_t entry,
                          uint32_t expert, float weight)
{
    uint32_t before = __popc(wanted & ((1u << epa_dev_lane()) - 1));
    size_t at = (size_t)slot * a.c.topk + before;

    if ((wanted >> epa_dev_lane() & 1) != 0)
        a.share[at] = {entry, weight};
    if ((wanted >> epa_dev_lane() & 1) != 0 && a.chosen != NULL)
        a.chosen[at] = (uint16_t)(expert - a.c.v.rank * a.c.local);
    if (epa_dev_lane() == 0)
        a.wanted[slot] = wanted;
}

/* Waits until part `unit` of a row has arrived. Called by one warp. */
EPA_DEV bool wait_part(const struct ll_args &a, uint32_t row, uint32_t unit, struct epa_dev_wait w,
                       uint64_t epoch)
{
    bool ok =
        epa_dev_lane() != 0 ||
        epa_dev_wait_for(a.c.v, a.c.signal + ll_row_signal(a.c.v.size, a.row_signals, row, unit),
                         epoch, a.c.timeout_ns, w);

    ok = __all_sync(EPA_DEV_ALL, ok);
    __syncwarp(); /* extends the acquire of lane 0 to all lanes */
    return ok;
}

/* Waits until all parts of a row have arrived. Called by one warp. */
EPA_DEV bool wait_row(const struct ll_args &a, uint32_t row, struct epa_dev_wait w, uint64_t epoch)
{
    bool ok = true;

    for (uint32_t unit = epa_dev_lane(); unit < a.row_signals; unit += EPA_DEV_WARP)
        ok = ok && epa_dev_wait_for(
                       a.c.v, a.c.signal + ll_row_signal(a.c.v.size, a.row_signals, row, unit),
                       epoch, a.c.timeout_ns, w);
    ok = __all_sync(EPA_DEV_ALL, ok);
    __syncwarp(); /* extends the acquire of each lane to all lanes */
    return ok;
}

/* Waits for a row's choices of experts at this rank. Lane i gets the i-th choice and its index *k, or
 * expert ~0. Called by one warp. */
EPA_DEV bool wait_choices(const struct ll_args &a, const char *from, uint32_t source,
                          uint64_t epoch, uint2 *out, uint32_t *k)
{
    struct epa_dev_poll poll = {};
    struct epa_dev_wait w = {LL_DISPATCH, LL_COUNT, source, 0};
    uint32_t lane = epa_dev_lane(), n;
    uint64_t received;

    from += (lane < a.c.topk ? lane : 0) * LL_PACKET_BYTES;
    for (;;) {
        *out = epa_dev_packet16_load(from, &received);
        n = __shfl_sync(EPA_DEV_ALL, received >= epoch ? ll_choice_n(out->x) : EPA_DEV_WARP, 0);
        if (__all_sync(EPA_DEV_ALL, received >= epoch || lane >= n))
            break;
        if (!__all_sync(EPA_DEV_ALL,
                        !epa_dev_poll_expired(a.c.v, &poll, a.c.timeout_ns, w, received, epoch)))
            return false;
    }
    *k = ll_choice_k(out->x);
    out->x = lane < n ? ll_choice_expert(out->x) : ~0u;
    return true;
}

/* row_order: describes a row by its source, token and choices. Called by one warp; the lanes of
 * `wanted` have a choice of a local expert. */
EPA_DEV void describe_row(const struct ll_args &a, uint32_t source, uint32_t token, uint32_t row,
                          uint32_t wanted, uint2 chosen, uint32_t k)
{
    uint32_t lane = epa_dev_lane();
    bool has = (wanted >> lane & 1) != 0;
    uint32_t here = __reduce_or_sync(EPA_DEV_ALL, has ? 1u << k : 0u);
    int32_t *expert = a.order.expert + (size_t)row * a.c.topk;
    float *weight = a.order.weight + (size_t)row * a.c.topk;

    if (has) {
        expert[k] = (int32_t)(chosen.x - a.c.v.rank * a.c.local);
        weight[k] = __uint_as_float(chosen.y);
    }
    if (lane < a.c.topk && (here >> lane & 1) == 0) {
        expert[lane] = -1;
        weight[lane] = 0.0f;
    }
    if (lane == 0) {
        a.order.origin[row] = {source, token};
        a.order.row[ll_slot(a.c.max_tokens, source, token)] = row;
    }
}

/* Layout rank: enters a row in the lists of its experts. `row`: the row that experts read. Called by
 * one warp. */
template <int MODE>
EPA_DEV bool list_row(const struct ll_args &a, const uint32_t *cell, uint32_t source,
                      uint32_t token, uint32_t row, uint64_t epoch)
{
    uint32_t slot = ll_slot(a.c.max_tokens, source, token), wanted, entry, k;
    const char *message = dev_own(a.c.v, a.recv + (uint64_t)slot * a.message_bytes);
    uint2 chosen;

    if (!wait_choices(a, message + a.choices_at, source, epoch, &chosen, &k))
        return false;
    wanted = find_entries(a, cell, source, token, chosen.x, epoch, &entry);
    if ((wanted >> epa_dev_lane() & 1) != 0) {
        a.recv_row[entry] = row;
        a.recv_weight[entry] = __uint_as_float(chosen.y);
        a.recv_k[entry] = (uint8_t)k;
    }
    if (epa_dev_lane() == 0)
        a.wanted[slot] = wanted;
    if (MODE == LL_ORDERED)
        describe_row(a, source, token, row, wanted, chosen, k);
    return true;
}

/* Layout rank: receives a row that stays in its slot. Called by one warp. */
EPA_DEV bool receive_row(const struct ll_args &a, const uint32_t *cell, uint32_t source,
                         uint32_t token, uint64_t epoch)
{
    uint32_t slot = ll_slot(a.c.max_tokens, source, token);
    struct epa_dev_wait w = {LL_DISPATCH, LL_DATA, source, token};

    if (!list_row<LL_BY_RANK>(a, cell, source, token, slot, epoch))
        return false;
    if ((a.far >> source & 1) != 0) /* the previous kernel has waited for its rows */
        return true;
    return wait_row(a, slot, w, epoch);
}

enum { COPY_SWEEPS = 4 }; /* number of loads of a lane in flight while a row is copied */

/* row_order: copies a part of a row from its slot. Called by one warp. */
template <int IN>
EPA_DEV void copy_part(const struct ll_args &a, const struct dev_part &p, const char *message,
                       uint32_t row)
{
    enum { BYTES = ll_width<IN>::BYTES, SWEEPS = ll_width<IN>::SWEEPS };
    const char *from = message + p.first * BYTES + epa_dev_lane() * 16;
    char *to = a.order.rows + ((size_t)row * a.c.hidden + p.first) * BYTES + epa_dev_lane() * 16;
    size_t group = IN == DEVICE_PLAIN ? 0 : p.first / a.c.group;
    uint32_t groups = IN == DEVICE_PLAIN ? 0 : p.channels / a.c.group;
    const float *scale = reinterpret_cast<const float *>(message + a.scales_at) + group;
    float *scales =
        IN == DEVICE_PLAIN ? NULL : a.order.scales + (size_t)row * (a.c.hidden / a.c.group) + group;
    float first = epa_dev_lane() < groups ? __ldcg(scale + epa_dev_lane()) : 0.0f;

#pragma unroll
    for (int at = 0; at < SWEEPS; at += COPY_SWEEPS) {
        uint4 v[COPY_SWEEPS];

#pragma unroll
        for (int i = 0; i < COPY_SWEEPS; i++)
            if (at + i < SWEEPS && dev_takes<ll_width<IN>>(p, at + i))
                v[i] = epa_dev_load16(from + (at + i) * EPA_DEV_WARP * 16);
#pragma unroll
        for (int i = 0; i < COPY_SWEEPS; i++)
            if (at + i < SWEEPS && dev_takes<ll_width<IN>>(p, at + i))
                epa_dev_store16(to + (at + i) * EPA_DEV_WARP * 16, v[i]);
    }
    if (epa_dev_lane() < groups)
        scales[epa_dev_lane()] = first;
    for (uint32_t g = EPA_DEV_WARP + epa_dev_lane(); g < groups; g += EPA_DEV_WARP)
        scales[g] = __ldcg(scale + g);
}

/* row_order: receives the parts of a row that a signal covers, and copies them to row `row`. Called by
 * one warp. */
template <int IN>
EPA_DEV bool receive_ordered(const struct ll_args &a, const uint32_t *cell, uint32_t source,
                             uint32_t token, uint32_t unit, uint32_t row, uint64_t epoch)
{
    uint32_t slot = ll_slot(a.c.max_tokens, source, token), units = a.units / a.row_signals;
    const char *message = dev_own(a.c.v, a.recv + (uint64_t)slot * a.message_bytes);
    struct epa_dev_wait w = {LL_DISPATCH, LL_DATA, source, token};

    if (unit == 0 && !list_row<LL_ORDERED>(a, cell, source, token, row, epoch))
        return false;
    /* The previous kernel has waited for rows of other nodes. */
    if ((a.far >> source & 1) == 0 && !wait_part(a, slot, unit, w, epoch))
        return false;
    for (uint32_t i = unit * units; i < (unit + 1) * units; i++)
        copy_part<IN>(a, part_at(a, token, i), message, row);
    return true;
}

/* Stores scales of row `row` from group `first` on in the array of the caller, a scale per lane. With
 * exponents, a lane stores a byte of a word, and the last part clears the unused bytes. */
EPA_DEV void store_scales(const struct ll_args &a, uint32_t row, uint32_t first, uint32_t groups,
                          const float *scales)
{
    const struct ll_into &to = a.into;
    uint32_t all = groups, index = to.scale_rows != 0 ? row % to.scale_rows : 0;
    uint64_t step = to.scale_rows != 0 ? to.scale_rows : 1; /* from a word to the next */
    uint32_t *word = to.scales + (uint64_t)(row - index) * to.words + index;

    if (to.scales == NULL)
        return;
    if (to.exponents && first + groups == a.c.hidden / a.c.group)
        all = to.words * 4 - first;
    for (uint32_t g = epa_dev_lane(); g < all; g += EPA_DEV_WARP) {
        uint32_t bits = g < groups ? __float_as_uint(scales[g]) : 0, at = first + g;

        if (to.exponents)
            reinterpret_cast<uint8_t *>(word + at / 4 * step)[at % 4] = (uint8_t)(bits >> 23);
        else
            word[at * step] = bits;
    }
}

/* Copies a part from the payload in shared memory to the rows of its experts. */
template <int IN>
EPA_DEV void copy_payload(const struct ll_args &a, uint32_t source, const struct dev_part &p,
                          const struct ll_payload &s, const uint64_t *payload, uint32_t wanted,
                          uint32_t entry, uint64_t epoch)
{
    enum { BYTES = ll_width<IN>::BYTES, VECTORS = LL_PART_CHANNELS * BYTES / 16 / EPA_DEV_WARP };
    const uint4 *token = reinterpret_cast<const uint4 *>(payload + s.token / 8) + epa_dev_lane();
    const float *scales = reinterpret_cast<const float *>(payload + s.scales / 8);
    uint32_t groups = IN == DEVICE_PLAIN ? 0 : p.channels / a.c.group;
    uint4 v[VECTORS];

#pragma unroll
    for (int i = 0; i < VECTORS; i++)
        if ((i * EPA_DEV_WARP + epa_dev_lane()) * 16 < p.channels * BYTES)
            v[i] = token[i * EPA_DEV_WARP];
    for (uint32_t left = wanted; left != 0; left &= left - 1) {
        uint32_t k = __ffs(left) - 1, e = __shfl_sync(EPA_DEV_ALL, entry, k);
        bool direct = COPIES && a.into.x != NULL;
        char *row = direct ? a.into.x + (uint64_t)e * a.c.hidden * BYTES
                           : dev_own(a.c.v, a.recv + (uint64_t)e * a.message_bytes);

#pragma unroll
        for (int i = 0; i < VECTORS; i++)
            if ((i * EPA_DEV_WARP + epa_dev_lane()) * 16 < p.channels * BYTES)
                epa_dev_store16(row + p.first * BYTES + (i * EPA_DEV_WARP + epa_dev_lane()) * 16,
                                v[i]);
        if (direct) {
            if (groups != 0)
                store_scales(a, e, p.first / a.c.group, groups, scales);
            if (p.unit == 0 && epa_dev_lane() == 0 && a.into.token != NULL)
                a.into.token[e] = (int32_t)p.token;
            continue;
        }
        float *to = reinterpret_cast<float *>(row + a.scales_at) + p.first / a.c.group;

        for (uint32_t g = epa_dev_lane(); g < groups; g += EPA_DEV_WARP)
            to[g] = scales[g];
        if (p.unit == 0 && epa_dev_lane() == 0)
            store_meta(a, source, p.token, epoch, k, row);
    }
}

/* dedup: receives a part of a row and copies it to the rows of its experts. Called by one warp. */
template <int IN, bool PROFILE>
EPA_DEV bool receive_part(const struct ll_args &a, const uint32_t *cell, uint32_t source,
                          const struct dev_part &p, uint64_t epoch, struct dev_since *since,
                          uint64_t *payload)
{
    enum { BYTES = ll_width<IN>::BYTES, GROUPS = IN == DEVICE_PLAIN ? 9 : 6 };
    uint32_t slot = ll_slot(a.c.max_tokens, source, p.token), wanted, entry, expert = ~0u;
    uint32_t scales = IN == DEVICE_PLAIN ? 0 : p.channels / a.c.group;
    struct ll_payload s = ll_payload_of(a.c.topk, scales, p.channels * BYTES);
    const char *from =
        dev_own(a.c.v, a.arrival + ((uint64_t)slot * a.units + p.unit) * a.unit_bytes);
    struct epa_dev_wait w = {LL_DISPATCH, LL_DATA, source, p.token};
    struct epa_dev_words v[GROUPS];
    float weight = 0.0f;

    if (LL_MASKS ? !epa_dev_packets_read<GROUPS>(ll_patience{a, a.c.timeout_ns}, from,
                                                 epa_packets_of(s.bytes), epoch, w, v)
                 : !epa_dev_packets_read<GROUPS>(a.c, from, epa_packets_of(s.bytes), epoch, w, v))
        return false;
    dev_waited<PROFILE>(a.c, epoch, LL_WAIT, since);
    epa_dev_words_keep<GROUPS>(v, epa_packets_of(s.bytes), payload);
    if (epa_dev_lane() < a.c.topk) {
        expert = reinterpret_cast<const uint16_t *>(payload)[epa_dev_lane()];
        weight = reinterpret_cast<const float *>(payload + s.weights / 8)[epa_dev_lane()];
    }
    wanted = find_entries(a, cell, source, p.token, expert, epoch, &entry);
    if (p.unit == 0)
        keep_choices(a, slot, wanted, entry, expert, weight);
    copy_payload<IN>(a, source, p, s, payload, wanted, entry, epoch);
    dev_ended<PROFILE>(a.c, epoch, LL_POSTPROCESS, since->work);
    return true;
}

/* LL_DIRECT: returns the entry of the i-th row in use, and records its expert if combine needs it.
 * `begin` [local]: start of each expert's rows without padding. */
EPA_DEV uint32_t entry_at(const struct ll_args &a, const uint32_t *begin, uint32_t i)
{
    uint32_t low = 0;

    if (a.padded || a.chosen != NULL)
        low = device_cell_of(begin, a.c.local, i);
    if (a.chosen != NULL && epa_dev_lane() == 0)
        a.chosen[i] = (uint16_t)low;
    return a.padded ? low * a.c.v.size * a.c.max_tokens + (i - begin[low]) : i;
}

/* row_order: computes base[source], the first row of a source, and with `publishes` the ranges of the
 * sources. Returns false if routes are missing. */
EPA_DEV bool find_bases(const struct ll_args &a, uint64_t epoch, const uint32_t *tokens,
                        bool publishes, uint32_t *base)
{
    uint32_t source = threadIdx.x, n = 0, before, total;
    bool ok = true;

    if (source < a.c.v.size && tokens[source] > 0) {
        uint32_t window = (tokens[source] - 1) / LL_WINDOW_TOKENS;
        uint2 sent = make_uint2(0, 0);

        ok = ll_packet_wait(a, dev_own(a.c.v, ll_route(a, source, window, a.c.local)), epoch,
                            source, &sent);
        n = sent.y + __popc(sent.x);
    }
    before = dev_scan(n, &total);
    if (source < a.c.v.size) {
        base[source] = a.gaps ? source * a.c.max_tokens : before;
        if (publishes)
            a.order.range[source] = (int64_t)((uint64_t)base[source] << 32 | n);
    }
    return __syncthreads_and(ok);
}

/* row_order: keeps the first row of this rank's tokens at each rank, from which combine pulls expert
 * outputs. Returns false if numbers of rows are missing. Called by one block. */
EPA_DEV bool find_own_rows(const struct ll_args &a, uint64_t epoch)
{
    uint32_t rank = threadIdx.x, before = 0;
    bool ok = true;

    if (rank < a.c.v.size) {
        for (uint32_t r = 0; r < a.c.v.rank && !a.gaps && ok; r++) {
            uint2 rows = make_uint2(0, 0);

            ok = ll_packet_wait(a, dev_own(a.c.v, ll_total(a, r, rank)), epoch, r, &rows);
            before += rows.x;
        }
        a.order.base[rank] = a.gaps ? a.c.v.rank * a.c.max_tokens : before;
    }
    return __syncthreads_and(ok);
}

/* Writes the lists of the experts to the arrays of the caller. `cell` and `begin`: results of
 * ll_cells(). Called by one block. */
EPA_DEV void list_experts(const struct ll_args &a, const uint32_t *cell, const uint32_t *begin,
                          uint32_t total)
{
    const struct ll_into &to = a.into;
    uint32_t size = a.c.v.size;

    for (uint32_t i = threadIdx.x; i < a.c.local * size; i += DEVICE_THREADS) {
        uint32_t e = i / size, source = i % size, first = cell[i] - cell[e * size];
        uint32_t rows = (e + 1 < a.c.local ? begin[e + 1] : total) - begin[e];
        uint32_t end = source + 1 < size ? cell[i + 1] - cell[e * size] : rows;

        if (to.range != NULL)
            to.range[i] = (int64_t)((uint64_t)first << 32 | (end - first));
        if (source != 0)
            continue;
        if (to.count != NULL)
            to.count[e] = rows;
        if (to.start != NULL)
            to.start[e] = cell[i];
        if (to.seen != NULL)
            to.seen[e] += (int32_t)rows;
    }
}

/* Returns the number of units into which receivers divide a row. */
template <int MODE> EPA_DEV uint32_t units_of(const struct ll_args &a)
{
    return MODE == LL_DEDUP ? a.units : MODE == LL_ORDERED ? a.row_signals : 1;
}

/* Receives rows that sources send once per rank, as block `block` of `blocks`. */
template <int IN, int MODE, bool PROFILE>
EPA_DEV void receive_slots(const struct ll_args &a, uint64_t epoch, const uint32_t *cell,
                           const uint32_t *tokens, const uint32_t *base, uint32_t block,
                           uint32_t blocks)
{
    uint64_t *payload = payload_of(a);
    uint32_t units = units_of<MODE>(a), all = a.c.v.size * a.c.max_tokens * units;
    struct dev_since since = {dev_begun<PROFILE>(), 0, false};

    for (uint32_t u = dev_warp_of(block, blocks), asked; u < all;
         u = dev_next(asked, blocks * DEVICE_WARPS, all)) {
        uint32_t source, token, before, unit = u % units;
        bool ok = true, sent;

        asked = dev_ask(a.c, DEV_RECEIVING, epoch, blocks * DEVICE_WARPS, all);
        ll_slot_at(a.c.v.size, a.c.v.rank, u / units, &source, &token);
        sent = token < tokens[source] && is_sent(a, source, token, epoch, &ok, &before);
        if (ok && !sent && unit == 0 && epa_dev_lane() == 0)
            a.wanted[ll_slot(a.c.max_tokens, source, token)] = 0;
        if (!sent && ok)
            continue;
        if (ok && MODE == LL_BY_RANK) {
            ok = receive_row(a, cell, source, token, epoch);
            dev_ended<PROFILE>(a.c, epoch, LL_WAIT, since.wait);
        } else if (ok && MODE == LL_ORDERED) {
            ok = receive_ordered<IN>(a, cell, source, token, unit, base[source] + before, epoch);
            dev_ended<PROFILE>(a.c, epoch, LL_WAIT, since.wait);
        } else if (ok) {
            ok = receive_part<IN, PROFILE>(a, cell, source, part_at(a, token, unit), epoch, &since,
                                           payload);
        }
        if (!ok && (!LL_MASKS || ll_must_end(a)))
            return;
    }
}

/* Waits for rows that sources store at their final place. */
template <bool PROFILE>
EPA_DEV void receive_entries(const struct ll_args &a, uint64_t epoch, const uint32_t *begin,
                             uint32_t total, uint32_t block, uint32_t blocks)
{
    uint32_t begun = dev_begun<PROFILE>();

    for (uint32_t i = dev_warp_of(block, blocks); i < total; i += blocks * DEVICE_WARPS) {
        uint32_t entry = entry_at(a, begin, i);
        struct epa_dev_wait w = {LL_DISPATCH, LL_WAIT_ENTRY, a.c.v.rank, entry};

        if (epa_dev_lane() == 0)
            a.recv_row[i] = entry;
        if (!wait_row(a, entry, w, epoch))
            return;
        dev_ended<PROFILE>(a.c, epoch, LL_WAIT, begun);
    }
}

/* Publishes the number of rows. Returns false if more rows arrive than fit. Called by all threads. */
EPA_DEV bool publish_total(const struct ll_args &a, uint32_t total, uint32_t block)
{
    if (total > a.entries && !a.padded) {
        struct epa_dev_wait w = {LL_DISPATCH, LL_WAIT_ROOM, a.c.v.rank, 0};

        if (threadIdx.x == 0)
            epa_dev_fault(a.c.v, EPA_ERR_CONFIG, w, total, a.entries, 0);
        return false;
    }
    if (block == 0 && threadIdx.x == 0)
        *a.c.rows = total;
    return true;
}

template <int IN, int MODE, bool PROFILE>
EPA_DEV void receive(const struct ll_args &a, uint64_t epoch, uint32_t block, uint32_t blocks)
{
    uint32_t total, *begin = shared + a.c.experts, *tokens = begin + a.c.experts;
    uint32_t *base = tokens + a.c.v.size; /* row_order */

    if (!ll_cells(a, epoch, shared, begin, tokens, &total))
        return;
    if (!publish_total(a, total, block))
        return;
    if (COPIES && MODE == LL_DEDUP && !LL_MASKS && block == 0 && a.into.x != NULL)
        list_experts(a, shared, begin, total);
    if (MODE == LL_ORDERED && !find_bases(a, epoch, tokens, block == 0, base))
        return;
    if (MODE == LL_ORDERED && block == 0 && a.order.base != NULL && !find_own_rows(a, epoch))
        return;
    if (MODE == LL_DIRECT)
        receive_entries<PROFILE>(a, epoch, begin, total, block, blocks);
    else
        receive_slots<IN, MODE, PROFILE>(a, epoch, shared, tokens, base, block, blocks);
}

/* With masks: the last block repeats the work of all blocks if ranks were lost. Then it writes the lists
 * of the experts, to which it adds rows once. */
template <int IN, int MODE, bool PROFILE>
EPA_DEV void receive_live(const struct ll_args &a, uint64_t epoch, uint32_t block, uint32_t blocks)
{
    ll_leave_out_agreed(a, epoch);
    receive<IN, MODE, PROFILE>(a, epoch, block, blocks);
    if (!ll_is_last(a, blocks))
        return;
    while (ll_leave_out_lost(a, epoch))
        receive<IN, MODE, PROFILE>(a, epoch, 0, 1);
    if (a.into.x != NULL && !ll_must_end(a))
        list_experts(a, shared, shared + a.c.experts, __ldcg(a.c.rows));
}

namespace
{

/* The last blocks only receive: they start with the counts and need not send first. With dedup, the
 * other blocks help after their sends. The only block of a kernel does both. */
template <int IN, int MODE, bool PROFILE>
__global__ void __launch_bounds__(DEVICE_THREADS, 4)
    dispatch(const __grid_constant__ struct ll_args a)
{
    bool sends = (a.halves & LL_SEND) != 0, receives = (a.halves & LL_RECEIVE) != 0, ok = true;
    uint32_t first = sends && receives ? a.receivers_from : 0;
    uint32_t blocks = gridDim.x - first, block = (blockIdx.x + gridDim.x - first) % gridDim.x;
    uint64_t epoch = dev_begin(a.c, a.counts_early != 0, true);

    if (LL_MASKS)
        ll_leave_out_masked(a);
    if (sends && (first == 0 || blockIdx.x < first))
        ok = send<IN, MODE, PROFILE>(a, epoch, first == 0 ? gridDim.x : first);
    __syncthreads(); /* receive() reuses the shared memory of send() */
    if (LL_MASKS && receives)
        receive_live<IN, MODE, PROFILE>(a, epoch, block, gridDim.x);
    else if (ok && receives && (MODE == LL_DEDUP || blockIdx.x >= first))
        receive<IN, MODE, PROFILE>(a, epoch, block, MODE == LL_DEDUP ? gridDim.x : blocks);
    dev_end(a.c, epoch, receives);
}

} // namespace

#endif
