/* Of the kernel of fused: calls of few tokens, but more than fused_few.cuh takes: up to
 * FUSED_PICKED of all ranks. As there, a row is stored where its rank and token say, once for all
 * experts of a rank, and leaves before anything has arrived; all ranks get the choices of all
 * tokens instead of counts, and sums return in packets.
 *
 * An expert multiplies only rows that chose it, in the order of their places. From the choices
 * each block knows them, and which experts a sum has: nothing is counted or queued.
 *
 * Sets and flags are those of fused_few.cuh. */
#ifndef FUSED_PICKS_CUH
#define FUSED_PICKS_CUH

#include "fused_few.cuh"

/* Words of a bit for each token. */
EPA_DEV uint32_t fused_picks_words(const struct fused_args &a)
{
    return (a.few + 31) / 32;
}

/* The first row of the set. */
EPA_DEV uint32_t fused_picks_rows(const struct fused_args &a, uint64_t call)
{
    return call % 2 * a.few;
}

/* Of this call: counters here are 0. */
EPA_DEV uint64_t *fused_picks_cleared(const struct fused_args &a)
{
    return reinterpret_cast<uint64_t *>(a.sum[0]);
}

/* The first block: counters that others add to when they have seen that they are 0. */
static __device__ __noinline__ void fused_picks_reset(const struct fused_args &a, uint64_t call)
{
    fused_clear(a.state, FUSED_COUNTERS + a.c.experts + 3 * a.blocks);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        epa_dev_store_release(fused_picks_cleared(a), call);
}

/* Packets of experts of a token, its first; of weights. */
EPA_DEV uint32_t fused_picks_experts_at(const struct fused_args &a, uint32_t slot)
{
    return slot * fused_picks_experts(a.c.topk);
}

EPA_DEV uint32_t fused_picks_weights_at(const struct fused_args &a, uint32_t slot)
{
    uint32_t experts = fused_picks_experts(a.c.topk);

    return a.few * experts + slot * (fused_picks_packets(a.c.topk) - experts);
}

/* All ranks get the choices of the tokens that this block sends, as many at a time as a warp has
 * lanes for: each has a choice. One warp. */
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

/* How many of the tokens before `slot` have my expert. */
EPA_DEV uint32_t fused_picks_before(const struct fused_args &a, const struct fused_tables &t,
                                    uint32_t expert, uint32_t slot)
{
    const uint32_t *wants = t.wants + expert * fused_picks_words(a);
    uint32_t n = __popc(wants[slot / 32] & ((1u << slot % 32) - 1));

    for (uint32_t w = 0; w < slot / 32; w++)
        n += __popc(wants[w]);
    return n;
}

/* `EACH` packets of experts, the i-th and those that follow by FUSED_THREADS, when all are here.
 * Only the first is looked at again and again. */
template <int EACH>
EPA_DEV bool fused_picks_choices(const struct fused_args &a, uint64_t call, uint32_t i,
                                 uint32_t all, uint64_t (&value)[EACH])
{
    const char *from = dev_own(a.c.v, a.counts[call % 2]);
    uint32_t each = fused_picks_experts_at(a, a.c.max_tokens);
    struct epa_dev_poll poll = {};

    for (;;) {
        uint64_t seen[EACH], least;
        uint32_t missing = i;

        epa_dev_load_pair(from + (uint64_t)i * 16, &value[0], &seen[0]);
        least = seen[0];
        if (least >= call) {
#pragma unroll
            for (int j = 1; j < EACH; j++) { /* those beyond are read again, for nothing */
                uint32_t own = i + j * FUSED_THREADS;

                epa_dev_load_pair(from + (uint64_t)(own < all ? own : i) * 16, &value[j], &seen[j]);
            }
#pragma unroll
            for (int j = 1; j < EACH; j++)
                if (seen[j] < least) {
                    least = seen[j];
                    missing = i + j * FUSED_THREADS;
                }
            if (least >= call)
                return true;
        }
        if (epa_dev_poll_expired(a.c.v, &poll, a.c.timeout_ns,
                                 {0, FUSED_WAIT_CHOICES, missing / each, missing % each}, least,
                                 call))
            return false;
    }
}

/* Those choices are noted. */
template <int EACH>
EPA_DEV bool fused_picks_note(const struct fused_args &a, uint64_t call,
                              const struct fused_tables &t)
{
    uint32_t each = fused_picks_experts(a.c.topk), all = a.few * each, words = fused_picks_words(a);
    bool ok = true;

    for (uint32_t i = threadIdx.x; i < all; i += EACH * FUSED_THREADS) {
        uint64_t value[EACH];

        ok = ok && fused_picks_choices<EACH>(a, call, i, all, value);
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            uint32_t own = i + j * FUSED_THREADS, slot = own / each, first = own % each * 4;

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

/* One warp: blocks for the experts here that have rows. */
template <class S>
EPA_DEV void fused_picks_place(const struct fused_args &a, const struct fused_tables &t)
{
    uint32_t lane = epa_dev_lane(), words = fused_picks_words(a), base = 0, rows = 0, sum;

    for (uint32_t i = lane; i - lane < a.c.local; i += EPA_DEV_WARP) {
        uint32_t n = 0, at;

        for (uint32_t w = 0; i < a.c.local && w < words; w++) /* each lane in another bank */
            n += __popc(t.wants[i * words + (w + lane) % words]);
        at = base + fused_scan((n + S::ROWS - 1) / S::ROWS, &sum);
        base += sum;
        if (i < a.c.local) {
            t.rows[i] = n;
            t.block_at[i] = at;
        }
        at = rows + fused_scan(n, &sum);
        rows += sum;
        if (i < a.c.local)
            t.pick_at[i] = at;
    }
    if (lane == 0)
        t.block_at[a.c.local] = base;
    if (lane == 0)
        t.pick_at[a.c.local] = rows;
    __syncwarp();
}

/* The choices of all ranks, and what follows from them: blocks and units. All of the block, which
 * meets before it uses them. */
template <class S>
static __device__ __noinline__ bool fused_picks_prepare(const struct fused_args &a, uint64_t call,
                                                        const struct fused_tables &t)
{
    bool ok = a.few * fused_picks_experts(a.c.topk) <= FUSED_THREADS
                  ? fused_picks_note<1>(a, call, t)
                  : fused_picks_note<6>(a, call, t);
    uint64_t seen;

    if (threadIdx.x == FUSED_THREADS - 1)
        ok = ok && fused_wait_epoch(a, fused_picks_cleared(a), call,
                                    {0, FUSED_WAIT_CHOICES, a.c.v.rank, 0}, &seen);
    if (!__syncthreads_and(ok))
        return false;
    if (threadIdx.x < EPA_DEV_WARP) {
        fused_picks_place<S>(a, t);
        fused_place_units<S>(a, NULL, t);
    }
    return true;
}

/* Until the row of a token that comes here has. One thread. */
EPA_DEV bool fused_picks_wait_row(const struct fused_args &a, uint64_t call, uint32_t slot)
{
    uint64_t seen;

    return fused_wait_epoch(a, fused_few_flag(a, a.c.v.rank, slot), call,
                            {0, FUSED_WAIT_TOKEN, slot / a.c.max_tokens, slot % a.c.max_tokens},
                            &seen);
}

/* ---- picked rows ----
 *
 * A tile loads rows that follow each other. Those of an expert mostly do not, so they are copied to
 * where they do, behind the two sets; those of a block that do stay where they are. Both are
 * counted for their block. */

/* Words of my expert's mask that this lane looks at, two that follow each other. */
struct fused_picked_words {
    uint32_t low, high;
};

EPA_DEV struct fused_picked_words fused_picks_mask(const struct fused_args &a,
                                                   const struct fused_tables &t, uint32_t expert)
{
    uint32_t words = fused_picks_words(a), w = 2 * epa_dev_lane();
    const uint32_t *wants = t.wants + expert * words;

    return {w < words ? wants[w] : 0, w + 1 < words ? wants[w + 1] : 0};
}

/* The row that an expert multiplies as its n-th: that of its n-th bit. One warp. */
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

/* The rows of a block of an expert: those that it multiplies as its `first`-th and so on. */
struct fused_picked {
    uint32_t first, rows;
};

template <uint32_t ROWS>
EPA_DEV struct fused_picked fused_picks_block(const struct fused_tables &t, uint32_t expert,
                                              uint32_t block)
{
    uint32_t before = (block - t.block_at[expert]) * ROWS;

    return {before, min(ROWS, t.rows[expert] - before)};
}

/* Whether they follow each other, from row *begin on. One warp. */
EPA_DEV bool fused_picks_follow(const struct fused_args &a, const struct fused_tables &t,
                                uint32_t expert, const struct fused_picked &p, uint32_t *begin)
{
    *begin = fused_picks_nth(a, t, expert, p.first);
    return fused_picks_nth(a, t, expert, p.first + p.rows - 1) - *begin + 1 == p.rows;
}

/* A row that an expert multiplies, this lane's. */
struct fused_pick {
    uint32_t slot, block;
    uint64_t to; /* its row where those of the block follow each other */
    bool copied; /* they do not by themselves */
};

/* The i-th of all, of which a lane has one each: that of lane `of` is looked for. One warp. */
template <class S>
EPA_DEV void fused_picks_find(const struct fused_args &a, const struct fused_tables &t, uint32_t i,
                              uint32_t of, struct fused_pick *pick)
{
    uint32_t expert = device_cell_of(t.pick_at, a.c.local, i), n = i - t.pick_at[expert];
    uint32_t block = t.block_at[expert] + n / S::ROWS, begin;
    uint32_t slot = fused_picks_nth(a, t, expert, n);
    struct fused_picked p = fused_picks_block<S::ROWS>(t, expert, block);
    bool follow = fused_picks_follow(a, t, expert, p, &begin);

    if (epa_dev_lane() == of)
        *pick = {slot, block, 2 * a.few + (uint64_t)block * S::ROWS + n - p.first, !follow};
}

/* The warps that multiply, `warp` of them this one, before they do. A warp has a few rows under way
 * at a time. */
template <class S>
EPA_DEV void fused_picks_copy(const struct fused_args &a, uint64_t call,
                              const struct fused_tables &t, uint32_t warp)
{
    enum { MOST = 4 };
    uint32_t all = t.pick_at[a.c.local], warps = FUSED_MATH_WARPS * gridDim.x;
    uint32_t each = min((all + warps - 1) / warps, (uint32_t)MOST);
    char *recv = dev_own(a.c.v, a.recv);

    for (uint32_t i = (blockIdx.x + warp * gridDim.x) * each; i < all; i += warps * each) {
        uint32_t n = min(each, all - i);
        bool has = epa_dev_lane() < n, ok = true;
        struct fused_pick pick = {};

        for (uint32_t k = 0; k < n; k++)
            fused_picks_find<S>(a, t, i + k, k, &pick);
        if (has)
            ok = fused_picks_wait_row(a, call, pick.slot);
        if (!__all_sync(EPA_DEV_ALL, ok))
            return;
        __syncwarp();
        fused_copy_rows(__ballot_sync(EPA_DEV_ALL, has && pick.copied),
                        recv + (uint64_t)(fused_picks_rows(a, call) + pick.slot) * a.message_bytes,
                        recv + pick.to * a.message_bytes, a.meta_at);
        __syncwarp();
        if (has)
            epa_dev_add_release_gpu(fused_copied(a) + pick.block, 1);
        __syncwarp();
    }
}

/* The first row of an up tile. One warp. */
template <class S>
EPA_DEV uint32_t fused_picks_first(const struct fused_args &a, uint64_t call,
                                   const struct fused_tables &t, uint32_t expert, uint32_t block)
{
    uint32_t begin;

    return fused_picks_follow(a, t, expert, fused_picks_block<S::ROWS>(t, expert, block), &begin)
               ? fused_picks_rows(a, call) + begin
               : 2 * a.few + block * S::ROWS;
}

/* ---- combine ---- */

/* Where experts have rows of their own, warps 2 and 3 add up while tiles run: first the tokens
 * whose last expert here comes first. One warp: that order, from its end. */
EPA_DEV void fused_picks_order(const struct fused_args &a, const struct fused_tables &t,
                               uint64_t *ordered)
{
    struct fused_picked_words left = {};
    uint32_t lane = epa_dev_lane(), end, sum;

    for (uint32_t e = 0; e < a.c.local; e++) {
        struct fused_picked_words mask = fused_picks_mask(a, t, e);

        left.low |= mask.low;
        left.high |= mask.high;
    }
    (void)fused_scan(__popc(left.low) + __popc(left.high), &end);
    if (lane == 0)
        t.scalars[FUSED_HERE] = end;
    for (uint32_t e = a.c.local; e-- > 0 && end > 0;) {
        struct fused_picked_words last = fused_picks_mask(a, t, e);
        uint32_t at;

        last.low &= left.low;
        last.high &= left.high;
        left.low &= ~last.low;
        left.high &= ~last.high;
        at = fused_scan(__popc(last.low) + __popc(last.high), &sum);
        end -= sum;
        for (at += end; last.low != 0; last.low &= last.low - 1)
            t.order[at++] = (uint16_t)(lane * 64 + __ffs(last.low) - 1);
        for (; last.high != 0; last.high &= last.high - 1)
            t.order[at++] = (uint16_t)(lane * 64 + 32 + __ffs(last.high) - 1);
    }
    __syncwarp();
    if (lane == 0)
        epa_dev_mbar_arrive(ordered);
}

/* The expert of a choice, which is here. */
EPA_DEV uint32_t fused_picks_expert(const struct fused_args &a, uint64_t call, uint32_t slot,
                                    uint32_t k)
{
    uint64_t experts, seen;

    epa_dev_load_pair(dev_own(a.c.v, a.counts[call % 2]) +
                          (uint64_t)(fused_picks_experts_at(a, slot) + k / 4) * 16,
                      &experts, &seen);
    return (uint32_t)(experts >> 16 * (k % 4)) & 0xffff;
}

/* Weights of two choices. */
struct fused_picked_weights {
    uint64_t pair, seen; /* which call it is of */
};

/* Asked for; they are used when outputs are there. */
EPA_DEV struct fused_picked_weights fused_picks_ask(const struct fused_args &a, uint64_t call,
                                                    uint32_t slot, uint32_t k)
{
    struct fused_picked_weights w;

    epa_dev_load_pair(dev_own(a.c.v, a.counts[call % 2]) +
                          (uint64_t)(fused_picks_weights_at(a, slot) + k / 2) * 16,
                      &w.pair, &w.seen);
    return w;
}

/* That of choice k, when it is here. */
EPA_DEV bool fused_picks_weight(const struct fused_args &a, uint64_t call, uint32_t slot,
                                uint32_t k, struct fused_picked_weights w, float *weight)
{
    bool ok = w.seen >= call ||
              fused_wait_packet(
                  a, call, fused_picks_weights_at(a, slot) + k / 2,
                  {0, FUSED_WAIT_CHOICES, slot / a.c.max_tokens, slot % a.c.max_tokens}, &w.pair);

    *weight = __uint_as_float((uint32_t)(w.pair >> 32 * (k % 2)));
    return ok;
}

/* Sums of the outputs here, to the ranks of the tokens, also where each expert multiplies all rows.
 * One warp. */
template <class S>
EPA_DEV bool fused_few_combine(const struct fused_args &a, uint64_t call,
                               const struct fused_tables &t, uint64_t *ordered)
{
    uint32_t lane = epa_dev_lane(), tokens = a.few, i;

    if (S::PICKS) {
        epa_dev_mbar_wait(ordered, 0);
        tokens = t.scalars[FUSED_HERE];
    }
    while ((i = fused_take(a, FUSED_SENDING)) < tokens * a.parts) {
        uint32_t slot = S::PICKS ? t.order[i / a.parts] : i / a.parts, part = i % a.parts;
        uint32_t block = 0, row = S::PICKS ? 0 : slot, at = fused_part_at(a, part), lanes;
        float weight = 0.0f;
        bool here = false;
        struct fused_picked_weights weights = {};

        if (lane < a.c.topk) {
            uint32_t expert = S::PICKS ? fused_picks_expert(a, call, slot, lane)
                                       : t.choice[slot * a.c.topk + lane];

            here = expert / a.c.local == a.c.v.rank;
            if (!S::PICKS)
                weight = t.weight[slot * a.c.topk + lane];
            else if (here)
                weights = fused_picks_ask(a, call, slot, lane);
            if (here) { /* a block has all rows of few tokens */
                row = S::PICKS ? fused_picks_before(a, t, expert % a.c.local, slot) : row;
                block = t.block_at[expert % a.c.local] + (S::PICKS ? row / S::ROWS : 0);
            }
        }
        lanes = __ballot_sync(EPA_DEV_ALL, here);
        if (lanes == 0)
            continue;
        if (!fused_wait_block(a, here, block) ||
            (S::PICKS && !__all_sync(EPA_DEV_ALL, !here || fused_picks_weight(a, call, slot, lane,
                                                                              weights, &weight))))
            return false;
        fused_reduce<S::F16, 1, 8>(
            lanes,
            a.y + ((uint64_t)block * S::ROWS + (S::PICKS ? row % S::ROWS : row)) * a.c.hidden * 2 +
                at,
            weight, fused_part_bytes(a, part),
            [&](uint32_t own, uint4 sum) { fused_few_store(a, call, slot, (at + own) / 2, sum); });
    }
    return true;
}

template <class S>
EPA_DEV void fused_few_end(const struct fused_args &a, uint64_t call, const struct fused_tables &t,
                           uint64_t *ordered)
{
    bool ok;

    fused_stamp(a, call, FUSED_PHASE_SEND, false);
    ok = fused_few_combine<S>(a, call, t, ordered);
    fused_stamp(a, call, FUSED_PHASE_SEND, true);
    fused_stamp(a, call, FUSED_PHASE_SUM, false);
    if (ok && a.direct != 0)
        fused_combine_none(a);
    else if (ok)
        (void)fused_few_receive<S>(a, call);
    fused_stamp(a, call, FUSED_PHASE_SUM, true);
}

#endif
