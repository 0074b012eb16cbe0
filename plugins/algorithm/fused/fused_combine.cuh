/* Of the kernel of fused: combine. Outputs are added up for each token of a rank, return to it, and
 * are added up there. */
#ifndef FUSED_COMBINE_CUH
#define FUSED_COMBINE_CUH

#include "fused_tokens.cuh"

/* Apart: the outputs of a block are queued, each by itself. One warp. */
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

/* A block whose outputs are complete: a token that has all of its outputs here is queued. One
 * warp. */
template <class S>
EPA_DEV void fused_complete(const struct fused_args &a, uint64_t call, uint32_t block,
                            uint32_t rows)
{
    enum { ROWS = S::ROWS, EACH = (ROWS + EPA_DEV_WARP - 1) / EPA_DEV_WARP };
    const char *first = dev_own(a.c.v, a.recv + (uint64_t)block * ROWS * a.message_bytes);
    uint32_t slot[EACH], n[EACH], before[EACH];
    uint4 meta[EACH];

#pragma unroll
    for (int i = 0; i < EACH; i++) {
        uint32_t r = min(i * EPA_DEV_WARP + epa_dev_lane(), rows - 1);

        meta[i] = epa_dev_load16(first + (uint64_t)r * a.message_bytes + a.meta_at);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        uint32_t r = i * EPA_DEV_WARP + epa_dev_lane();

        slot[i] = meta[i].x;
        n[i] = meta[i].y >> 16;
        if (r < rows)
            a.place[(size_t)slot[i] * a.c.topk + (meta[i].y & (S::WAYS ? 0xff : 0xffff))] = {
                block * ROWS + r, __uint_as_float(meta[i].z)};
    }
    __threadfence();
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (i * EPA_DEV_WARP + epa_dev_lane() < rows)
            before[i] = atomicAdd(a.done + slot[i], 1u);
    __threadfence();
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (i * EPA_DEV_WARP + epa_dev_lane() < rows && before[i] + 1 == n[i]) {
            a.done[slot[i]] = 0; /* for the next call */
            *(volatile uint64_t *)(a.queue + atomicAdd(a.state + FUSED_COMPLETE, 1u)) =
                call << 32 | (uint64_t)n[i] << 26 | slot[i];
        }
    __syncwarp();
}

/* Blocks that a warp watches until they are complete, one after the other in the order of units,
 * and what it adds up with. */
struct fused_watch {
    uint32_t index, step, blocks;
    char *staged; /* stages of sums, for who has any */
};

/* Has its next block become complete? Then what waits for it is counted. One warp. */
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

/* Few tokens are queued when all of their rows have arrived: who adds up one waits for its outputs,
 * and nothing is between the last of them and the sum. */
template <class S> EPA_DEV bool fused_early(const struct fused_args &a)
{
    return !S::WAYS && a.spread != 0;
}

/* One warp. */
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

/* Until this lane's output, of this block, is there, where it has one. One warp. */
EPA_DEV bool fused_wait_block(const struct fused_args &a, bool has, uint32_t block)
{
    bool ok = !has || fused_wait_count(a, fused_outputs(a) + block, 2 * a.down_tiles,
                                       {0, FUSED_WAIT_BLOCK, 0, block});

    ok = __all_sync(EPA_DEV_ALL, ok);
    __syncwarp();
    return ok;
}

/* Until `n` items of the queue from the i-th on are there, one a lane; 0: until no block is
 * watched. One warp. */
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

/* The next of what warps take in turn: lane 0 gets it. */
EPA_DEV uint32_t fused_take_early(const struct fused_args &a, uint32_t counter)
{
    return epa_dev_lane() == 0 ? atomicInc(a.state + counter, INT32_MAX) : 0;
}

/* One warp. */
EPA_DEV uint32_t fused_take(const struct fused_args &a, uint32_t counter)
{
    return __shfl_sync(EPA_DEV_ALL, fused_take_early(a, counter), 0);
}

/* Adds up parts of rows of 16 bits, `bytes` of them, one for each set bit of `lanes`, which has its
 * pointer and its weight, in their order. 512 bytes, SWEEPS times, of MANY rows are on their way
 * together. store(at, sum): a lane's 16 bytes. One warp. */
template <bool F16, int SWEEPS, int MANY, class STORE>
EPA_DEV void fused_reduce(uint32_t lanes, const char *row, float weight, uint32_t bytes,
                          STORE store)
{
    uint32_t lane = epa_dev_lane();

    for (uint32_t from = 0; from < bytes; from += SWEEPS * 512) {
        float sum[SWEEPS][8] = {};

        for (uint32_t left = lanes; left != 0;) {
            uint4 v[SWEEPS][MANY];
            uint32_t used = left, who = 0;

            /* Those beyond are loaded again, for nothing. */
#pragma unroll
            for (int i = 0; i < MANY; i++) {
                who = left != 0 ? __ffs(left) - 1 : who;
                const char *p = dev_from_lane(row, who);

#pragma unroll
                for (int s = 0; s < SWEEPS; s++)
                    v[s][i] = fused_load16_now(p + min(from + s * 512 + lane * 16, bytes - 16));
                left &= left - 1;
            }
#pragma unroll
            for (int i = 0; i < MANY; i++) {
                float w;

                if (used == 0)
                    break;
                w = __shfl_sync(EPA_DEV_ALL, weight, __ffs(used) - 1);
                used &= used - 1;
#pragma unroll
                for (int s = 0; s < SWEEPS; s++) {
                    float value[8];

                    epa_dev_unpack<F16>(v[s][i], value);
                    dev_add8(value, w, sum[s]);
                }
            }
        }
#pragma unroll
        for (int s = 0; s < SWEEPS; s++)
            if (from + s * 512 + lane * 16 < bytes)
                store(from + s * 512 + lane * 16, epa_dev_pack<F16>(sum[s]));
    }
}

/* Bytes of a row before a part, and in it. */
EPA_DEV uint32_t fused_part_at(const struct fused_args &a, uint32_t part)
{
    return part * a.part_channels * 2;
}

EPA_DEV uint32_t fused_part_bytes(const struct fused_args &a, uint32_t part)
{
    return min(a.part_channels, a.c.hidden - part * a.part_channels) * 2;
}

/* What returns for a token, and which of it: a sum from each rank, or each choice apart. */
template <class S> EPA_DEV uint32_t fused_returns(const struct fused_args &a)
{
    return S::WAYS && a.ways.apart != 0 ? a.c.topk : a.c.v.size;
}

template <class S>
EPA_DEV char *fused_partial(const struct fused_args &a, uint32_t owner, uint32_t token,
                            uint32_t source, uint32_t which)
{
    if (S::WAYS && a.ways.gathers != 0) {
        uint64_t row = (uint64_t)owner * a.c.max_tokens + token;

        row = a.ways.apart != 0 ? row * a.c.topk + which : row;
        return a.c.v.peer_heap[source] + a.partial + row * a.c.hidden * 2;
    }
    return a.c.v.peer_heap[owner] + a.partial +
           ((uint64_t)token * fused_returns<S>(a) + which) * a.c.hidden * 2;
}

template <class S>
EPA_DEV uint64_t *fused_flag(const struct fused_args &a, uint32_t owner, uint32_t token,
                             uint32_t which, uint32_t part)
{
    return reinterpret_cast<uint64_t *>(a.c.v.peer_heap[owner] + a.flags) +
           ((uint64_t)token * fused_returns<S>(a) + which) * a.parts + part;
}

/* Serial: until all outputs of this rank are complete. One warp. */
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

/* An item of the queue: a token whose `n` outputs here are complete; or apart, its output
 * `first`. */
struct fused_sum {
    uint32_t n, slot, first;
};

template <class S> EPA_DEV struct fused_sum fused_sum_of(const struct fused_args &a, uint64_t item)
{
    uint32_t low = (uint32_t)item;

    if (S::WAYS && a.ways.apart != 0)
        return {1, low >> 5, low & 31};
    return {low >> 26, low & ((1u << 26) - 1), 0};
}

/* The item that lane `k` has. */
template <class S>
EPA_DEV struct fused_sum fused_item(const struct fused_args &a, uint64_t item, uint32_t k)
{
    return fused_sum_of<S>(a, __shfl_sync(EPA_DEV_ALL, (unsigned long long)item, k));
}

/* A lane's output of a sum. */
EPA_DEV struct fused_place fused_place_of(const struct fused_args &a, const struct fused_sum &s)
{
    uint2 raw = {};

    if (epa_dev_lane() < s.n)
        raw =
            __ldcg(reinterpret_cast<const uint2 *>(a.place + (size_t)s.slot * a.c.topk + s.first) +
                   epa_dev_lane());
    return {raw.x, __uint_as_float(raw.y)};
}

/* Which of what returns to its token. */
template <class S>
EPA_DEV uint32_t fused_which(const struct fused_args &a, const struct fused_sum &s)
{
    return S::WAYS && a.ways.apart != 0 ? s.first : a.c.v.rank;
}

/* Where it goes. */
template <class S> EPA_DEV char *fused_sum_to(const struct fused_args &a, const struct fused_sum &s)
{
    uint32_t owner = s.slot / a.c.max_tokens, token = s.slot % a.c.max_tokens;

    return a.direct != 0 ? static_cast<char *>(a.c.out) + (size_t)token * a.c.hidden * 2
                         : fused_partial<S>(a, owner, token, a.c.v.rank, fused_which<S>(a, s));
}

/* A step of the sums of a few tokens: FUSED_STAGE_PART bytes of up to FUSED_STAGE_ROWS rows. */
struct fused_step {
    uint32_t k, at, first; /* token; bytes of its part, rows of it before */
    struct fused_sum sum;
    struct fused_place place; /* a lane's */
};

template <class S>
EPA_DEV void fused_step_begin(const struct fused_args &a, uint64_t item, uint32_t n, uint32_t k,
                              struct fused_step *s)
{
    s->k = k;
    s->at = s->first = 0;
    if (k >= n)
        return;
    s->sum = fused_item<S>(a, item, k);
    s->place = fused_place_of(a, s->sum);
}

template <class S>
EPA_DEV void fused_step_next(const struct fused_args &a, uint64_t item, uint32_t n, uint32_t bytes,
                             struct fused_step *s)
{
    s->first += FUSED_STAGE_ROWS;
    if (s->first < s->sum.n)
        return;
    s->first = 0;
    s->at += FUSED_STAGE_PART;
    if (s->at >= bytes)
        fused_step_begin<S>(a, item, n, s->k + 1, s);
}

/* Copies what a step adds up into its stage: four lanes a row. */
EPA_DEV void fused_step_load(const struct fused_args &a, const struct fused_step &s, uint32_t n,
                             uint32_t begin, uint32_t bytes, char *stage)
{
    uint32_t own = epa_dev_lane() / 4, at = s.at + epa_dev_lane() % 4 * 16;
    uint32_t row = __shfl_sync(EPA_DEV_ALL, s.place.row, (s.first + own) % EPA_DEV_WARP);

    if (s.k < n && s.first + own < s.sum.n) {
        const char *from = a.y + (uint64_t)row * a.c.hidden * 2 + begin + at;
        char *to = stage + own * FUSED_STAGE_PART + epa_dev_lane() % 4 * 16;

#pragma unroll
        for (uint32_t j = 0; j < FUSED_STAGE_PART / 64; j++)
            if (at + j * 64 < bytes)
                epa_dev_copy16(to + j * 64, from + j * 64);
    }
    epa_dev_copy_commit();
}

/* Adds up a part of `n` items, one a lane. What the next steps need is on its way to shared memory
 * meanwhile, a.stages of them. One warp. */
template <class S>
EPA_DEV void fused_sum_staged(const struct fused_args &a, uint64_t item, uint32_t n, uint32_t part,
                              char *stages)
{
    uint32_t lane = epa_dev_lane(), begin = fused_part_at(a, part), stage = 0;
    uint32_t bytes = fused_part_bytes(a, part);
    struct fused_step load = {}, use = {};
    float sum[8] = {};

    fused_step_begin<S>(a, item, n, 0, &load);
    use = load;
    for (uint32_t i = 0; i < a.stages; i++) {
        fused_step_load(a, load, n, begin, bytes, stages + i * FUSED_STAGE_BYTES);
        if (load.k < n)
            fused_step_next<S>(a, item, n, bytes, &load);
    }
    while (use.k < n) {
        char *from = stages + stage * FUSED_STAGE_BYTES;

        if (a.stages == FUSED_STAGES)
            epa_dev_copy_wait<FUSED_STAGES - 1>();
        else if (a.stages > 1)
            epa_dev_copy_wait<1>();
        else
            epa_dev_copy_wait<0>();
        __syncwarp();
#pragma unroll
        for (uint32_t i = 0; i < FUSED_STAGE_ROWS; i++) {
            float value[8], weight;

            if (use.first + i >= use.sum.n)
                break;
            weight = __shfl_sync(EPA_DEV_ALL, use.place.weight, use.first + i);
            epa_dev_unpack<S::F16>(
                *reinterpret_cast<const uint4 *>(from + i * FUSED_STAGE_PART + lane * 16), value);
            dev_add8(value, weight, sum);
        }
        if (use.first + FUSED_STAGE_ROWS >= use.sum.n) {
            if (use.at + lane * 16 < bytes)
                epa_dev_store16(fused_sum_to<S>(a, use.sum) + begin + use.at + lane * 16,
                                epa_dev_pack<S::F16>(sum));
#pragma unroll
            for (int j = 0; j < 8; j++)
                sum[j] = 0.0f;
        }
        fused_step_next<S>(a, item, n, bytes, &use);
        __syncwarp();
        fused_step_load(a, load, n, begin, bytes, from);
        if (load.k < n)
            fused_step_next<S>(a, item, n, bytes, &load);
        stage = stage + 1 == a.stages ? 0 : stage + 1;
    }
    epa_dev_copy_wait<0>();
}

/* Tokens that are complete here, added up and sent to their rank: a few together, whose flags
 * follow all of them. */
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
    taken = fused_take_early(a, FUSED_SENDING);
    while ((i = __shfl_sync(EPA_DEV_ALL, taken, 0) * a.sums) < items * a.parts) {
        uint32_t part = i % a.parts, n = min(a.sums, items * a.parts - i);
        struct fused_place next;
        uint64_t *flag = NULL;

        /* First what others may wait for. */
        while (fused_look<S>(a, call, t, w)) {
        }
        if (!fused_wait_items<S>(a, call, t, w, i / a.parts, n, &item))
            return false;
        /* Many: the next are taken, and places of a token are loaded, while one is added up. */
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

/* One rank: tokens that no expert has. */
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

/* Own tokens: the sums of all ranks, which are added up. */
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
            source = a.c.v.rank; /* its pointer is not used */
        char *to =
            static_cast<char *>(a.c.out) + (size_t)token * a.c.hidden * 2 + fused_part_at(a, part);

        fused_reduce<S::F16, SWEEPS, MANY>(
            ranks, fused_partial<S>(a, a.c.v.rank, token, source, lane) + fused_part_at(a, part),
            weight, fused_part_bytes(a, part),
            [to](uint32_t at, uint4 v) { epa_dev_store16(to + at, v); });
    }
    return true;
}

template <class S, int SWEEPS, int MANY>
EPA_DEV void fused_combine(const struct fused_args &a, uint64_t call, const struct fused_tables &t,
                           struct fused_watch w)
{
    bool ok;

    fused_stamp(a, call, FUSED_PHASE_SEND, false);
    ok = fused_combine_send<S, SWEEPS, MANY>(a, call, t, &w);
    fused_stamp(a, call, FUSED_PHASE_SEND, true);
    fused_stamp(a, call, FUSED_PHASE_SUM, false);
    if (ok && a.direct != 0)
        fused_combine_none(a);
    else if (ok)
        (void)fused_combine_receive<S, SWEEPS, MANY>(a, call);
    fused_stamp(a, call, FUSED_PHASE_SUM, true);
}
#endif
