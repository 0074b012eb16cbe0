/* The sending half of dispatch on GPUs: the first blocks count choices and send the counts to all
 * ranks; the other blocks send parts of tokens, quantised during the copy.
 *
 * enum ll_mode names four ways. LL_DIRECT sends a row to the row of each expert. LL_BY_RANK and
 * LL_ORDERED send it to its slot at each rank. LL_DEDUP sends it to a slot, too, but as packets, which
 * the rank copies to its experts. Signals follow rows in all modes except LL_DEDUP.
 *
 * A warp holds a part of a token in its registers, 16 bytes in flight per lane and sweep, so that
 * each store fills a packet of the link. For the same reason it gathers scales in neighbouring
 * lanes. */
#ifndef LL_V2_SEND_CUH
#define LL_V2_SEND_CUH

#include "../../common/algo_cuda.cuh"
#include "ll_v2_device.h"
#include "ll_v2_masks.cuh"

/* 1: the kernels of this file have masks. */
#ifndef LL_MASKS
#define LL_MASKS 0
#endif

enum { LL_PACKET_BYTES = 16 };

/* Returns the offset of the route packet of a source's window. expert: local index, or `local` for
 * the mask of tokens that this rank gets at all. ll_own_route() does the same for LL_DIRECT, whose
 * senders keep their own routes to all experts. */
EPA_DEV uint64_t ll_route(const struct ll_args &a, uint32_t source, uint32_t window,
                          uint32_t expert)
{
    return a.routes +
           (((uint64_t)source * a.windows + window) * (a.c.local + 1) + expert) * LL_PACKET_BYTES;
}

EPA_DEV uint64_t ll_own_route(const struct ll_args &a, uint32_t window, uint32_t expert)
{
    return a.routes + ((uint64_t)window * a.c.experts + expert) * LL_PACKET_BYTES;
}

/* Returns the offset of the packet with the number of rows that a source sends to a rank. */
EPA_DEV uint64_t ll_total(const struct ll_args &a, uint32_t source, uint32_t rank)
{
    return a.totals + ((uint64_t)source * a.c.v.size + rank) * LL_PACKET_BYTES;
}

/* ---- routes of this rank ---- */

/* Tables of a counting block in shared memory, for `n` experts from `first` on, all of one rank. */
struct ll_marks {
    uint32_t rank, first, n;
    uint32_t *before; /* [n]: choices by tokens of earlier windows */
    uint32_t *bits;   /* [words][n]: bit mask of the tokens that choose the expert */
    uint32_t *sent;   /* [words]: bit mask of the tokens that go to the rank */
};

/* Marks the choices of `words` windows from token `first` on. */
EPA_DEV void mark_choices(const struct ll_args &a, uint32_t first, uint32_t words,
                          const struct ll_marks &m)
{
    uint32_t n = min(words * LL_WINDOW_TOKENS, a.c.tokens - first) * a.c.topk, expert[LL_OWN];

#pragma unroll
    for (int i = 0; i < LL_OWN; i++) {
        uint32_t at = i * DEVICE_THREADS + threadIdx.x;

        expert[i] = at < n ? dev_choice(a.c, (size_t)first * a.c.topk + at) : ~0u;
    }
    for (uint32_t i = threadIdx.x; i < words * m.n; i += DEVICE_THREADS)
        m.bits[i] = 0;
    for (uint32_t i = threadIdx.x; i < words; i += DEVICE_THREADS)
        m.sent[i] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < LL_OWN; i++) {
        uint32_t e = expert[i], token = (i * DEVICE_THREADS + threadIdx.x) / a.c.topk;
        uint32_t word = token / LL_WINDOW_TOKENS, bit = 1u << token % LL_WINDOW_TOKENS;

        if (e - m.first < m.n)
            atomicOr(&m.bits[word * m.n + e - m.first], bit);
        if (e - m.rank * a.c.local < a.c.local)
            atomicOr(&m.sent[word], bit);
    }
    __syncthreads();
}

/* Sends the bit masks of the tokens that go to the rank. sent: number of such tokens in earlier
 * windows. */
template <int MODE>
EPA_DEV void send_tokens(const struct ll_args &a, uint32_t window, uint32_t words,
                         const struct ll_marks &m, uint32_t sent, uint64_t epoch)
{
    for (uint32_t w = threadIdx.x; w < words; w += DEVICE_THREADS) {
        uint32_t bits = m.sent[w], before = MODE == LL_ORDERED ? sent : 0;

        for (uint32_t i = 0; MODE == LL_ORDERED && i < w; i++)
            before += __popc(m.sent[i]);
        epa_dev_packet16_store(a.c.v.peer_heap[m.rank] +
                                   ll_route(a, a.c.v.rank, window + w, a.c.local),
                               bits, before, epoch);
        if (MODE == LL_ORDERED && a.order.sent != NULL)
            a.order.sent[(size_t)m.rank * a.windows + window + w] = {bits, before};
    }
}

/* Sends the marks of experts to their rank, or with LL_DIRECT to this rank's own memory. */
template <int MODE>
EPA_DEV void send_marks(const struct ll_args &a, uint32_t window, uint32_t words,
                        const struct ll_marks &m, uint32_t sent, uint64_t epoch)
{
    constexpr bool DIRECT = MODE == LL_DIRECT;
    char *peer = a.c.v.peer_heap[m.rank];

    for (uint32_t i = threadIdx.x; i < m.n; i += DEVICE_THREADS) {
        uint32_t before = m.before[i];

        for (uint32_t w = 0; w < words; w++) {
            uint32_t bits = m.bits[w * m.n + i];
            char *to = DIRECT ? dev_own(a.c.v, ll_own_route(a, window + w, m.first + i))
                              : peer + ll_route(a, a.c.v.rank, window + w,
                                                m.first + i - m.rank * a.c.local);

            epa_dev_packet16_store(to, bits, before, epoch);
            before += __popc(bits);
        }
        m.before[i] = before;
    }
    if (!DIRECT && m.first == m.rank * a.c.local)
        send_tokens<MODE>(a, window, words, m, sent, epoch);
}

/* Publishes part `part` of the experts of a rank: the tokens of this rank that choose each expert,
 * and their number. */
template <int MODE>
static __device__ void publish_part(const struct ll_args &a, uint64_t epoch, uint32_t rank,
                                    uint32_t part, uint32_t *room)
{
    uint32_t most = (a.c.local + a.publish_parts - 1) / a.publish_parts, begin = part * most;
    uint32_t n = begin < a.c.local ? min(most, a.c.local - begin) : 0;
    struct ll_marks m = {rank,     rank * a.c.local + begin, n, room,
                         room + n, room + n * (1 + a.words)};
    uint64_t counts = a.counts + ((uint64_t)a.c.v.rank * a.c.experts + m.first) * LL_PACKET_BYTES;
    uint32_t windows = (a.c.tokens + LL_WINDOW_TOKENS - 1) / LL_WINDOW_TOKENS, sent = 0;

    for (uint32_t i = threadIdx.x; i < n; i += DEVICE_THREADS)
        m.before[i] = 0;
    for (uint32_t w = 0; w < windows && n > 0; w += a.words) {
        uint32_t words = min(a.words, windows - w);

        mark_choices(a, w * LL_WINDOW_TOKENS, words, m);
        send_marks<MODE>(a, w, words, m, sent, epoch);
        for (uint32_t i = 0; MODE == LL_ORDERED && i < words; i++)
            sent += __popc(m.sent[i]);
        __syncthreads();
    }
    if (MODE == LL_ORDERED && a.order.sent != NULL && !a.gaps && part == 0 &&
        threadIdx.x < a.c.v.size)
        epa_dev_packet16_store(a.c.v.peer_heap[threadIdx.x] + ll_total(a, a.c.v.rank, rank), sent,
                               0, epoch);
    for (uint32_t i = threadIdx.x; i < n; i += DEVICE_THREADS)
        for (uint32_t p = 0; p < a.c.v.size; p++)
            if (MODE == LL_DIRECT || p == rank)
                epa_dev_packet16_store(a.c.v.peer_heap[p] + counts + (uint64_t)i * LL_PACKET_BYTES,
                                       m.before[i], a.c.tokens, epoch);
    __syncthreads(); /* the next call reuses `room` */
}

/* Publishes this block's share of the routes. */
template <int MODE> EPA_DEV void ll_publish(const struct ll_args &a, uint64_t epoch, uint32_t *room)
{
    uint32_t all = a.c.v.size * a.publish_parts;

    for (uint32_t i = blockIdx.x; i < all; i += a.publishers)
        if (!LL_MASKS || !ll_is_left_out(i % a.c.v.size))
            publish_part<MODE>(a, epoch, i % a.c.v.size, i / a.c.v.size, room);
}

/* ---- routes of all ranks ---- */

/* Waits for a packet of `source`. Returns false after a time-out. Called by one thread. */
EPA_DEV bool ll_packet_wait(const struct ll_args &a, const char *from, uint64_t epoch,
                            uint32_t source, uint2 *out)
{
    struct epa_dev_wait w = {LL_DISPATCH, LL_COUNT, source, 0};

    if (LL_MASKS)
        return epa_dev_packet16_wait(ll_patience{a, a.c.timeout_ns}, from, epoch, w, out);
    return epa_dev_packet16_wait(a.c, from, epoch, w, out);
}

/* Waits for the number of rows of `source` for an expert, and the number of its tokens. */
EPA_DEV bool ll_count(const struct ll_args &a, uint64_t epoch, uint32_t source, uint32_t expert,
                      uint2 *out)
{
    uint64_t at = a.counts + ((uint64_t)source * a.c.experts + expert) * LL_PACKET_BYTES;

    return ll_packet_wait(a, dev_own(a.c.v, at), epoch, source, out);
}

/* The same with masks: a rank that is left out has no rows. Returns false if the kernel must end. */
EPA_DEV bool count_live(const struct ll_args &a, uint64_t epoch, uint32_t source, uint32_t expert,
                        uint2 *out)
{
    if (!ll_is_left_out(source) && ll_count(a, epoch, source, expert, out))
        return true;
    *out = make_uint2(0, 0);
    return !ll_must_end(a);
}

/* Computes the index of `token` among the expert's tokens. Returns false if the route did not
 * arrive. */
EPA_DEV bool ll_position(const struct ll_args &a, uint64_t route, uint64_t epoch, uint32_t source,
                         uint32_t token, uint32_t *out)
{
    uint2 marks;

    if (!ll_packet_wait(a, dev_own(a.c.v, route), epoch, source, &marks))
        return false;
    *out = marks.y + __popc(marks.x & ((1u << token % LL_WINDOW_TOKENS) - 1));
    return true;
}

/* LL_DIRECT: computes first[expert], the start of this rank's rows for the expert at the expert's
 * rank. `sum`: buffer [experts]. Returns false if counts are missing. */
static __device__ bool ll_slots(const struct ll_args &a, uint64_t epoch, uint32_t *sum,
                                uint32_t *first)
{
    uint32_t carry = 0;
    bool ok = true;

    for (uint32_t at = 0; at < a.c.experts; at += DEVICE_THREADS) {
        uint32_t e = at + threadIdx.x, all = 0, mine = 0, total, before;

        for (uint32_t p = 0; p < a.c.v.size && e < a.c.experts && ok; p++) {
            uint2 count = make_uint2(0, 0);

            ok = ll_count(a, epoch, p, e, &count);
            mine = p == a.c.v.rank ? all : mine;
            all += count.x;
        }
        before = dev_scan(all, &total);
        if (e < a.c.experts) {
            sum[e] = carry + before;
            first[e] = mine;
        }
        carry += total;
    }
    if (!__syncthreads_and(ok))
        return false;
    for (uint32_t e = threadIdx.x; e < a.c.experts; e += DEVICE_THREADS) {
        uint32_t begin = e / a.c.local * a.c.local;

        first[e] += a.padded ? (e - begin) * a.c.v.size * a.c.max_tokens : sum[e] - sum[begin];
    }
    __syncthreads();
    return true;
}

/* Publishes the views of a local expert. With padding it also moves the expert's cells. Called by
 * one thread. */
EPA_DEV void publish_views(const struct ll_args &a, uint32_t e, uint32_t rows, uint32_t start,
                           uint32_t *cell)
{
    uint32_t to = a.padded ? e * a.c.v.size * a.c.max_tokens : start;

    a.c.recv_count[e] = rows; /* all blocks store the same value */
    a.c.recv_start[e] = to;
    for (uint32_t p = 0; p < a.c.v.size && a.padded; p++)
        cell[p] += to - start;
}

/* Computes cell[local expert][source], the source's first entry for the expert; begin[local
 * expert], the expert's first entry without padding; tokens[source], the source's number of tokens;
 * and *total, the number of entries in use. Returns false if counts are missing. */
static __device__ bool ll_cells(const struct ll_args &a, uint64_t epoch, uint32_t *cell,
                                uint32_t *begin, uint32_t *tokens, uint32_t *total)
{
    uint32_t n = a.c.local * a.c.v.size;
    bool ok = true;

    *total = 0;
    for (uint32_t at = 0; at < n; at += DEVICE_THREADS) {
        uint32_t i = at + threadIdx.x, all, before, source = i % a.c.v.size;
        uint2 count = make_uint2(0, 0);

        if (i < n && LL_MASKS)
            ok =
                count_live(a, epoch, source, a.c.v.rank * a.c.local + i / a.c.v.size, &count) && ok;
        else if (i < n)
            ok = ok && ll_count(a, epoch, source, a.c.v.rank * a.c.local + i / a.c.v.size, &count);
        before = dev_scan(count.x, &all);
        if (i < n)
            cell[i] = *total + before;
        if (i < n && source == 0)
            begin[i / a.c.v.size] = *total + before;
        if (i < a.c.v.size)
            tokens[source] = count.y;
        *total += all;
    }
    if (!__syncthreads_and(ok))
        return false;
    for (uint32_t e = threadIdx.x; e < a.c.local; e += DEVICE_THREADS)
        publish_views(a, e, (e + 1 < a.c.local ? begin[e + 1] : *total) - begin[e], begin[e],
                      cell + e * a.c.v.size);
    __syncthreads();
    return true;
}

/* ---- parts of rows ---- */

/* Maximum of channels of a part. Kernels for few tokens define a smaller one. */
#ifndef LL_PART_CHANNELS
#define LL_PART_CHANNELS LL_UNIT_CHANNELS
#endif

template <int IN> using ll_width = dev_width<IN, LL_PART_CHANNELS>;

/* A part of a token in registers: the data that a lane stores. */
template <int IN> struct load {
    uint4 v[ll_width<IN>::SWEEPS];
    float scale[ll_width<IN>::SWEEPS];
};

EPA_DEV struct dev_part part_at(const struct ll_args &a, uint32_t token, uint32_t unit)
{
    return dev_part_at(token, unit, a.unit_channels, a.c.hidden);
}

/* Loads the scale of group `lane` of the part, for FP8 input. */
template <int IN> EPA_DEV float read_scale(const struct ll_args &a, const struct dev_part &p)
{
    if (IN != DEVICE_FP8 || epa_dev_lane() >= p.channels / a.c.group)
        return 0.0f;
    return __ldg(a.c.x_scale + (size_t)p.token * (a.c.hidden / a.c.group) + p.first / a.c.group +
                 epa_dev_lane());
}

/* Gathers the scales of a part, one per lane, so that one packet carries them. For at most 32
 * scales. */
template <int IN>
EPA_DEV float gather_scales(const struct ll_args &a, float mine, const struct load<IN> &l)
{
    typedef ll_width<IN> width;
    uint32_t sweep = width::SWEEP / a.c.group;

#pragma unroll
    for (int i = 0; i < (width::QUANTISES ? (int)width::SWEEPS : 0); i++) {
        uint32_t from = (epa_dev_lane() - i * sweep) * (a.c.group / width::LANE) % EPA_DEV_WARP;
        float scale = __shfl_sync(EPA_DEV_ALL, l.scale[i], from);

        mine = epa_dev_lane() / sweep == (uint32_t)i ? scale : mine;
    }
    return mine;
}

/* Stores more scales than lanes, for groups of less than 64 channels. */
template <int IN>
EPA_DEV void store_many_scales(const struct ll_args &a, const struct dev_part &p,
                               const struct load<IN> &l, float *to)
{
    uint32_t lanes = a.c.group / ll_width<IN>::LANE, groups = p.channels / a.c.group;
    size_t at = (size_t)p.token * (a.c.hidden / a.c.group) + p.first / a.c.group;

#pragma unroll
    for (int i = 0; i < ll_width<IN>::SWEEPS; i++) {
        uint32_t g = (i * EPA_DEV_WARP + epa_dev_lane()) / lanes;

        if (epa_dev_lane() % lanes == 0 && g < groups)
            epa_dev_store(to + g, IN == DEVICE_FP8 ? __ldg(a.c.x_scale + at + g) : l.scale[i]);
    }
}

/* Scales that one store writes, one per lane: of a part, or of two successive parts. */
struct scales {
    float mine;
    uint32_t first, n; /* group of lane 0; number of scales */
};

/* Stores a part in a message, which may be at another rank. */
template <int IN>
EPA_DEV void store_part(const struct ll_args &a, const struct dev_part &p, const struct load<IN> &l,
                        const struct scales &scales, char *message)
{
    char *token = message + p.first * ll_width<IN>::BYTES;

#pragma unroll
    for (int i = 0; i < ll_width<IN>::SWEEPS; i++)
        if (dev_takes<ll_width<IN>>(p, i))
            epa_dev_store16(token + (i * EPA_DEV_WARP + epa_dev_lane()) * 16, l.v[i]);
    if (IN == DEVICE_PLAIN)
        return;
    float *to = reinterpret_cast<float *>(message + a.scales_at);

    if (p.channels / a.c.group > EPA_DEV_WARP)
        store_many_scales<IN>(a, p, l, to + p.first / a.c.group);
    else if (epa_dev_lane() < scales.n)
        epa_dev_store(to + scales.first + epa_dev_lane(), scales.mine);
}

/* If a warp sends whole rows, joins the scales of two parts in one packet, which leaves with the
 * second part. */
EPA_DEV struct scales join_scales(const struct ll_args &a, const struct dev_part &p, float mine,
                                  float *carried)
{
    uint32_t each = a.unit_channels / a.c.group, n = p.channels / a.c.group;
    bool joins = a.row_signals == 1 && 2 * each <= EPA_DEV_WARP;

    if (joins && p.unit % 2 == 0 && p.unit + 1 < a.units) {
        *carried = mine;
        return {0.0f, 0, 0};
    }
    if (joins && p.unit % 2 == 1) {
        float second = __shfl_sync(EPA_DEV_ALL, mine, epa_dev_lane() - each & (EPA_DEV_WARP - 1));

        return {epa_dev_lane() < each ? *carried : second, p.first / a.c.group - each, each + n};
    }
    return {mine, p.first / a.c.group, n};
}

/* Stores META. choice: index of the token's choice of the row. */
EPA_DEV void store_meta(const struct ll_args &a, uint32_t source, uint32_t token, uint64_t epoch,
                        uint32_t choice, char *message)
{
    epa_dev_store16(message + a.meta_at, make_uint4(source, token, (uint32_t)epoch, choice));
}

/* ---- sending ---- */

/* Sends a part to the row of each of its experts. `first`: result of ll_slots(). */
template <int IN>
EPA_DEV void send_to_experts(const struct ll_args &a, const struct dev_part &p,
                             const struct load<IN> &l, const struct scales &scales, uint32_t expert,
                             uint64_t epoch, const uint32_t *first, uint32_t *place)
{
    uint32_t position;

    *place = ~0u;
    if (expert < a.c.experts && ll_position(a, ll_own_route(a, p.token / LL_WINDOW_TOKENS, expert),
                                            epoch, a.c.v.rank, p.token, &position))
        *place = first[expert] + position;
    if (*place >= a.entries) /* the receiver reports the lack of room */
        *place = ~0u;
    if (epa_dev_lane() < a.c.topk && p.unit == 0)
        a.place[(size_t)p.token * a.c.topk + epa_dev_lane()] = *place;
    for (uint32_t i = 0; i < a.c.topk; i++) {
        uint32_t k = (i + p.token) % a.c.topk;
        uint32_t e = __shfl_sync(EPA_DEV_ALL, expert, k), row = __shfl_sync(EPA_DEV_ALL, *place, k);

        if (row == ~0u)
            continue;
        char *message = a.c.v.peer_heap[e / a.c.local] + a.recv + (uint64_t)row * a.message_bytes;

        store_part<IN>(a, p, l, scales, message);
        if (p.unit == 0 && epa_dev_lane() == 0)
            store_meta(a, a.c.v.rank, p.token, epoch, k, message);
    }
}

/* Sends a part to the token's slot at each of its ranks. */
template <int IN>
EPA_DEV void send_to_ranks(const struct ll_args &a, const struct dev_part &p,
                           const struct load<IN> &l, const struct scales &scales, uint32_t ranks)
{
    uint64_t message =
        a.recv + (uint64_t)ll_slot(a.c.max_tokens, a.c.v.rank, p.token) * a.message_bytes;

    for (uint32_t i = 1; i <= a.c.v.size; i++) {
        uint32_t r = (a.c.v.rank + p.token + i) % a.c.v.size;

        if ((ranks >> r & 1) != 0)
            store_part<IN>(a, p, l, scales, a.c.v.peer_heap[r] + message);
    }
}

/* Sends the token's choices of a rank's experts to the rank. They precede the row, so that the
 * receiver prepares the entries before the row arrives. */
EPA_DEV void send_choices(const struct ll_args &a, uint32_t token, uint32_t expert, float weight,
                          uint32_t ranks, uint64_t epoch)
{
    uint64_t at = a.recv + (uint64_t)ll_slot(a.c.max_tokens, a.c.v.rank, token) * a.message_bytes +
                  a.choices_at;
    uint32_t owner = expert < a.c.experts ? expert / a.c.local : ~0u;

    for (uint32_t left = ranks; left != 0; left &= left - 1) {
        uint32_t r = __ffs(left) - 1, those = __ballot_sync(EPA_DEV_ALL, owner == r);
        uint32_t before = __popc(those & ((1u << epa_dev_lane()) - 1));

        if (owner == r)
            epa_dev_packet16_store(a.c.v.peer_heap[r] + at + before * LL_PACKET_BYTES,
                                   ll_choice_of(expert, epa_dev_lane(), __popc(those)),
                                   __float_as_uint(weight), epoch);
    }
}

/* Sends a part as lines. The warp assembles the payload in shared memory, from which lanes load the
 * words of lines. */
template <int IN>
EPA_DEV void send_packets(const struct ll_args &a, const struct dev_part &p,
                          const struct load<IN> &l, uint32_t expert, float weight, uint32_t ranks,
                          uint64_t epoch, uint64_t *payload)
{
    enum { BYTES = ll_width<IN>::BYTES };
    uint32_t scales = IN == DEVICE_PLAIN ? 0 : p.channels / a.c.group;
    struct ll_payload at = ll_payload_of(a.c.topk, scales, p.channels * BYTES);
    uint32_t packets = epa_packets_of(at.bytes);
    uint64_t to =
        a.arrival +
        ((uint64_t)ll_slot(a.c.max_tokens, a.c.v.rank, p.token) * a.units + p.unit) * a.unit_bytes;
    char *bytes = reinterpret_cast<char *>(payload);

    __syncwarp(); /* all lanes have stored the previous payload */
    if (epa_dev_lane() < a.c.topk) {
        reinterpret_cast<uint16_t *>(bytes)[epa_dev_lane()] = (uint16_t)expert;
        reinterpret_cast<float *>(bytes + at.weights)[epa_dev_lane()] = weight;
    }
    if (IN != DEVICE_PLAIN)
        store_many_scales<IN>(a, p, l, reinterpret_cast<float *>(bytes + at.scales));
#pragma unroll
    for (int i = 0; i < ll_width<IN>::SWEEPS; i++) {
        uint2 *v =
            reinterpret_cast<uint2 *>(bytes + at.token + (i * EPA_DEV_WARP + epa_dev_lane()) * 16);

        if (dev_takes<ll_width<IN>>(p, i)) {
            v[0] = make_uint2(l.v[i].x, l.v[i].y);
            v[1] = make_uint2(l.v[i].z, l.v[i].w);
        }
    }
    __syncwarp();
    for (uint32_t g = 0; g * EPA_DEV_PACKETS < packets; g++) {
        if (!epa_dev_has_packet(g, packets))
            continue;
        struct epa_dev_words words = epa_dev_words_of(payload, g);

        for (uint32_t i = 1; i <= a.c.v.size; i++) {
            uint32_t r = (a.c.v.rank + p.token + i) % a.c.v.size;

            if ((ranks >> r & 1) != 0)
                epa_dev_packet_store(a.c.v.peer_heap[r] + to, g, words, epoch);
        }
    }
}

/* Rows that a warp has stored and has to signal. */
struct reported {
    uint32_t row, unit, ranks; /* rows in slots: row: slot; ranks: bit mask */
    uint32_t place, expert;    /* LL_DIRECT: of this lane's choice; ~0: none */
};

/* true: the kernels make the copies that the caller requested. The arguments of the copies cost a
 * dispatch of few rows 0.9 us, so other kernels do not load them. */
#ifdef LL_DISPATCH_COPIES
constexpr bool COPIES = true;
#else
constexpr bool COPIES = false;
#endif

/* Makes the copies of a choice that the caller requested. */
EPA_DEV void copy_choice(const struct ll_args &a, size_t choice, int32_t expert, float weight)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (a.kept.expert[i] != NULL)
            a.kept.expert[i][choice] = expert;
        if (a.kept.weight[i] != NULL)
            a.kept.weight[i][choice] = weight;
    }
}

/* Sends a part of a token from x to all its destinations. Called by one warp. */
template <int IN, int MODE>
EPA_DEV struct reported send_unit(const struct ll_args &a, uint32_t token, uint32_t unit,
                                  uint64_t epoch, const uint32_t *first, uint64_t *payload,
                                  float *carried)
{
    struct dev_part p = part_at(a, token, unit);
    struct reported t = {ll_slot(a.c.max_tokens, a.c.v.rank, token), unit, 0, ~0u, ~0u};
    struct scales scales = {0.0f, 0, 0};
    constexpr bool SLOTS = ll_uses_slots<MODE>;
    bool weighs = MODE == LL_DEDUP || (SLOTS && unit == 0);
    size_t choice = (size_t)token * a.c.topk + epa_dev_lane();
    float weight = 0.0f, scale;
    struct dev_raw<ll_width<IN>> raw;
    struct load<IN> l;

    /* All loads are issued before their first use. */
    if (epa_dev_lane() < a.c.topk)
        t.expert = dev_choice(a.c, choice);
    if (epa_dev_lane() < a.c.topk && weighs)
        weight = __ldg(a.c.weight + choice);
    dev_read_part<ll_width<IN>>(a.c, p, &raw);
    scale = read_scale<IN>(a, p);
    if (COPIES && MODE == LL_DEDUP && unit == 0 && epa_dev_lane() < a.c.topk)
        copy_choice(a, choice, (int32_t)t.expert, weight);
    t.ranks =
        __reduce_or_sync(EPA_DEV_ALL, t.expert < a.c.experts ? 1u << t.expert / a.c.local : 0u);
    if (LL_MASKS)
        t.ranks &= ~*ll_left_out();
    if (SLOTS && unit == 0)
        send_choices(a, token, t.expert, weight, t.ranks, epoch);
#pragma unroll
    for (int i = 0; i < ll_width<IN>::SWEEPS; i++)
        l.v[i] = dev_sweep_of<ll_width<IN>>(raw, i, a.c.group, &l.scale[i]);
    if (IN != DEVICE_PLAIN && MODE != LL_DEDUP)
        scales = join_scales(a, p, gather_scales<IN>(a, scale, l), carried);
    if (MODE == LL_DIRECT)
        send_to_experts<IN>(a, p, l, scales, t.expert, epoch, first, &t.place);
    else if (SLOTS)
        send_to_ranks<IN>(a, p, l, scales, t.ranks);
    else
        send_packets<IN>(a, p, l, t.expert, weight, t.ranks, epoch, payload);
    return t;
}

/* Signals the rows that a warp has stored, after one wait for its stores: each part, or the whole
 * row after the last part. Pairs with the acquire in wait_row(). */
template <int MODE>
EPA_DEV void tell_row(const struct ll_args &a, const struct reported &t, uint64_t epoch)
{
    constexpr bool SLOTS = ll_uses_slots<MODE>;
    uint32_t unit = a.row_signals == 1 ? 0 : t.unit, lane = epa_dev_lane();

    __syncwarp();
    if (SLOTS && lane < EPA_DEVICE_RANKS && (t.ranks >> lane & 1) != 0)
        epa_dev_signal(a.c.v, a.c.signal + ll_row_signal(a.c.v.size, a.row_signals, t.row, unit),
                       epoch, lane);
    if (MODE == LL_DIRECT && t.place != ~0u)
        epa_dev_signal(a.c.v, a.c.signal + ll_row_signal(a.c.v.size, a.row_signals, t.place, unit),
                       epoch, t.expert / a.c.local);
}

#endif
