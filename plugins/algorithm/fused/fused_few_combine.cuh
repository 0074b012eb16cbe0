/* Kernel of fused: calls of few tokens: the outputs of a sum, and combine (fused_few.cuh,
 * fused_picks.cuh). */
#ifndef FUSED_FEW_COMBINE_CUH
#define FUSED_FEW_COMBINE_CUH

#include "fused_picks.cuh"

/* Computes the order of tokens for sums, from its end. With picked rows, warps 2 and 3 add up while
 * tiles run, and begin with the tokens whose last local expert is the lowest. Called by one
 * warp. */
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
    epa_dev_mbar_arrive(ordered); /* each lane releases its own part of the order */
}

/* Returns the expert of choice k, which has arrived. */
EPA_DEV uint32_t fused_picks_expert(const struct fused_args &a, uint64_t call, uint32_t slot,
                                    uint32_t k)
{
    uint64_t experts, seen;

    epa_dev_load_pair(dev_own(a.c.v, a.counts[call % 2]) +
                          (uint64_t)(fused_picks_experts_at(a, slot) + k / 4) * 16,
                      &experts, &seen);
    return (uint32_t)(experts >> 16 * (k % 4)) & 0xffff;
}

/* A packet of the weights of two choices. */
struct fused_picked_weights {
    uint64_t pair, seen; /* seen: call of the packet */
};

/* Loads the weights early; their use is after the wait for outputs. */
EPA_DEV struct fused_picked_weights fused_picks_ask(const struct fused_args &a, uint64_t call,
                                                    uint32_t slot, uint32_t k)
{
    struct fused_picked_weights w;

    epa_dev_load_pair(dev_own(a.c.v, a.counts[call % 2]) +
                          (uint64_t)(fused_picks_weights_at(a, slot) + k / 2) * 16,
                      &w.pair, &w.seen);
    return w;
}

/* Waits for the weight of choice k. */
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

/* Adds up the outputs on this rank and sends the sums to the ranks of the tokens, for both kinds of
 * few tokens. Called by one warp. */
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
