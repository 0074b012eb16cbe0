/* Kernel of fused: combine. Warps add up the outputs of each token of a rank and return the sum to
 * the token's rank, which adds up the sums. */
#ifndef FUSED_COMBINE_CUH
#define FUSED_COMBINE_CUH

#include "fused_sums.cuh"

/* Apart: queues each output of a block separately. Called by one warp. */
EPA_DEV void fused_complete_apart(const struct fused_args &a, uint64_t call, uint32_t row,
                                  uint32_t rows)
{
    for (uint32_t r = epa_dev_lane(); r < rows; r += EPA_DEV_WARP) {
        uint4 meta = epa_dev_load16(dev_own(a.c.v, a.recv + (uint64_t)(row + r) * a.message_bytes) +
                                    a.meta_at);
        uint32_t choice = meta.y >> 8 & 0xff;

        a.place[(size_t)meta.x * a.c.topk + choice] = {row + r, 1.0f};
        __threadfence();
        epa_dev_store_release(a.queue + atomicAdd(a.state + FUSED_COMPLETE, 1u),
                              call << 32 | (uint64_t)meta.x << 5 | choice);
    }
    __syncwarp();
}

/* This lane's rows of a block, and their tokens. */
template <class S> struct fused_block_tokens {
    enum { ROWS = S::ROWS, EACH = (ROWS + EPA_DEV_WARP - 1) / EPA_DEV_WARP };
    uint32_t slot[EACH], n[EACH]; /* number of outputs that the token has on this rank */
};

/* Records where the outputs of the tokens of an arrived block will be. Called by one warp. */
template <class S>
EPA_DEV void fused_note_places(const struct fused_args &a, uint32_t block, uint32_t rows,
                               struct fused_block_tokens<S> *b)
{
    enum { EACH = fused_block_tokens<S>::EACH };
    const char *first = dev_own(a.c.v, a.recv + (uint64_t)block * S::ROWS * a.message_bytes);
    uint4 meta[EACH];

#pragma unroll
    for (int i = 0; i < EACH; i++) {
        uint32_t r = min(i * EPA_DEV_WARP + epa_dev_lane(), rows - 1);

        meta[i] = epa_dev_load16(first + (uint64_t)r * a.message_bytes + a.meta_at);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        uint32_t r = i * EPA_DEV_WARP + epa_dev_lane();

        b->slot[i] = meta[i].x;
        b->n[i] = meta[i].y >> 16;
        if (r < rows)
            a.place[(size_t)meta[i].x * a.c.topk + (meta[i].y & (S::WAYS ? 0xff : 0xffff))] = {
                block * S::ROWS + r, __uint_as_float(meta[i].z)};
    }
}

/* Counts the rows of a block for their tokens, early or after their outputs are complete, and
 * queues each token whose outputs on this rank have all been counted. Called by one warp. */
template <class S>
EPA_DEV void fused_count_tokens(const struct fused_args &a, uint64_t call, uint32_t rows,
                                const struct fused_block_tokens<S> &b)
{
    enum { EACH = fused_block_tokens<S>::EACH };
    uint32_t before[EACH];

    __threadfence();
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (i * EPA_DEV_WARP + epa_dev_lane() < rows)
            before[i] = atomicAdd(a.done + b.slot[i], 1u);
    __threadfence();
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (i * EPA_DEV_WARP + epa_dev_lane() < rows && before[i] + 1 == b.n[i]) {
            a.done[b.slot[i]] = 0; /* for the next call */
            *(volatile uint64_t *)(a.queue + atomicAdd(a.state + FUSED_COMPLETE, 1u)) =
                call << 32 | (uint64_t)b.n[i] << 26 | b.slot[i];
        }
    __syncwarp();
}

/* Called by one warp. */
template <class S>
EPA_DEV void fused_complete(const struct fused_args &a, uint64_t call, uint32_t block,
                            uint32_t rows)
{
    struct fused_block_tokens<S> b;

    fused_note_places<S>(a, block, rows, &b);
    fused_count_tokens<S>(a, call, rows, b);
}

/* Blocks that a warp watches one after the other, in the order of units, until they are complete;
 * and its memory for sums. */
struct fused_watch {
    uint32_t index, step, blocks;
    char *staged; /* stages of sums, in warps that have any */
};

/* Returns true if the warp's next block has become complete, after counting its rows. Called by one
 * warp. */
template <class S>
EPA_DEV bool fused_look(const struct fused_args &a, uint64_t call, const struct fused_tables &t,
                        struct fused_watch *w)
{
    uint32_t seen = 0, expert, block;

    if (w->index >= w->blocks)
        return false;
    block = fused_block_of(a, t, w->index);
    if (epa_dev_lane() == 0)
        seen = epa_dev_load_acquire32(fused_outputs(a) + block);
    if (__shfl_sync(EPA_DEV_ALL, seen, 0) != 2 * a.down_tiles || fused_failed(a))
        return false;
    if (S::WAYS && a.ways.apart != 0)
        fused_complete_apart(a, call, block * S::ROWS,
                             fused_block_rows<S::ROWS>(a, t, block, &expert));
    else
        fused_complete<S>(a, call, block, fused_block_rows<S::ROWS>(a, t, block, &expert));
    w->index += w->step;
    return true;
}

/* Returns true for few tokens, which are queued after all of their rows have arrived: the warp that
 * adds up a token waits for its outputs itself, so no step lies between the last output and the
 * sum. */
template <class S> EPA_DEV bool fused_early(const struct fused_args &a)
{
    return !S::WAYS && a.spread != 0;
}

/* Called by one warp. */
template <class S>
EPA_DEV bool fused_queue_early(const struct fused_args &a, uint64_t call,
                               const struct fused_tables &t, struct fused_watch *w)
{
    uint32_t expert;

    for (; w->index < w->blocks; w->index += w->step) {
        if (!fused_wait_arrived_warp<S>(a, t, w->index))
            return false;
        fused_complete<S>(a, call, w->index, fused_block_rows<S::ROWS>(a, t, w->index, &expert));
    }
    return true;
}

/* Waits until this lane's output, in this block, is complete, if the lane has one. Called by one
 * warp. */
EPA_DEV bool fused_wait_block(const struct fused_args &a, bool has, uint32_t block)
{
    bool ok = !has || fused_wait_count(a, fused_outputs(a) + block, 2 * a.down_tiles,
                                       {0, FUSED_WAIT_BLOCK, 0, block});

    ok = __all_sync(EPA_DEV_ALL, ok);
    __syncwarp();
    return ok;
}

/* For few watched blocks: a warp with a block only watches it. The warp reads the rows in advance,
 * and queues their tokens as soon as the block is complete. Called by one warp. */
template <class S>
EPA_DEV bool fused_watch_alone(const struct fused_args &a, uint64_t call,
                               const struct fused_tables &t, struct fused_watch *w)
{
    for (; w->index < w->blocks; w->index += w->step) {
        uint32_t expert, block = fused_block_of(a, t, w->index);
        uint32_t rows = fused_block_rows<S::ROWS>(a, t, block, &expert);
        struct fused_block_tokens<S> b;

        if (!fused_wait_arrived_warp<S>(a, t, block))
            return false;
        fused_note_places<S>(a, block, rows, &b);
        if (!fused_wait_block(a, epa_dev_lane() == 0, block))
            return false;
        fused_count_tokens<S>(a, call, rows, b);
    }
    return true;
}

/* Waits until `n` items of the queue from item i on exist, one per lane; 0: waits until no block is
 * watched. Called by one warp. */
template <class S>
EPA_DEV bool fused_wait_items(const struct fused_args &a, uint64_t call,
                              const struct fused_tables &t, struct fused_watch *w, uint32_t i,
                              uint32_t n, uint64_t *item)
{
    uint32_t own = i + epa_dev_lane();
    bool waits = epa_dev_lane() < max(n, 1u);
    struct epa_dev_poll poll = {};
    uint64_t seen = 0;

    for (;;) {
        bool expired = false;

        if (n == 0)
            waits = waits && w->index < w->blocks;
        else if (waits) {
            seen = epa_dev_load_acquire(a.queue + own);
            waits = seen < call << 32;
        }
        if (!__any_sync(EPA_DEV_ALL, waits))
            break;
        if (waits)
            expired = epa_dev_poll_expired(a.c.v, &poll, a.c.timeout_ns,
                                           {0, FUSED_WAIT_OUTPUTS, 0, own}, seen, call << 32);
        if (__any_sync(EPA_DEV_ALL, expired))
            return false;
        (void)fused_look<S>(a, call, t, w);
    }
    __syncwarp();
    *item = seen;
    return true;
}

/* Takes the next value of a shared counter; lane 0 gets it. */
EPA_DEV uint32_t fused_take_early(const struct fused_args &a, uint32_t counter)
{
    return epa_dev_lane() == 0 ? atomicInc(a.state + counter, INT32_MAX) : 0;
}

/* Called by one warp. */
EPA_DEV uint32_t fused_take(const struct fused_args &a, uint32_t counter)
{
    return __shfl_sync(EPA_DEV_ALL, fused_take_early(a, counter), 0);
}

/* Serial: waits until all outputs of this rank are complete. Called by one warp. */
template <class S>
EPA_DEV bool fused_wait_outputs(const struct fused_args &a, uint64_t call,
                                const struct fused_tables &t, struct fused_watch *w)
{
    uint32_t items = t.scalars[FUSED_ITEMS];
    uint64_t none;
    bool ok = fused_wait_items<S>(a, call, t, w, items, 0, &none);

    if (ok && epa_dev_lane() == 0)
        ok = fused_wait_count(a, a.state + FUSED_COMPLETE, items,
                              {0, FUSED_WAIT_OUTPUTS, 0, items - 1});
    return __all_sync(EPA_DEV_ALL, ok);
}

/* Adds up complete tokens and sends the sums to their ranks: several together, whose flags follow
 * all of the sums. */
template <class S, int SWEEPS, int MANY>
EPA_DEV bool fused_combine_send(const struct fused_args &a, uint64_t call,
                                const struct fused_tables &t, struct fused_watch *w)
{
    uint32_t items = t.scalars[FUSED_ITEMS], taken, i;
    uint64_t item;

    if (S::WAYS && a.ways.serial != 0 && !fused_wait_outputs<S>(a, call, t, w))
        return false;
    if (fused_early<S>(a) && !fused_queue_early<S>(a, call, t, w))
        return false;
    if (!S::WAYS && w->blocks * 3 <= w->step * 2 && !fused_watch_alone<S>(a, call, t, w))
        return false;
    taken = fused_take_early(a, FUSED_SENDING);
    while ((i = __shfl_sync(EPA_DEV_ALL, taken, 0) * a.sums) < items * a.parts) {
        uint32_t part = i % a.parts, n = min(a.sums, items * a.parts - i);
        struct fused_place next;
        uint64_t *flag = NULL;

        /* First the blocks, which other warps may wait for. */
        while (fused_look<S>(a, call, t, w)) {
        }
        if (!fused_wait_items<S>(a, call, t, w, i / a.parts, n, &item))
            return false;
        /* Many tokens: the warp takes the next items, and loads the places of the next token, while
         * it adds up the current one. */
        if (a.sums > 1)
            taken = fused_take_early(a, FUSED_SENDING);
        if (epa_dev_lane() < n) {
            struct fused_sum s = fused_sum_of<S>(a, item);

            flag = fused_flag<S>(a, s.slot / a.c.max_tokens, s.slot % a.c.max_tokens,
                                 fused_which<S>(a, s), part);
        }
        if (fused_early<S>(a)) { /* one item */
            struct fused_sum s = fused_item<S>(a, item, 0);

            next = fused_place_of(a, s);
            if (!fused_wait_block(a, epa_dev_lane() < s.n, next.row / S::ROWS))
                return false;
        }
        if constexpr (SWEEPS == 1) {
            fused_sum_staged<S>(a, item, n, part, w->staged);
        } else {
            next = fused_place_of(a, fused_item<S>(a, item, 0));
            for (uint32_t k = 0; k < n; k++) {
                struct fused_sum s = fused_item<S>(a, item, k);
                struct fused_place place = next;

                next = fused_place_of(a, fused_item<S>(a, item, min(k + 1, n - 1)));
                char *to = fused_sum_to<S>(a, s) + fused_part_at(a, part);

                fused_reduce<S::F16, SWEEPS, MANY>(
                    s.n == 32 ? ~0u : (1u << s.n) - 1,
                    a.y + (uint64_t)place.row * a.c.hidden * 2 + fused_part_at(a, part),
                    place.weight, fused_part_bytes(a, part),
                    [to](uint32_t at, uint4 v) { epa_dev_store16(to + at, v); });
            }
        }
        __syncwarp();
        if (a.direct == 0 && epa_dev_lane() < n)
            epa_dev_store_release(flag, call);
        if (a.sums == 1)
            taken = fused_take_early(a, FUSED_SENDING);
    }
    return fused_wait_items<S>(a, call, t, w, items, 0, &item);
}

/* One rank: writes zeros for tokens without an expert. */
EPA_DEV void fused_combine_none(const struct fused_args &a)
{
    uint32_t lane = epa_dev_lane(), first;

    while ((first = fused_take(a, FUSED_SUMMING) * EPA_DEV_WARP) < a.c.tokens) {
        uint32_t token = min(first + lane, a.c.tokens - 1), left;
        bool none = first + lane < a.c.tokens;

        for (uint32_t k = 0; k < a.c.topk; k++)
            none =
                none && (uint32_t)__ldg(a.c.expert + (size_t)token * a.c.topk + k) >= a.c.experts;
        for (left = __ballot_sync(EPA_DEV_ALL, none); left != 0; left &= left - 1) {
            char *to =
                static_cast<char *>(a.c.out) + (size_t)(first + __ffs(left) - 1) * a.c.hidden * 2;

            for (uint32_t at = lane * 16; at < a.c.hidden * 2; at += 512)
                epa_dev_store16(to + at, make_uint4(0, 0, 0, 0));
        }
    }
}

/* Adds up the sums of all ranks for own tokens. */
template <class S, int SWEEPS, int MANY>
EPA_DEV bool fused_combine_receive(const struct fused_args &a, uint64_t call)
{
    uint32_t lane = epa_dev_lane(), token;

    while ((token = fused_take(a, FUSED_SUMMING)) < a.c.tokens * a.parts) {
        uint32_t rank = ~0u, ranks = 0, part = token % a.parts, source = lane;
        float weight = 1.0f;
        uint64_t seen;
        bool ok = true;

        token /= a.parts;
        if (lane < a.c.topk) {
            uint32_t e = (uint32_t)__ldg(a.c.expert + (size_t)token * a.c.topk + lane);

            rank = e < a.c.experts ? e / a.c.local : ~0u;
        }
        for (uint32_t r = 0; r < a.c.v.size; r++)
            ranks |= __any_sync(EPA_DEV_ALL, rank == r) ? 1u << r : 0;
        if (S::WAYS && a.ways.apart != 0) {
            ranks = __ballot_sync(EPA_DEV_ALL, rank != ~0u);
            source = rank;
            if (rank != ~0u)
                weight = __ldg(a.c.weight + (size_t)token * a.c.topk + lane);
        }
        if ((ranks >> lane & 1) != 0)
            ok = fused_wait_epoch(a, fused_flag<S>(a, a.c.v.rank, token, lane, part), call,
                                  {0, FUSED_WAIT_PARTIAL, source, token}, &seen);
        if (!__all_sync(EPA_DEV_ALL, ok))
            return false;
        __syncwarp();
        if (S::WAYS && (ranks >> lane & 1) == 0)
            source = a.c.v.rank; /* the address is not used */
        char *to =
            static_cast<char *>(a.c.out) + (size_t)token * a.c.hidden * 2 + fused_part_at(a, part);

        fused_reduce<S::F16, SWEEPS, MANY>(
            ranks, fused_partial<S>(a, a.c.v.rank, token, source, lane) + fused_part_at(a, part),
            weight, fused_part_bytes(a, part),
            [to](uint32_t at, uint4 v) { epa_dev_store16(to + at, v); });
    }
    return true;
}

/* Completes own tokens. */
template <class S, int SWEEPS, int MANY>
EPA_DEV void fused_combine_own(const struct fused_args &a, uint64_t call)
{
    fused_stamp(a, call, FUSED_PHASE_SUM, false);
    if (a.direct != 0)
        fused_combine_none(a);
    else
        (void)fused_combine_receive<S, SWEEPS, MANY>(a, call);
    fused_stamp(a, call, FUSED_PHASE_SUM, true);
}

template <class S, int SWEEPS, int MANY>
EPA_DEV void fused_combine(const struct fused_args &a, uint64_t call, const struct fused_tables &t,
                           struct fused_watch w)
{
    bool ok;

    fused_stamp(a, call, FUSED_PHASE_SEND, false);
    ok = fused_combine_send<S, SWEEPS, MANY>(a, call, t, &w);
    fused_stamp(a, call, FUSED_PHASE_SEND, true);
    if (ok && (!S::WAYS || a.ways.reducers == 0))
        fused_combine_own<S, SWEEPS, MANY>(a, call);
}
#endif
