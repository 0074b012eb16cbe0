/* Kernel of fused: calls of few tokens, up to FUSED_FEW of all ranks together. Latency, rather than
 * bandwidth, determines their time.
 *
 * Every expert that has a row multiplies the rows of all ranks, since a tile of one row takes as
 * long as a tile of 32 rows (a tile of 64 rows takes longer): its weights are read once. So a row
 * needs no place among the rows of its expert: its place follows from its rank and token, once for
 * all experts of a rank, and the row is sent before anything has arrived. Instead of counts, all
 * ranks get the choices of all tokens, which determine the rows and experts of each sum: no token
 * is queued.
 *
 * Rows and choices have two sets, like counts (fused_layer.cuh): a rank that begins call n + 2 has
 * received the choices n + 1 of all ranks, so their kernels n have ended. Flags hold the call. */
#ifndef FUSED_FEW_CUH
#define FUSED_FEW_CUH

#include "fused_combine.cuh"
#include "fused_store.cuh"

/* Returns the first row of the set. */
EPA_DEV uint32_t fused_few_rows(uint64_t call)
{
    return call % 2 * FUSED_FEW;
}

/* Returns the flag of a row at a rank, which states that the row has arrived. */
EPA_DEV uint64_t *fused_few_flag(const struct fused_args &a, uint32_t rank, uint32_t slot)
{
    return reinterpret_cast<uint64_t *>(a.c.v.peer_heap[rank] + a.arrived) + slot;
}

/* Returns choice i of this rank: expert, weight << 32; no expert for missing tokens. */
EPA_DEV uint64_t fused_few_choice(const struct fused_args &a, uint32_t i)
{
    if (i >= a.c.tokens * a.c.topk)
        return ~0u;
    return (uint32_t)__ldg(a.c.expert + i) | (uint64_t)__float_as_uint(__ldg(a.c.weight + i)) << 32;
}

/* Returns the first own token that this block sends. The first block is the last to get tokens,
 * since it also sends the choices. */
EPA_DEV uint32_t fused_few_token(void)
{
    return (blockIdx.x + gridDim.x - 1) % gridDim.x;
}

/* Sends the choices of this rank to all ranks, in the first block. Clears the counters before,
 * since a rank that has read the choices may add to them. */
EPA_DEV void fused_few_publish(const struct fused_args &a, uint64_t call)
{
    uint32_t each = a.c.max_tokens * a.c.topk;
    uint64_t choice = fused_few_choice(a, threadIdx.x);

    fused_clear(a.state, FUSED_COUNTERS + a.c.experts + 2 * a.blocks);
    __threadfence();
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < each; i += FUSED_THREADS) {
        for (uint32_t r = 0; r < a.c.v.size; r++)
            epa_dev_store_pair(a.c.v.peer_heap[r] + a.counts[call % 2] +
                                   ((uint64_t)a.c.v.rank * each + i) * 16,
                               choice, call);
        choice = fused_few_choice(a, i + FUSED_THREADS);
    }
}

/* Returns the mask of the ranks that a token goes to. Called by one warp. */
EPA_DEV uint32_t fused_few_ranks(const struct fused_args &a, uint32_t token)
{
    uint32_t lane = epa_dev_lane(), rank = ~0u, ranks = 0;

    if (lane < a.c.topk) {
        uint32_t e = (uint32_t)__ldg(a.c.expert + (size_t)token * a.c.topk + lane);

        rank = e < a.c.experts ? e / a.c.local : ~0u;
    }
    for (uint32_t r = 0; r < a.c.v.size; r++)
        ranks |= __any_sync(EPA_DEV_ALL, rank == r) ? 1u << r : 0;
    return ranks;
}

/* Returns the number of multiplying warps that share a token, so that all tokens of a block are
 * sent at once. */
EPA_DEV uint32_t fused_few_sharers(const struct fused_args &a)
{
    uint32_t warps = FUSED_MATH_WARPS;

    while (warps > 1 && fused_few_token() + FUSED_MATH_WARPS / warps * gridDim.x < a.c.tokens)
        warps /= 2;
    return warps;
}

/* Sends this block's tokens, in multiplying warp `warp`. */
template <int IN, bool PICKS>
EPA_DEV void fused_few_send(const struct fused_args &a, uint64_t call, uint32_t warp, float *staged)
{
    uint32_t groups = (a.c.hidden + FUSED_GROUP - 1) / FUSED_GROUP, lane = epa_dev_lane();
    uint32_t sharers = PICKS ? fused_few_sharers(a) : (uint32_t)FUSED_MATH_WARPS;
    uint32_t own = (groups + sharers - 1) / sharers * FUSED_GROUP, share = warp % sharers;
    uint32_t begin = min(share * own, a.c.hidden), end = min(begin + own, a.c.hidden);

    if (begin == end)
        return;
    for (uint32_t token = fused_few_token() + warp / sharers * gridDim.x; token < a.c.tokens;
         token += FUSED_MATH_WARPS / sharers * gridDim.x) {
        uint32_t row =
            (PICKS ? call % 2 * a.few : fused_few_rows(call)) + a.c.v.rank * a.c.max_tokens + token;
        uint32_t ranks = fused_few_ranks(a, token), to = min(lane, a.c.v.size - 1);

        fused_store_row<IN, PICKS ? 4 : 2, FUSED_GROUP>(
            a, token, begin, end, ranks,
            a.c.v.peer_heap[to] + a.recv + (uint64_t)row * a.message_bytes, staged);
    }
}

/* Sets the flags of this block's rows, after a barrier that follows fused_few_send(): each release
 * orders the rows of all warps before its flag. Lanes set flags of several tokens together, one per
 * token and rank. Picks: also flags of ranks that do not receive the token, and of missing tokens,
 * since receivers load rows before they know the experts. Called by one warp. */
template <bool PICKS> EPA_DEV void fused_few_arrive(const struct fused_args &a, uint64_t call)
{
    uint32_t size = a.c.v.size, each = EPA_DEV_WARP / size;
    uint32_t own = epa_dev_lane() / size, rank = epa_dev_lane() % size;
    uint32_t tokens = PICKS ? a.c.max_tokens : a.c.tokens;

    for (uint32_t first = fused_few_token(); first < tokens; first += each * gridDim.x) {
        bool goes = PICKS && own < each && first + own * gridDim.x < tokens;

        for (uint32_t i = 0; !PICKS && i < each && first + i * gridDim.x < tokens; i++) {
            uint32_t ranks = fused_few_ranks(a, first + i * gridDim.x);

            goes = i == own ? (ranks >> rank & 1) != 0 : goes;
        }
        if (goes)
            epa_dev_store_release(
                fused_few_flag(a, rank, a.c.v.rank * a.c.max_tokens + first + own * gridDim.x),
                call);
        __syncwarp();
    }
}

/* Reads the choices of all ranks, and builds one block for each local expert with rows. Called by
 * all threads of the block. */
template <class S>
EPA_DEV bool fused_few_prepare(const struct fused_args &a, uint64_t call,
                               const struct fused_tables &t)
{
    uint32_t lane = epa_dev_lane(), each = a.c.max_tokens * a.c.topk, base = 0, sum;
    bool ok = true;

    fused_clear(t.rows, a.c.local);
    fused_clear(t.wants, 2 * a.c.local);
    fused_clear(t.scalars + FUSED_HERE, 2);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < a.few * a.c.topk && ok; i += FUSED_THREADS) {
        uint64_t choice = ~0u;
        uint32_t expert;

        ok = fused_read_packet(a, call, i / each, i % each, each, &choice);
        expert = (uint32_t)choice;
        t.choice[i] = (uint16_t)expert;
        t.weight[i] = __uint_as_float((uint32_t)(choice >> 32));
        if (expert / a.c.local == a.c.v.rank) {
            uint32_t slot = i / a.c.topk;

            t.rows[expert % a.c.local] = a.few;
            atomicOr(&t.wants[expert % a.c.local * 2 + slot / 32], 1u << slot % 32);
            atomicOr(&t.scalars[FUSED_HERE + slot / 32], 1u << slot % 32);
        }
    }
    if (!__syncthreads_and(ok))
        return false;
    if (threadIdx.x < EPA_DEV_WARP) {
        for (uint32_t i = lane; i - lane < a.c.local; i += EPA_DEV_WARP) {
            uint32_t at = base + fused_scan(i < a.c.local && t.rows[i] != 0 ? 1 : 0, &sum);

            if (i < a.c.local)
                t.block_at[i] = at;
            base += sum;
        }
        if (lane == 0)
            t.block_at[a.c.local] = base;
        __syncwarp();
        fused_place_units<S>(a, NULL, t);
    }
    __syncthreads();
    return true;
}

/* Waits until all rows for this rank have arrived. Called by one warp. */
EPA_DEV bool fused_few_wait(const struct fused_args &a, uint64_t call, const struct fused_tables &t)
{
    bool ok = true;
    uint64_t seen;

    for (uint32_t slot = epa_dev_lane(); slot < a.few && ok; slot += EPA_DEV_WARP)
        if ((t.scalars[FUSED_HERE + slot / 32] >> slot % 32 & 1) != 0)
            ok = fused_wait_epoch(
                a, fused_few_flag(a, a.c.v.rank, slot), call,
                {0, FUSED_WAIT_TOKEN, slot / a.c.max_tokens, slot % a.c.max_tokens}, &seen);
    return __all_sync(EPA_DEV_ALL, ok);
}

/* ---- combine ----
 *
 * A sum returns in packets of 16 bytes, half of which hold the call, so no flag must wait for the
 * sum. A warp takes a part of a token, 16 bytes per lane at a time. */

/* Returns the address of this lane's two packets, of 8 channels, in the sum of a token from
 * `source`. */
EPA_DEV char *fused_few_packets(const struct fused_args &a, uint32_t slot, uint32_t source,
                                uint32_t channel)
{
    uint32_t owner = slot / a.c.max_tokens, token = slot % a.c.max_tokens;

    return a.c.v.peer_heap[owner] + a.partial +
           (((uint64_t)token * a.c.v.size + source) * a.c.hidden + channel) * 4;
}

/* Stores this lane's 16 bytes of a sum at the token's rank; with one rank, in the output. */
EPA_DEV void fused_few_store(const struct fused_args &a, uint64_t call, uint32_t slot,
                             uint32_t channel, uint4 sum)
{
    if (a.direct != 0) {
        epa_dev_store16(static_cast<char *>(a.c.out) + ((size_t)slot * a.c.hidden + channel) * 2,
                        sum);
        return;
    }
    char *to = fused_few_packets(a, slot, a.c.v.rank, channel);

    epa_dev_store_pair(to, (uint64_t)sum.y << 32 | sum.x, call);
    epa_dev_store_pair(to + 16, (uint64_t)sum.w << 32 | sum.z, call);
}

/* Waits for this lane's packets of up to four of the `ranks`, and reads them. */
EPA_DEV bool fused_few_read(const struct fused_args &a, uint64_t call, uint32_t token,
                            uint32_t channel, uint32_t ranks, uint64_t (&v)[4][2])
{
    struct epa_dev_poll poll = {};

    for (;;) {
        uint64_t seen[2], least = call;
        uint32_t left = ranks, missing = 0, r = 0;

#pragma unroll
        for (int i = 0; i < 4; i++) { /* beyond the end: the last rank again */
            r = left != 0 ? __ffs(left) - 1 : r;
            const char *from =
                fused_few_packets(a, a.c.v.rank * a.c.max_tokens + token, r, channel);

            epa_dev_load_pair(from, &v[i][0], &seen[0]);
            epa_dev_load_pair(from + 16, &v[i][1], &seen[1]);
            if (min(seen[0], seen[1]) < least) {
                least = min(seen[0], seen[1]);
                missing = r;
            }
            left &= left - 1;
        }
        if (least >= call)
            return true;
        if (epa_dev_poll_expired(a.c.v, &poll, a.c.timeout_ns,
                                 {0, FUSED_WAIT_PARTIAL, missing, token}, least, call))
            return false;
    }
}

/* Adds up this lane's channels of an own token, from the sums of `ranks`. */
template <class S>
EPA_DEV bool fused_few_sum(const struct fused_args &a, uint64_t call, uint32_t token,
                           uint32_t channel, uint32_t ranks)
{
    float sum[8] = {};

    while (ranks != 0) {
        uint64_t v[4][2];

        if (!fused_few_read(a, call, token, channel, ranks, v))
            return false;
#pragma unroll
        for (int r = 0; r < 4; r++) {
            float value[8];

            if (ranks == 0)
                break;
            epa_dev_unpack<S::F16>(make_uint4((uint32_t)v[r][0], (uint32_t)(v[r][0] >> 32),
                                              (uint32_t)v[r][1], (uint32_t)(v[r][1] >> 32)),
                                   value);
            dev_add8(value, 1.0f, sum);
            ranks &= ranks - 1;
        }
    }
    epa_dev_store16(static_cast<char *>(a.c.out) + ((size_t)token * a.c.hidden + channel) * 2,
                    epa_dev_pack<S::F16>(sum));
    return true;
}

/* Adds up own tokens. Called by one warp. */
template <class S> EPA_DEV bool fused_few_receive(const struct fused_args &a, uint64_t call)
{
    uint32_t i;

    while ((i = fused_take(a, FUSED_SUMMING)) < a.c.tokens * a.parts) {
        uint32_t token = i / a.parts, ranks = fused_few_ranks(a, token);
        uint32_t from = i % a.parts * a.part_channels;
        uint32_t end = min(from + a.part_channels, a.c.hidden);
        bool ok = true;

        for (from += epa_dev_lane() * 8; from < end && ok; from += FUSED_FEW_CHANNELS)
            ok = fused_few_sum<S>(a, call, token, from, ranks);
        if (!__all_sync(EPA_DEV_ALL, ok))
            return false;
    }
    return true;
}

#endif
