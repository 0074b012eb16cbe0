/* Kernel of fused: calls of few tokens, but more than FUSED_FEW: up to FUSED_PICKED of all ranks.
 * As in fused_few.cuh, the place of a row follows from its rank and token, once for all experts of
 * a rank, and the row is sent before anything has arrived; all ranks get the choices of all tokens
 * instead of counts, and sums return in packets.
 *
 * An expert multiplies only rows that chose it, in the order of their places. The choices tell each
 * block these rows, and the experts of each sum: no token is counted or queued.
 *
 * fused_few.cuh describes sets and flags. */
#ifndef FUSED_PICKS_CUH
#define FUSED_PICKS_CUH

#include "fused_few.cuh"

/* Returns the first row of the set. */
EPA_DEV uint32_t fused_picks_rows(const struct fused_args &a, uint64_t call)
{
    return call % 2 * a.few;
}

/* Returns the word with the last call whose counters on this rank have been cleared. */
EPA_DEV uint64_t *fused_picks_cleared(const struct fused_args &a)
{
    return reinterpret_cast<uint64_t *>(a.sum[0]);
}

/* Clears the counters, in the first warpgroup of the first block. Other blocks add to the counters
 * after they have seen the word of fused_picks_cleared(). */
EPA_DEV void fused_picks_reset(const struct fused_args &a, uint64_t call)
{
    fused_clear(a.state, FUSED_COUNTERS + a.c.experts + 3 * a.blocks, 1, FUSED_SHARE_THREADS);
    __threadfence();
    fused_share_sync();
    if (threadIdx.x == 0)
        epa_dev_store_release(fused_picks_cleared(a), call);
}

/* Return the first packet of a token's experts, and of its weights. */
EPA_DEV uint32_t fused_picks_experts_at(const struct fused_args &a, uint32_t slot)
{
    return slot * fused_picks_experts(a.c.topk);
}

EPA_DEV uint32_t fused_picks_weights_at(const struct fused_args &a, uint32_t slot)
{
    uint32_t experts = fused_picks_experts(a.c.topk);

    return a.few * experts + slot * (fused_picks_packets(a.c.topk) - experts);
}

/* Sends to all ranks the choices of the tokens that this block sends, one choice per lane, for as
 * many tokens at a time as fit in a warp. Called by one warp. */
EPA_DEV void fused_picks_publish(const struct fused_args &a, uint64_t call)
{
    uint32_t width = a.c.topk <= 4 ? 4 : a.c.topk <= 8 ? 8 : a.c.topk <= 16 ? 16 : 32;
    uint32_t lane = epa_dev_lane() % width, first = epa_dev_lane() / width * gridDim.x;

    for (uint32_t base = fused_few_token(); base < a.c.max_tokens;
         base += EPA_DEV_WARP / width * gridDim.x) {
        uint32_t token = base + first, slot = a.c.v.rank * a.c.max_tokens + token;
        bool has = token < a.c.max_tokens && lane < a.c.topk;
        uint64_t choice = has ? fused_few_choice(a, token * a.c.topk + lane) : ~0u;
        uint32_t expert = (uint32_t)choice & 0xffff, weight = (uint32_t)(choice >> 32);
        uint32_t pair = expert | __shfl_xor_sync(EPA_DEV_ALL, expert, 1) << 16;
        uint64_t experts = (uint64_t)__shfl_xor_sync(EPA_DEV_ALL, pair, 2) << 32 | pair;
        uint64_t weights = (uint64_t)__shfl_xor_sync(EPA_DEV_ALL, weight, 1) << 32 | weight;

        for (uint32_t r = 0; r < a.c.v.size && has; r++) {
            char *to = a.c.v.peer_heap[r] + a.counts[call % 2];

            if (lane % 4 == 0)
                epa_dev_store_pair(to + (fused_picks_experts_at(a, slot) + lane / 4) * 16, experts,
                                   call);
            if (lane % 2 == 0)
                epa_dev_store_pair(to + (fused_picks_weights_at(a, slot) + lane / 2) * 16, weights,
                                   call);
        }
        __syncwarp();
    }
}

/* Returns the number of tokens before `slot` that chose the expert. */
EPA_DEV uint32_t fused_picks_before(const struct fused_args &a, const struct fused_tables &t,
                                    uint32_t expert, uint32_t slot)
{
    const uint32_t *wants = t.wants + expert * fused_picks_words(a.few);
    uint32_t n = __popc(wants[slot / 32] & ((1u << slot % 32) - 1));

    for (uint32_t w = 0; w < slot / 32; w++)
        n += __popc(wants[w]);
    return n;
}

/* Waits for `EACH` packets of experts, packet i and those that follow at distance
 * FUSED_SHARE_THREADS, and reads them. */
template <int EACH>
EPA_DEV bool fused_picks_choices(const struct fused_args &a, uint64_t call, uint32_t i,
                                 uint32_t all, uint64_t (&value)[EACH])
{
    const char *from = dev_own(a.c.v, a.counts[call % 2]);
    uint32_t each = fused_picks_experts_at(a, a.c.max_tokens);

    for (;;) {
        uint64_t seen[EACH], other;
        uint32_t missing = ~0u;

#pragma unroll
        for (int j = 0; j < EACH; j++) { /* beyond the end: the first packet again */
            uint32_t own = i + j * FUSED_SHARE_THREADS;

            epa_dev_load_pair(from + (uint64_t)(own < all ? own : i) * 16, &value[j], &seen[j]);
        }
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (seen[j] < call)
                missing = i + j * FUSED_SHARE_THREADS < all ? i + j * FUSED_SHARE_THREADS : i;
        if (missing == ~0u)
            return true;
        if (!fused_wait_packet(a, call, missing,
                               {0, FUSED_WAIT_CHOICES, missing / each, missing % each}, &other))
            return false;
    }
}

/* Records the choices in the masks of this rank's experts. */
template <int EACH>
EPA_DEV bool fused_picks_note(const struct fused_args &a, uint64_t call,
                              const struct fused_tables &t)
{
    uint32_t each = fused_picks_experts(a.c.topk), all = a.few * each,
             words = fused_picks_words(a.few);
    bool ok = true;

    for (uint32_t i = threadIdx.x; i < all; i += EACH * FUSED_SHARE_THREADS) {
        uint64_t value[EACH];

        ok = ok && fused_picks_choices<EACH>(a, call, i, all, value);
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            uint32_t own = i + j * FUSED_SHARE_THREADS, slot = own / each, first = own % each * 4;

            if (own >= all)
                break;
#pragma unroll
            for (uint32_t k = 0; k < 4 && first + k < a.c.topk; k++) {
                uint32_t expert = ok ? (uint32_t)(value[j] >> 16 * k) & 0xffff : 0xffff;
                uint32_t at = expert - a.c.v.rank * a.c.local;

                if (at < a.c.local)
                    atomicOr(&t.wants[at * words + slot / 32], 1u << slot % 32);
            }
        }
    }
    return ok;
}

/* Builds blocks for the local experts with rows, and units of blocks. Each lane has consecutive
 * experts. Called by one warp. */
template <class S>
EPA_DEV void fused_picks_place(const struct fused_args &a, const struct fused_tables &t)
{
    enum { ROUNDS = 2 }; /* rounds of tiles whose rows the multiplying warps copy in advance */
    uint32_t words = fused_picks_words(a.few), each = (a.c.local + EPA_DEV_WARP - 1) / EPA_DEV_WARP;
    uint32_t first = min(epa_dev_lane() * each, a.c.local), end = min(first + each, a.c.local);
    uint32_t blocks = 0, units = 0, at, unit, all, all_units;
    auto blocks_of = [&](uint32_t e) { return (t.rows[e] + S::ROWS - 1) / S::ROWS; };
    auto units_of = [&](uint32_t n) { return n < 2 ? n : (n + a.unit_blocks - 1) / a.unit_blocks; };

    for (uint32_t e = first; e < end; e++) {
        uint32_t n = 0;

        for (uint32_t w = 0; w < words; w++)
            n += __popc(t.wants[e * words + w]);
        t.rows[e] = n;
        blocks += blocks_of(e);
        units += units_of(blocks_of(e));
    }
    at = fused_scan(blocks, &all);
    unit = fused_scan(units, &all_units);
    for (uint32_t e = first; e < end; e++) {
        t.block_at[e] = at;
        for (uint32_t u = 0; u < units_of(blocks_of(e)); u++)
            t.unit_at[unit++] = at + u * a.unit_blocks;
        at += blocks_of(e);
    }
    if (epa_dev_lane() == 0) {
        t.block_at[a.c.local] = all;
        t.unit_at[all_units] = all;
    }
    __syncwarp();
    fused_place_lag<S>(a, t, all_units);
    at = (ROUNDS * gridDim.x + a.up_tiles - 1) / a.up_tiles;
    if (epa_dev_lane() == 0)
        t.scalars[FUSED_SOON] =
            at < all ? device_cell_of(t.block_at, a.c.local, at) + 1 : a.c.local;
}

/* Reads the choices of all ranks and builds blocks and units. Called by the first warpgroup, while
 * the other warpgroups send; a barrier of the block follows. */
template <class S>
EPA_DEV bool fused_picks_prepare(const struct fused_args &a, uint64_t call,
                                 const struct fused_tables &t)
{
    bool ok = true;
    uint64_t seen;

    fused_clear(t.wants, a.c.local * fused_picks_words(a.few), 1, FUSED_SHARE_THREADS);
    if (threadIdx.x / EPA_DEV_WARP == 1)
        fused_picks_publish(a, call);
    if (blockIdx.x == 0)
        fused_picks_reset(a, call);
    fused_share_sync();
    ok = a.few * fused_picks_experts(a.c.topk) <= 4 * FUSED_SHARE_THREADS
             ? fused_picks_note<4>(a, call, t)
             : fused_picks_note<8>(a, call, t);
    if (threadIdx.x == FUSED_SHARE_THREADS - 1)
        ok = ok && fused_wait_epoch(a, fused_picks_cleared(a), call,
                                    {0, FUSED_WAIT_CHOICES, a.c.v.rank, 0}, &seen);
    fused_share_sync();
    if (threadIdx.x < EPA_DEV_WARP)
        fused_picks_place<S>(a, t);
    return ok;
}

/* Waits until the row of a token for this rank has arrived. Called by one thread. */
EPA_DEV bool fused_picks_wait_row(const struct fused_args &a, uint64_t call, uint32_t slot)
{
    uint64_t seen;

    return fused_wait_epoch(a, fused_few_flag(a, a.c.v.rank, slot), call,
                            {0, FUSED_WAIT_TOKEN, slot / a.c.max_tokens, slot % a.c.max_tokens},
                            &seen);
}

/* ---- picked rows ----
 *
 * A tile loads contiguous rows. The rows of an expert usually are not contiguous, so warps copy
 * them to contiguous places behind the two sets; contiguous rows of a block stay in place. Each
 * warp that shares a row counts the row for its block, copied or not. */

/* Two consecutive words of an expert's mask, which this lane reads. */
struct fused_picked_words {
    uint32_t low, high;
};

EPA_DEV struct fused_picked_words fused_picks_mask(const struct fused_args &a,
                                                   const struct fused_tables &t, uint32_t expert)
{
    uint32_t words = fused_picks_words(a.few), w = 2 * epa_dev_lane();
    const uint32_t *wants = t.wants + expert * words;

    return {w < words ? wants[w] : 0, w + 1 < words ? wants[w + 1] : 0};
}

/* Returns the row that an expert multiplies as its n-th: the position of the n-th bit. Called by
 * one warp. */
EPA_DEV uint32_t fused_picks_nth(const struct fused_args &a, const struct fused_tables &t,
                                 uint32_t expert, uint32_t n)
{
    struct fused_picked_words own = fused_picks_mask(a, t, expert);
    uint32_t lane = epa_dev_lane(), low = __popc(own.low), both = low + __popc(own.high);
    uint32_t all, before = fused_scan(both, &all), who, bits;
    bool high;

    who = __ffs(__ballot_sync(EPA_DEV_ALL, before <= n && n < before + both)) - 1;
    n -= __shfl_sync(EPA_DEV_ALL, before, who);
    low = __shfl_sync(EPA_DEV_ALL, low, who);
    high = n >= low;
    bits = __shfl_sync(EPA_DEV_ALL, high ? own.high : own.low, who);
    n -= high ? low : 0;
    before = __popc(bits & ((1u << lane) - 1));
    return 64 * who + (high ? 32 : 0) +
           __ffs(__ballot_sync(EPA_DEV_ALL, (bits >> lane & 1) != 0 && before == n)) - 1;
}

/* Returns the mask of the bits of word w at positions from `begin` to `end` - 1. */
EPA_DEV uint32_t fused_bits(uint32_t w, uint32_t begin, uint32_t end)
{
    uint32_t first = begin > 32 * w ? min(begin - 32 * w, 32u) : 0,
             last = end > 32 * w ? min(end - 32 * w, 32u) : 0;

    return (uint32_t)((1ull << last) - (1ull << first));
}

/* Returns true if an expert has `n` consecutive tokens from `begin` on. */
EPA_DEV bool fused_picks_follow(const struct fused_args &a, const struct fused_tables &t,
                                uint32_t expert, uint32_t begin, uint32_t n)
{
    const uint32_t *wants = t.wants + expert * fused_picks_words(a.few);
    bool all = begin + n <= a.few;

    for (uint32_t w = begin / 32; all && 32 * w < begin + n; w++)
        all = (~wants[w] & fused_bits(w, begin, begin + n)) == 0;
    return all;
}

/* Returns the number of rows of the block that begins with row `first` of the expert. */
template <uint32_t ROWS>
EPA_DEV uint32_t fused_picks_rows_from(const struct fused_tables &t, uint32_t expert,
                                       uint32_t first)
{
    return min(ROWS, t.rows[expert] - first);
}

/* Returns the number of warps that share the copies of a token's row. */
EPA_DEV uint32_t fused_picks_sharers(const struct fused_args &a)
{
    enum { MOST = 4 };

    return max(1u, min(FUSED_MATH_WARPS * gridDim.x / a.few, (uint32_t)MOST));
}

/* Finds the experts of a token from `first` to `end` - 1, in ascending order, one per lane. Returns
 * their number. Called by one warp. */
EPA_DEV uint32_t fused_picks_of(const struct fused_args &a, const struct fused_tables &t,
                                uint32_t slot, uint32_t first, uint32_t end, uint32_t *expert)
{
    uint32_t lane = epa_dev_lane(), words = fused_picks_words(a.few), n = 0;

    *expert = 0;
    for (uint32_t base = first; base < end; base += EPA_DEV_WARP) {
        uint32_t at = base + lane;
        bool has = at < end && (t.wants[at * words + slot / 32] >> slot % 32 & 1) != 0;

        for (uint32_t left = __ballot_sync(EPA_DEV_ALL, has); left != 0; left &= left - 1, n++)
            *expert = lane == n ? base + __ffs(left) - 1 : *expert;
    }
    return n;
}

/* Share of a warp in the copy of a token's row, and the pieces of 512 bytes that it has loaded. */
struct fused_picked {
    enum { FLIGHT = 8 };
    uint32_t slot, begin, end;
    uint4 piece[FLIGHT];
};

EPA_DEV char *fused_picked_row(const struct fused_args &a, uint64_t row)
{
    return dev_own(a.c.v, a.recv) + row * a.message_bytes;
}

/* Loads the pieces from byte `at` on; pieces beyond the end are loaded again and not stored. Called
 * by one warp. */
EPA_DEV void fused_picked_load(const struct fused_args &a, uint64_t call, uint32_t at,
                               struct fused_picked *p)
{
    const char *from = fused_picked_row(a, fused_picks_rows(a, call) + p->slot);

    at += epa_dev_lane() * 16;
#pragma unroll
    for (int i = 0; i < fused_picked::FLIGHT; i++)
        p->piece[i] = epa_dev_load16(from + min(at + i * 512, p->end - 16));
}

/* Waits for the row of copy i and loads its first pieces; `sharers` warps share a row. Called by
 * one warp. */
EPA_DEV bool fused_picked_begin(const struct fused_args &a, uint64_t call, uint32_t i,
                                uint32_t sharers, struct fused_picked *p)
{
    uint32_t pieces = (a.meta_at + 511) / 512, own = (pieces + sharers - 1) / sharers * 512;
    bool ok = true;

    p->slot = i / sharers;
    p->begin = i % sharers * own;
    p->end = min(p->begin + own, a.meta_at);
    if (epa_dev_lane() == 0)
        ok = fused_picks_wait_row(a, call, p->slot);
    ok = __all_sync(EPA_DEV_ALL, ok);
    __syncwarp();
    if (ok && p->begin < p->end)
        fused_picked_load(a, call, p->begin, p);
    return ok;
}

/* Stores the share for each of the experts `first` to `end` - 1 whose block is copied, and counts
 * it for all of these experts, `sharers` times. Called by one warp. */
template <class S>
EPA_DEV void fused_picked_store(const struct fused_args &a, uint64_t call,
                                const struct fused_tables &t, uint32_t first, uint32_t end,
                                uint32_t sharers, struct fused_picked *p)
{
    uint32_t expert, block = 0, lanes;
    bool has = epa_dev_lane() < fused_picks_of(a, t, p->slot, first, end, &expert), copied = false;
    char *to = NULL;

    if (has) {
        uint32_t n = fused_picks_before(a, t, expert, p->slot), before = n / S::ROWS * S::ROWS;

        block = t.block_at[expert] + n / S::ROWS;
        to = fused_picked_row(a, 2 * a.few + (uint64_t)block * S::ROWS + n - before);
        copied = !fused_picks_follow(a, t, expert, p->slot - (n - before),
                                     fused_picks_rows_from<S::ROWS>(t, expert, before));
    }
    lanes = __ballot_sync(EPA_DEV_ALL, copied);
    for (uint32_t from = p->begin; lanes != 0 && from < p->end;) {
        uint32_t at = from + epa_dev_lane() * 16;

        for (uint32_t left = lanes; left != 0; left &= left - 1) {
            char *row = dev_from_lane(to, __ffs(left) - 1);

#pragma unroll
            for (int i = 0; i < fused_picked::FLIGHT; i++)
                if (at + i * 512 < p->end)
                    epa_dev_store16(row + at + i * 512, p->piece[i]);
        }
        from += fused_picked::FLIGHT * 512;
        if (from < p->end)
            fused_picked_load(a, call, from, p);
    }
    __syncwarp();
    if (has)
        epa_dev_add_release_gpu(fused_copied(a) + block, sharers);
    __syncwarp();
}

/* Copies rows for the first tiles, in the multiplying warps before the products. The first row of
 * each warp is loaded already. */
template <class S>
EPA_DEV void fused_picks_copy(const struct fused_args &a, uint64_t call,
                              const struct fused_tables &t, uint32_t warp, struct fused_picked *p)
{
    uint32_t sharers = fused_picks_sharers(a), warps = FUSED_MATH_WARPS * gridDim.x;
    uint32_t own = blockIdx.x + warp * gridDim.x;

    for (uint32_t i = own; i < a.few * sharers; i += warps) {
        if (i != own && !fused_picked_begin(a, call, i, sharers, p))
            return;
        fused_picked_store<S>(a, call, t, 0, t.scalars[FUSED_SOON], 1, p);
    }
}

/* Copies the rows of the other tiles, in the warps that add up, before the sums; `warp` is the
 * index of this warp. */
template <class S>
EPA_DEV void fused_picks_copy_rest(const struct fused_args &a, uint64_t call,
                                   const struct fused_tables &t, uint32_t warp)
{
    uint32_t soon = t.scalars[FUSED_SOON];

    for (uint32_t i = blockIdx.x + warp * gridDim.x; soon < a.c.local && i < a.few;
         i += FUSED_TOKEN_WARPS * gridDim.x) {
        struct fused_picked p;

        if (!fused_picked_begin(a, call, i, 1, &p))
            return;
        fused_picked_store<S>(a, call, t, soon, a.c.local, fused_picks_sharers(a), &p);
    }
}

/* Returns the first row of an up tile. Called by one warp. */
template <class S>
EPA_DEV uint32_t fused_picks_first(const struct fused_args &a, uint64_t call,
                                   const struct fused_tables &t, uint32_t expert, uint32_t block)
{
    uint32_t first = (block - t.block_at[expert]) * S::ROWS;
    uint32_t begin = fused_picks_nth(a, t, expert, first);

    return fused_picks_follow(a, t, expert, begin, fused_picks_rows_from<S::ROWS>(t, expert, first))
               ? fused_picks_rows(a, call) + begin
               : 2 * a.few + block * S::ROWS;
}

#endif
