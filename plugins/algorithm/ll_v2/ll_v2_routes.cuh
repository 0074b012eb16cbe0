/* Who sends how much to whom: what the first blocks of a dispatch tell all ranks, and what
 * each block makes of what they told. */
#ifndef LL_V2_ROUTES_CUH
#define LL_V2_ROUTES_CUH

#include "ll_v2_device.cuh"

enum { LL_PACKET_BYTES = 16 };

/* Where the packet of a rank's window stands; expert: local number, or `local` for the
 * tokens that come here at all. Of rows that are placed by their sender: its own, of any
 * expert. */
static __device__ __forceinline__ uint64_t ll_route(const struct ll_args &a,
                                                    uint32_t source, uint32_t window,
                                                    uint32_t expert)
{
    return a.routes + (((uint64_t)source * a.windows + window) * (a.local + 1) + expert) *
                          LL_PACKET_BYTES;
}

static __device__ __forceinline__ uint64_t ll_own_route(const struct ll_args &a,
                                                        uint32_t window, uint32_t expert)
{
    return a.routes + ((uint64_t)window * a.experts + expert) * LL_PACKET_BYTES;
}

/* ---- what this rank tells ---- */

/* What a block that counts has in shared memory, of `n` experts from `first` on, all of one
 * rank. */
struct ll_marks {
    uint32_t rank, first, n;
    uint32_t *before; /* [n]: choices by tokens of windows that are done */
    uint32_t *bits;   /* [words][n]: which tokens choose it */
    uint32_t *sent;   /* [words]: which tokens go to the rank at all */
};

/* Notes the choices of `words` windows from token `first` on. */
static __device__ __forceinline__ void mark_choices(const struct ll_args &a, uint32_t first,
                                                    uint32_t words,
                                                    const struct ll_marks &m)
{
    uint32_t n = min(words * LL_WINDOW_TOKENS, a.tokens - first) * a.topk, expert[LL_OWN];

#pragma unroll
    for (int i = 0; i < LL_OWN; i++) {
        uint32_t at = i * LL_THREADS + threadIdx.x;

        expert[i] = at < n ? (uint32_t)__ldg(a.expert + (size_t)first * a.topk + at) : ~0u;
    }
    for (uint32_t i = threadIdx.x; i < words * m.n; i += LL_THREADS)
        m.bits[i] = 0;
    for (uint32_t i = threadIdx.x; i < words; i += LL_THREADS)
        m.sent[i] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < LL_OWN; i++) {
        uint32_t e = expert[i], token = (i * LL_THREADS + threadIdx.x) / a.topk;
        uint32_t word = token / LL_WINDOW_TOKENS, bit = 1u << token % LL_WINDOW_TOKENS;

        if (e - m.first < m.n)
            atomicOr(&m.bits[word * m.n + e - m.first], bit);
        if (e - m.rank * a.local < a.local)
            atomicOr(&m.sent[word], bit);
    }
    __syncthreads();
}

/* The experts' marks to their rank. DIRECT: to this one's own memory. */
template <bool DIRECT>
static __device__ __forceinline__ void send_marks(const struct ll_args &a, uint32_t window,
                                                  uint32_t words, const struct ll_marks &m,
                                                  uint64_t epoch)
{
    char *peer = a.v.peer_heap[m.rank];

    for (uint32_t i = threadIdx.x; i < m.n; i += LL_THREADS) {
        uint32_t before = m.before[i];

        for (uint32_t w = 0; w < words; w++) {
            uint32_t bits = m.bits[w * m.n + i];
            char *to = DIRECT ? dev_own(a.v, ll_own_route(a, window + w, m.first + i))
                              : peer + ll_route(a, a.v.rank, window + w,
                                                m.first + i - m.rank * a.local);

            dev_packet_store(to, bits, before, epoch);
            before += __popc(bits);
        }
        m.before[i] = before;
    }
    if (!DIRECT && m.first == m.rank * a.local)
        for (uint32_t w = threadIdx.x; w < words; w += LL_THREADS)
            dev_packet_store(peer + ll_route(a, a.v.rank, window + w, a.local), m.sent[w],
                             0, epoch);
}

/* Part `part` of the experts of a rank: which of this rank's tokens choose them, and how
 * many. */
template <bool DIRECT>
static __device__ void publish_part(const struct ll_args &a, uint64_t epoch, uint32_t rank,
                                    uint32_t part, uint32_t *room)
{
    uint32_t most = (a.local + a.publish_parts - 1) / a.publish_parts, begin = part * most;
    uint32_t n = begin < a.local ? min(most, a.local - begin) : 0;
    struct ll_marks m = {rank,     rank * a.local + begin,  n, room,
                         room + n, room + n * (1 + a.words)};
    uint64_t counts =
        a.counts + ((uint64_t)a.v.rank * a.experts + m.first) * LL_PACKET_BYTES;
    uint32_t windows = (a.tokens + LL_WINDOW_TOKENS - 1) / LL_WINDOW_TOKENS;

    for (uint32_t i = threadIdx.x; i < n; i += LL_THREADS)
        m.before[i] = 0;
    for (uint32_t w = 0; w < windows && n > 0; w += a.words) {
        uint32_t words = min(a.words, windows - w);

        mark_choices(a, w * LL_WINDOW_TOKENS, words, m);
        send_marks<DIRECT>(a, w, words, m, epoch);
        __syncthreads();
    }
    for (uint32_t i = threadIdx.x; i < n; i += LL_THREADS)
        for (uint32_t p = 0; p < a.v.size; p++)
            if (DIRECT || p == rank)
                dev_packet_store(a.v.peer_heap[p] + counts + (uint64_t)i * LL_PACKET_BYTES,
                                 m.before[i], a.tokens, epoch);
    __syncthreads(); /* `room` is used anew */
}

/* This block's share of telling which of this rank's tokens choose which experts. */
template <bool DIRECT>
static __device__ __forceinline__ void ll_publish(const struct ll_args &a, uint64_t epoch,
                                                  uint32_t *room)
{
    uint32_t all = a.v.size * a.publish_parts;

    for (uint32_t i = blockIdx.x; i < all; i += a.publishers)
        publish_part<DIRECT>(a, epoch, i % a.v.size, i / a.v.size, room);
}

/* ---- what all ranks told ---- */

/* Rows that `source` has for an expert, and its tokens; waits until it has said so. */
static __device__ __forceinline__ bool ll_count(const struct ll_args &a, uint64_t epoch,
                                                uint32_t source, uint32_t expert,
                                                uint2 *out)
{
    uint64_t at = a.counts + ((uint64_t)source * a.experts + expert) * LL_PACKET_BYTES;

    return ll_packet_wait(a, dev_own(a.v, at), epoch, source, out);
}

/* Which of the expert's tokens `token` is. True: it has come. */
static __device__ __forceinline__ bool ll_position(const struct ll_args &a, uint64_t route,
                                                   uint64_t epoch, uint32_t source,
                                                   uint32_t token, uint32_t *out)
{
    uint2 marks;

    if (!ll_packet_wait(a, dev_own(a.v, route), epoch, source, &marks))
        return false;
    *out = marks.y + __popc(marks.x & ((1u << token % LL_WINDOW_TOKENS) - 1));
    return true;
}

/* Layout expert, rows sent straight to their place: first[expert] is where this rank's rows
 * for it begin at its rank. `sum` is room for [experts]. False: not all ranks have told. */
static __device__ bool ll_slots(const struct ll_args &a, uint64_t epoch, uint32_t *sum,
                                 uint32_t *first)
{
    uint32_t carry = 0;
    bool ok = true;

    for (uint32_t at = 0; at < a.experts; at += LL_THREADS) {
        uint32_t e = at + threadIdx.x, all = 0, mine = 0, total, before;

        for (uint32_t p = 0; p < a.v.size && e < a.experts && ok; p++) {
            uint2 count = make_uint2(0, 0);

            ok = ll_count(a, epoch, p, e, &count);
            mine = p == a.v.rank ? all : mine;
            all += count.x;
        }
        before = dev_scan<LL_WARPS>(all, &total);
        if (e < a.experts) {
            sum[e] = carry + before;
            first[e] = mine;
        }
        carry += total;
    }
    if (!__syncthreads_and(ok))
        return false;
    for (uint32_t e = threadIdx.x; e < a.experts; e += LL_THREADS) {
        uint32_t begin = e / a.local * a.local;

        first[e] += a.padded ? (e - begin) * a.v.size * a.max_tokens : sum[e] - sum[begin];
    }
    __syncthreads();
    return true;
}

/* Of a local expert, by one thread: what experts are to know. With padding its cells
 * move. */
static __device__ __forceinline__ void
publish_views(const struct ll_args &a, uint32_t e, uint32_t rows, uint32_t start, uint32_t *cell)
{
    uint32_t to = a.padded ? e * a.v.size * a.max_tokens : start;

    a.recv_count[e] = rows; /* all blocks write the same */
    a.recv_start[e] = to;
    for (uint32_t p = 0; p < a.v.size && a.padded; p++)
        cell[p] += to - start;
}

/* cell[local expert][source] is the first entry of that source's rows for it; begin[local
 * expert] where it would begin without padding; tokens[source] how many that has; *total
 * the number of entries in use. False: not all ranks have told. */
static __device__ bool ll_cells(const struct ll_args &a, uint64_t epoch, uint32_t *cell,
                                uint32_t *begin, uint32_t *tokens, uint32_t *total)
{
    uint32_t n = a.local * a.v.size;
    bool ok = true;

    *total = 0;
    for (uint32_t at = 0; at < n; at += LL_THREADS) {
        uint32_t i = at + threadIdx.x, all, before, source = i % a.v.size;
        uint2 count = make_uint2(0, 0);

        if (i < n)
            ok =
                ok && ll_count(a, epoch, source, a.v.rank * a.local + i / a.v.size, &count);
        before = dev_scan<LL_WARPS>(count.x, &all);
        if (i < n)
            cell[i] = *total + before;
        if (i < n && source == 0)
            begin[i / a.v.size] = *total + before;
        if (i < a.v.size)
            tokens[source] = count.y;
        *total += all;
    }
    if (!__syncthreads_and(ok))
        return false;
    for (uint32_t e = threadIdx.x; e < a.local; e += LL_THREADS)
        publish_views(a, e, (e + 1 < a.local ? begin[e + 1] : *total) - begin[e], begin[e],
                 cell + e * a.v.size);
    __syncthreads();
    return true;
}

#endif
