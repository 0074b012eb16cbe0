/* The sending half of dispatch: a block takes a token, gives each of its choices a place and stores
 * the message there.
 *
 * The first warp updates the counters while the other warps load the row into shared memory and
 * quantise it. Then all warps store lines of the row, each line at all its destinations. */
#ifndef TOKEN_FLAG_SEND_CUH
#define TOKEN_FLAG_SEND_CUH

#include "../../common/algo_cuda.cuh"
#include "token_flag_device.h"

/* Returns the number of threads that load the row: all warps of the block except the first. */
EPA_DEV uint32_t tf_carriers(void)
{
    return blockDim.x - EPA_DEV_WARP;
}

/* Number of choices that a carrier loads before it loads its part of the row. */
enum { TF_AHEAD = 4 };

/* Destinations of the choices of a token, without dropped choices. */
struct tf_slots {
    uint32_t n;
    char *to[TF_TOPK];
    uint32_t expert[TF_TOPK];
    struct epa_dev_words meta[TF_TOPK]; /* w[0]: token; w[1]: k | the receiver's expert << 16 */
};

/* ---- counts ---- */

/* Returns the offset, at the receiver, of the counts of `source` for each expert of the
 * receiver. */
EPA_DEV uint64_t tf_counts_of(const struct tf_args &a, uint64_t epoch, uint32_t source)
{
    return a.counts + epoch % 2 * a.counts_bytes + (uint64_t)source * a.c.local * 8;
}

/* Returns the signal of a source of another node that follows all its rows except the last
 * chunk. */
EPA_DEV uint32_t tf_early_signal(const struct tf_args &a, uint64_t epoch, uint32_t source)
{
    return a.c.signal + (3 + (uint32_t)(epoch % 2)) * a.c.v.size + source;
}

/* A single store publishes count and epoch, so it needs no fence. */
EPA_DEV void tf_signal_count(const struct tf_args &a, uint64_t epoch, uint32_t rank,
                             uint32_t expert, uint32_t count)
{
    char *to = a.c.v.peer_heap[rank] + tf_counts_of(a, epoch, a.c.v.rank);

    epa_dev_store_relaxed(reinterpret_cast<uint64_t *>(to) + expert, tf_count_flag(epoch, count));
}

/* flag_granularity: token: the first blocks count, each for other ranks, while other blocks already
 * send. */
static __device__ void tf_publish(const struct tf_args &a, uint64_t epoch, uint32_t *count)
{
    uint32_t choices = a.c.tokens * a.c.topk;

    for (uint32_t r = blockIdx.x; r < a.c.v.size; r += a.publishers) {
        for (uint32_t e = threadIdx.x; e < a.c.local; e += blockDim.x)
            count[e] = 0;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < choices; i += blockDim.x) {
            uint32_t e = (uint32_t)__ldg(a.c.expert + i) - r * a.c.local;

            if (e < a.c.local)
                atomicAdd(&count[e], 1);
        }
        __syncthreads();
        for (uint32_t e = threadIdx.x; e < a.c.local; e += blockDim.x)
            tf_signal_count(a, epoch, r, e, count[e]);
        __syncthreads(); /* count[] is reused */
    }
}

/* flag_granularity: rank: the last block to finish publishes the counts. The fences order the
 * stores of a block before its increment of `arrived`, and the releases order the stores of all
 * blocks before the flags. The chain is: stores of each thread, barrier, fence, counter, fence,
 * barrier, release. */
static __device__ void tf_signal_when_all_sent(const struct tf_args &a, uint64_t epoch)
{
    __shared__ bool last;

    __syncthreads();
    if (threadIdx.x == 0) {
        epa_dev_fence();
        last = atomicAdd(&a.counters->arrived, 1) + 1 == a.senders;
        epa_dev_fence();
    }
    __syncthreads();
    if (!last)
        return;
    for (uint32_t i = threadIdx.x; i < a.c.experts; i += blockDim.x)
        tf_signal_count(a, epoch, i / a.c.local, i % a.c.local, __ldcg(&a.counters->chosen[i]));
    __syncthreads();
    if (threadIdx.x < a.c.v.size)
        epa_dev_signal(a.c.v, a.c.signal + epoch % 2 * a.c.v.size + a.c.v.rank,
                       tf_count_flag(epoch, __ldcg(&a.counters->sent[threadIdx.x])), threadIdx.x);
}

/* ---- rows ---- */

/* Assigns a place to each choice of the token. Lanes with the same rank share one atomic addition,
 * and the order of lanes numbers their rows. Called by one warp. */
EPA_DEV void tf_slot(const struct tf_args &a, uint32_t token, struct tf_slots *p)
{
    uint32_t lane = epa_dev_lane(), lower = (1u << lane) - 1, expert = ~0u, rank = ~0u;
    uint32_t all, same = 0, row = 0;

    if (lane < a.c.topk)
        expert = (uint32_t)__ldg(a.c.expert + (size_t)token * a.c.topk + lane);
    if (expert < a.c.experts)
        rank = expert / a.c.local;
    if (expert < a.c.experts && !a.by_token)
        atomicAdd(&a.counters->chosen[expert], 1);
    all = __ballot_sync(EPA_DEV_ALL, expert < a.c.experts);
    for (uint32_t left = all, those; left != 0; left &= ~those) {
        those = __ballot_sync(EPA_DEV_ALL, rank == __shfl_sync(EPA_DEV_ALL, rank, __ffs(left) - 1));
        same = (those >> lane & 1) != 0 ? those : same;
    }
    if (same != 0 && (same & lower) == 0)
        row = atomicAdd(&a.counters->sent[rank], __popc(same));
    row = __shfl_sync(EPA_DEV_ALL, row, same != 0 ? __ffs(same) - 1 : 0) + __popc(same & lower);
    if (same != 0) {
        uint32_t i = __popc(all & lower), e = expert - rank * a.c.local;

        p->to[i] = a.c.v.peer_heap[rank] + a.comm +
                   ((uint64_t)a.c.v.rank * a.source_rows + row) * a.wire_bytes;
        p->expert[i] = expert;
        p->meta[i] = {{token, (uint64_t)(e << 16 | lane)}};
        if (a.place != NULL)
            a.place[(size_t)token * a.c.topk + lane] = row;
    }
    if (lane == 0)
        p->n = __popc(all);
}

/* Counts a choice of a token before the current one. The number of earlier choices of an expert is
 * the index of a row among this source's rows for the expert. It does not depend on the order in
 * which blocks send. A block takes tokens in ascending order, so its counts continue from the
 * previous token. */
EPA_DEV void tf_count_choice(const struct tf_args &a, uint32_t expert, uint32_t *before)
{
    if (expert < a.c.experts)
        atomicAdd(&before[expert], 1);
}

/* Loads a carrier's choices from `begin`; ~0: beyond `end`. */
EPA_DEV void tf_look_ahead(const struct tf_args &a, uint32_t begin, uint32_t end, uint32_t *expert)
{
#pragma unroll
    for (int j = 0; j < TF_AHEAD; j++) {
        uint32_t i = begin + j * tf_carriers() + threadIdx.x - EPA_DEV_WARP;

        expert[j] = i < end ? (uint32_t)__ldg(a.c.expert + i) : ~0u;
    }
}

/* Loads a row into shared memory, 16 bytes per carrier and four loads in flight. */
EPA_DEV void tf_carry(const void *from, size_t row, uint32_t n, uint4 *to)
{
    enum { AHEAD = 4 };
    const uint4 *x = static_cast<const uint4 *>(from) + row * n;
    uint32_t carriers = tf_carriers();

    for (uint32_t i = threadIdx.x - EPA_DEV_WARP; i < n; i += AHEAD * carriers) {
        uint4 v[AHEAD];

#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (i + j * carriers < n)
                v[j] = __ldg(x + i + j * carriers);
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (i + j * carriers < n)
                to[i + j * carriers] = v[j];
    }
}

/* Quantises a token into shared memory, 512 channels per warp. */
template <bool F16> EPA_DEV void tf_quantise(const struct tf_args &a, uint32_t token, char *payload)
{
    enum { LANE = 16, SWEEP = LANE * EPA_DEV_WARP };
    const char *x = static_cast<const char *>(a.c.x) + (size_t)token * a.c.hidden * 2;
    float *scales = reinterpret_cast<float *>(payload + a.scales_at);
    uint32_t lanes = a.c.group / LANE;

    for (uint32_t at = (threadIdx.x / EPA_DEV_WARP - 1) * SWEEP; at < a.c.hidden;
         at += tf_carriers() / EPA_DEV_WARP * SWEEP) {
        uint32_t channel = at + epa_dev_lane() * LANE;
        const uint4 *from = reinterpret_cast<const uint4 *>(x + channel * 2);
        uint4 low = make_uint4(0, 0, 0, 0), high = low;
        float scale;

        if (channel < a.c.hidden) {
            low = __ldg(from);
            high = __ldg(from + 1);
        }
        low = epa_dev_quantise16<F16>(low, high, lanes, &scale);
        if (channel < a.c.hidden)
            epa_dev_store16(payload + channel, low);
        if (channel < a.c.hidden && epa_dev_lane() % lanes == 0)
            scales[channel / a.c.group] = scale;
    }
}

/* Loads the token and its scales into shared memory, quantised if requested. Called by all warps
 * except the first. */
template <int IN> EPA_DEV void tf_fill(const struct tf_args &a, uint32_t token, char *payload)
{
    uint32_t groups = IN == DEVICE_PLAIN ? 0 : a.c.hidden / a.c.group;
    float *scales = reinterpret_cast<float *>(payload + a.scales_at);

    if (IN == DEVICE_PLAIN)
        tf_carry(a.c.x, token, a.c.hidden / 8, reinterpret_cast<uint4 *>(payload));
    if (IN == DEVICE_QUANTISE || IN == DEVICE_QUANTISE_F16)
        tf_quantise<IN == DEVICE_QUANTISE_F16>(a, token, payload);
    if (IN == DEVICE_FP8) {
        tf_carry(a.c.x, token, a.c.hidden / 16, reinterpret_cast<uint4 *>(payload));
        for (uint32_t i = threadIdx.x - EPA_DEV_WARP; i < groups; i += tf_carriers())
            scales[i] = __ldg(a.c.x_scale + (size_t)token * groups + i);
    }
    if (groups % 2 != 0 && threadIdx.x == EPA_DEV_WARP) /* clears the other half of the last word */
        scales[groups] = 0;
}

/* Stores the lines of a token at all destinations. Warps begin with different destinations, so that
 * all links are used. The last lines go first, since a receiver needs META to take in any part. */
EPA_DEV void tf_send_packets(const struct tf_args &a, uint32_t token, uint64_t epoch,
                             const uint64_t *payload, const struct tf_slots *p,
                             const uint32_t *before)
{
    uint32_t words = a.content_bytes / 8, warp = threadIdx.x / EPA_DEV_WARP, n = p->n;
    uint32_t fours = n != 0 ? (a.packets + EPA_DEV_PACKETS - 1) / EPA_DEV_PACKETS : 0;

    for (uint32_t i = warp; i < fours; i += dev_warps()) {
        uint32_t g = fours - 1 - i, at = epa_dev_word_at(g),
                 line = g * EPA_DEV_PACKETS + epa_dev_lane() / 8;
        bool meta = line + 1 == a.packets && epa_dev_lane() % 8 == TF_META_LANE;
        struct epa_dev_words v = {{0, 0}};

        if (line >= a.packets)
            continue;
        if (at < words)
            v.w[0] = payload[at];
        if (!epa_dev_ends_packet() && at + 1 < words)
            v.w[1] = payload[at + 1];
        for (uint32_t k = 0, j = (token + warp) % n; k < n; k++, j = j + 1 < n ? j + 1 : 0) {
            if (meta)
                v = {{p->meta[j].w[0] | (uint64_t)before[p->expert[j]] << 32, p->meta[j].w[1]}};
            epa_dev_packet_store(p->to[j], g, v, epoch);
        }
    }
}

/* Loads the row of a token, and counts the choices of earlier tokens from `done` on while the loads
 * of the row are in flight. */
template <int IN>
EPA_DEV void tf_bring(const struct tf_args &a, uint32_t done, uint32_t token, char *payload,
                      uint32_t *before)
{
    uint32_t begin = done * a.c.topk, end = token * a.c.topk, expert[TF_AHEAD];

    tf_look_ahead(a, begin, end, expert);
    tf_fill<IN>(a, token, payload);
#pragma unroll
    for (int j = 0; j < TF_AHEAD; j++)
        tf_count_choice(a, expert[j], before);
    for (begin += TF_AHEAD * tf_carriers(); begin < end; begin += TF_AHEAD * tf_carriers()) {
        tf_look_ahead(a, begin, end, expert);
#pragma unroll
        for (int j = 0; j < TF_AHEAD; j++)
            tf_count_choice(a, expert[j], before);
    }
}

/* Sends tokens as block `block` of `blocks`. */
template <int IN, bool PROFILE>
EPA_DEV void tf_send(const struct tf_args &a, uint64_t epoch, uint32_t block, uint32_t blocks,
                     uint32_t *before, char *payload)
{
    __shared__ struct tf_slots places;
    __shared__ uint32_t next;

    for (uint32_t e = threadIdx.x; e < a.c.experts; e += blockDim.x)
        before[e] = 0;
    __syncthreads();
    for (uint32_t token = a.begin + block, done = 0; token < a.end; done = token, token = next) {
        bool asks = threadIdx.x == EPA_DEV_WARP;
        uint32_t asked = 0, begun = dev_begun<PROFILE>();

        if (asks)
            asked = dev_ask(a.c, 0, epoch, blocks, a.end - a.begin);
        if (threadIdx.x < EPA_DEV_WARP)
            tf_slot(a, token, &places);
        else
            tf_bring<IN>(a, done, token, payload, before);
        __syncthreads();
        tf_send_packets(a, token, epoch, reinterpret_cast<const uint64_t *>(payload), &places,
                        before);
        if (asks)
            next = a.end - a.begin <= blocks ? a.end : a.begin + blocks + asked;
        __syncthreads(); /* the next token reuses the shared memory */
        if (threadIdx.x == 0)
            dev_note<PROFILE>(a.c, epoch, token, begun, UINT32_MAX, token);
    }
}

#endif
