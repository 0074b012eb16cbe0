/* Kernel of fused: counts. Each rank announces its number of rows per expert. From the counts of
 * all ranks follow the places of all rows: blocks of rows, and units of blocks. */
#ifndef FUSED_COUNTS_CUH
#define FUSED_COUNTS_CUH

#include "fused_tokens.cuh"

EPA_DEV uint32_t fused_count_words(const struct fused_args &a)
{
    return a.waves * a.c.experts + a.c.v.size;
}

/* Clears words. This block is one of `of` blocks that clear together, with `threads` threads
 * each. */
EPA_DEV void fused_clear(uint32_t *words, uint32_t n, uint32_t of = 1,
                         uint32_t threads = FUSED_THREADS)
{
    uint32_t block = of == 1 ? 0 : blockIdx.x;

    for (uint32_t i = block * threads + threadIdx.x; i < n; i += of * threads)
        words[i] = 0;
}

/* Clears the counters that a call begins with at 0. */
template <class S>
EPA_DEV void fused_clear_counters(const struct fused_args &a, uint32_t of, uint32_t threads)
{
    fused_clear(a.state,
                FUSED_COUNTERS + a.c.experts + (S::WAYS && a.ways.tail != 0 ? 3 : 2) * a.blocks, of,
                threads);
    fused_clear(reinterpret_cast<uint32_t *>(dev_own(a.c.v, a.arrived)),
                S::WAYS && a.ways.by_expert != 0 ? a.c.local : a.blocks, of, threads);
}

/* Sends all ranks this rank's number of rows per expert and of tokens per rank. The fence orders
 * the cleared counters before the counts: a rank that has read the counts may add to the
 * counters. */
EPA_DEV void fused_send_counts(const struct fused_args &a, uint64_t call, const uint32_t *count,
                               uint32_t threads)
{
    uint32_t words = fused_count_words(a);

    epa_dev_fence();
    for (uint32_t i = threadIdx.x; i < words * a.c.v.size; i += threads)
        epa_dev_store_pair(a.c.v.peer_heap[i / words] + a.counts[call % 2] +
                               ((uint64_t)a.c.v.rank * words + i % words) * 16,
                           count[i % words], call);
}

/* Adds the choices of this thread's `N` tokens (`first` and those that follow at distance
 * FUSED_THREADS, below `end`) to `count`, and their ranks to `to_rank`. Loads CHOICES choices of
 * each token before it uses the first. */
template <int N, int CHOICES>
EPA_DEV void fused_count(const struct fused_args &a, uint32_t first, uint32_t end, uint32_t *count,
                         uint32_t *to_rank)
{
    uint32_t ranks[N] = {};

    for (uint32_t k = 0; k < a.c.topk; k += CHOICES) {
        uint32_t e[N][CHOICES];

#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int j = 0; j < CHOICES; j++) {
                uint32_t token = first + i * FUSED_THREADS;
                bool is = token < end && k + j < a.c.topk;

                e[i][j] = is ? (uint32_t)__ldg(a.c.expert + (size_t)token * a.c.topk + k + j) : ~0u;
            }
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int j = 0; j < CHOICES; j++)
                if (e[i][j] < a.c.experts) {
                    atomicAdd(&count[e[i][j]], 1u);
                    ranks[i] |= 1u << e[i][j] / a.c.local;
                }
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        for (uint32_t left = ranks[i]; left != 0; left &= left - 1)
            atomicAdd(&to_rank[__ffs(left) - 1], 1u);
}

/* For more tokens than threads. */
EPA_DEV void fused_count_many(const struct fused_args &a, uint32_t *count)
{
    enum { EACH = 2, CHOICES = 4 };

    for (uint32_t t = threadIdx.x; t < a.c.tokens; t += EACH * FUSED_THREADS)
        fused_count<EACH, CHOICES>(a, t, a.c.tokens, count, count + a.c.experts);
}

/* Counts all tokens, in the first block. `count` is in shared memory. */
template <class S>
EPA_DEV void fused_publish(const struct fused_args &a, uint64_t call, uint32_t *count)
{
    fused_clear(count, fused_count_words(a));
    fused_clear_counters<S>(a, 1, FUSED_THREADS);
    __syncthreads();
    if (a.c.tokens > FUSED_THREADS)
        fused_count_many(a, count);
    else if (threadIdx.x < a.c.tokens)
        fused_count<1, 1>(a, threadIdx.x, a.c.tokens, count, count + a.c.experts);
    __syncthreads();
    fused_send_counts(a, call, count, FUSED_THREADS);
}

/* Returns the sum of the values of lower lanes; *total: sum of all lanes. */
EPA_DEV uint32_t fused_scan(uint32_t value, uint32_t *total)
{
    uint32_t sum = value;

    for (uint32_t step = 1; step < EPA_DEV_WARP; step *= 2) {
        uint32_t other = __shfl_up_sync(EPA_DEV_ALL, sum, step);

        sum += epa_dev_lane() >= step ? other : 0;
    }
    *total = __shfl_sync(EPA_DEV_ALL, sum, EPA_DEV_WARP - 1);
    return sum - value;
}

/* Computes the order of the list: expert 0 of each rank, beginning with this rank, then expert 1 of
 * each rank, and so on. Called by one warp. */
EPA_DEV void fused_place_list(const struct fused_args &a, const uint32_t *own,
                              const struct fused_tables &t)
{
    uint32_t base = 0, sum;

    for (uint32_t i = epa_dev_lane(); i - epa_dev_lane() < a.c.experts; i += EPA_DEV_WARP) {
        bool has = i < a.c.experts;
        uint32_t rank = (a.c.v.rank + i % a.c.v.size) % a.c.v.size;
        uint32_t e = rank * a.c.local + i / a.c.v.size, at;

        at = base + fused_scan(has ? own[e] : 0, &sum);
        if (has)
            t.list_at[e] = at;
        base += sum;
    }
    if (epa_dev_lane() == 0)
        t.scalars[FUSED_CHOICES] = base;
}

/* Threads that count many tokens: the first warpgroup. The other warpgroups quantise meanwhile. */
enum { FUSED_SHARE_THREADS = 128 };

EPA_DEV void fused_share_sync(void)
{
    epa_dev_named_sync(FUSED_NAMED_SHARE, FUSED_SHARE_THREADS);
}

/* Sorted: each block counts the tokens that it sends and adds the counts to the sums of this rank.
 * The previous values are the places where its rows of each expert begin among the rows of this
 * rank. The last block sends the sums. `count`: counts of this block, in shared memory. Called by
 * the first warpgroup. */
template <class S>
EPA_DEV void fused_publish_share(const struct fused_args &a, uint64_t call, uint32_t *count,
                                 const struct fused_tables &t)
{
    uint32_t words = fused_count_words(a), of = fused_dispatchers<S>(a);
    uint32_t *sum = a.sum[call % 2], *next = a.sum[(call + 1) % 2];
    uint32_t to_rank = a.waves * a.c.experts;

    fused_clear(count, words, 1, FUSED_SHARE_THREADS);
    fused_clear_counters<S>(a, of, FUSED_SHARE_THREADS);
    fused_share_sync();
    for (uint32_t w = 0; w < a.waves; w++) {
        struct fused_share share = fused_share_of<S>(a, w);

        for (uint32_t i = share.begin + threadIdx.x; i < share.end; i += FUSED_SHARE_THREADS)
            fused_count<1, 8>(a, i, share.end, count + w * a.c.experts, count + to_rank);
    }
    fused_share_sync();
    for (uint32_t i = threadIdx.x; i < words; i += FUSED_SHARE_THREADS) {
        uint32_t at = count[i] != 0 ? atomicAdd(sum + 1 + i, count[i]) : 0;

        if (i < to_rank)
            t.send_row[i] = at;
    }
    if (a.waves == 1 && threadIdx.x / EPA_DEV_WARP == FUSED_SHARE_THREADS / EPA_DEV_WARP - 1)
        fused_place_list(a, count, t);
    fused_share_sync();
    if (threadIdx.x == 0) {
        __threadfence();
        t.scalars[FUSED_COUNTED] = atomicAdd(sum, 1u) + 1;
        __threadfence();
    }
    fused_share_sync();
    if (t.scalars[FUSED_COUNTED] != of)
        return;
    for (uint32_t i = threadIdx.x; i < words; i += FUSED_SHARE_THREADS)
        count[words + i] = __ldcg(sum + 1 + i);
    fused_share_sync();
    fused_send_counts(a, call, count + words, FUSED_SHARE_THREADS);
    fused_clear(next, words + 1, 1, FUSED_SHARE_THREADS);
}

/* Waits for packet `index` of this call's counts or choices; `w` describes the wait. Called by one
 * thread. */
EPA_DEV bool fused_wait_packet(const struct fused_args &a, uint64_t call, uint64_t index,
                               struct epa_dev_wait w, uint64_t *out)
{
    const char *from = dev_own(a.c.v, a.counts[call % 2]) + index * 16;
    struct epa_dev_poll poll = {};
    uint64_t value, seen;

    for (;;) {
        epa_dev_load_pair(from, &value, &seen);
        if (seen >= call)
            break;
        if (epa_dev_poll_expired(a.c.v, &poll, a.c.timeout_ns, w, seen, call))
            return false;
    }
    *out = value;
    return true;
}

/* Reads packet `index` of the `each` packets that `source` sends to all ranks. Called by one
 * thread. */
EPA_DEV bool fused_read_packet(const struct fused_args &a, uint64_t call, uint32_t source,
                               uint32_t index, uint32_t each, uint64_t *out)
{
    uint32_t what = a.few != 0 ? FUSED_WAIT_CHOICES : FUSED_WAIT_COUNTS;

    return fused_wait_packet(a, call, (uint64_t)source * each + index, {0, what, source, index},
                             out);
}

EPA_DEV bool fused_read_count(const struct fused_args &a, uint64_t call, uint32_t source,
                              uint32_t word, uint32_t *out)
{
    uint64_t value = 0;
    bool ok = fused_read_packet(a, call, source, word, fused_count_words(a), &value);

    *out = (uint32_t)value;
    return ok;
}

/* Computes where the rows of a rank's experts begin, `total` rows of each; each expert begins at a
 * block. Called by one warp. */
template <uint32_t ROWS>
EPA_DEV bool fused_place_rank(const struct fused_args &a, uint32_t rank, const uint32_t *total,
                              const struct fused_tables &t)
{
    uint32_t base = 0, sum;

    for (uint32_t i = epa_dev_lane(); i - epa_dev_lane() < a.c.local; i += EPA_DEV_WARP) {
        bool has = i < a.c.local;
        uint32_t e = rank * a.c.local + i, n = has ? total[e] : 0;
        uint32_t at = base + fused_scan((n + ROWS - 1) / ROWS, &sum);

        for (uint32_t w = 0; has && w < a.waves; w++)
            t.send_row[w * a.c.experts + e] += at * ROWS;
        if (has && rank == a.c.v.rank) {
            t.block_at[i] = at;
            t.rows[i] = n;
        }
        base += sum;
    }
    if (rank == a.c.v.rank && epa_dev_lane() == 0)
        t.block_at[a.c.local] = base;
    if (base <= a.blocks)
        return true;
    if (epa_dev_lane() == 0)
        epa_dev_fault(a.c.v, EPA_ERR_CONFIG, {0, FUSED_WAIT_ROOM, rank, 0}, base * ROWS,
                      a.blocks * ROWS, 0);
    return false;
}

/* Computes the lag in units: output tiles follow as many units later as contain lag_tiles tiles.
 * Called by one warp. */
template <class S>
EPA_DEV void fused_place_lag(const struct fused_args &a, const struct fused_tables &t,
                             uint32_t units)
{
    uint32_t lag = min(units, 1u);

    for (uint32_t i = 1 + epa_dev_lane(); i - epa_dev_lane() < units; i += EPA_DEV_WARP)
        lag += __popc(
            __ballot_sync(EPA_DEV_ALL, i < units && t.unit_at[i] * a.up_tiles < a.lag_tiles));
    if (epa_dev_lane() == 0) {
        t.scalars[FUSED_UNITS] = units;
        t.scalars[FUSED_LAG] = S::WAYS && a.ways.part != FUSED_PART_ALL ? units : lag;
    }
}

/* Builds the units: a few blocks that read the same weights. The units that a wave completes, over
 * all experts, precede the units of the next wave. `wave_end`: [waves][local], rows of a wave and
 * the waves before. Called by one warp. */
template <class S>
EPA_DEV void fused_place_units(const struct fused_args &a, const uint32_t *wave_end,
                               const struct fused_tables &t)
{
    uint32_t units = 0, blocks = 0, sum;

    for (uint32_t w = 0; w < a.waves; w++)
        for (uint32_t i = epa_dev_lane(); i - epa_dev_lane() < a.c.local; i += EPA_DEV_WARP) {
            bool has = i < a.c.local;
            uint32_t first = has ? t.block_at[i] : 0, end = has ? t.block_at[i + 1] : 0, n, at,
                     before, n_units;

            if (has && w + 1 < a.waves)
                end = first + wave_end[w * a.c.local + i] / S::ROWS;
            if (has && w > 0)
                first += wave_end[(w - 1) * a.c.local + i] / S::ROWS;
            n = end - first;
            n_units = (n + a.unit_blocks - 1) / a.unit_blocks;
            at = units + fused_scan(n_units, &sum);
            units += sum;
            before = blocks + fused_scan(n, &sum);
            blocks += sum;
            for (uint32_t u = 0; u < n_units; u++) {
                t.unit_at[at + u] = before + u * a.unit_blocks;
                t.unit_block[at + u] = first + u * a.unit_blocks;
            }
        }
    if (epa_dev_lane() == 0)
        t.unit_at[units] = t.block_at[a.c.local];
    __syncwarp();
    fused_place_lag<S>(a, t, units);
    if (S::WAYS && a.ways.apart != 0 && epa_dev_lane() == 0) {
        sum = 0;
        for (uint32_t i = 0; i < a.c.local; i++)
            sum += t.rows[i];
        t.scalars[FUSED_ITEMS] = sum;
    }
}

/* Reads the counts of all ranks and computes the tables. `scratch`, in shared memory: words of all
 * experts, then [waves][local]. `adds`: send_row holds the begin of this block's rows among those
 * of this rank and is added. Called by all threads of the block. */
template <class S>
EPA_DEV bool fused_prepare(const struct fused_args &a, uint64_t call, uint32_t *scratch,
                           const struct fused_tables &t, bool adds)
{
    uint32_t *total = scratch, *wave_end = scratch + a.c.experts, warp = threadIdx.x / EPA_DEV_WARP;
    bool ok = true;

    for (uint32_t e = threadIdx.x; e < a.c.experts && ok; e += FUSED_THREADS) {
        uint32_t sum = 0, n = 0;

        for (uint32_t w = 0; w < a.waves; w++) {
            for (uint32_t r = 0; r < a.c.v.size && ok; r++) {
                uint32_t word = w * a.c.experts + e;

                ok = fused_read_count(a, call, r, word, &n);
                if (r == a.c.v.rank)
                    t.send_row[word] = sum + (adds ? t.send_row[word] : 0);
                sum += n;
            }
            if (e / a.c.local == a.c.v.rank)
                wave_end[w * a.c.local + e % a.c.local] = sum;
        }
        total[e] = sum;
    }
    if (threadIdx.x == FUSED_THREADS - 1) {
        uint32_t sum = 0, n = 0;

        for (uint32_t r = 0; r < a.c.v.size && ok; r++) {
            ok = fused_read_count(a, call, r, a.waves * a.c.experts + a.c.v.rank, &n);
            sum += n;
        }
        t.scalars[FUSED_ITEMS] = sum;
    }
    if (!__syncthreads_and(ok))
        return false;
    for (uint32_t r = warp; r < a.c.v.size; r += FUSED_THREADS / EPA_DEV_WARP)
        ok = fused_place_rank<S::ROWS>(a, r, total, t) && ok;
    if (!__syncthreads_and(ok))
        return false;
    if (warp == 0)
        fused_place_units<S>(a, wave_end, t);
    __syncthreads();
    return true;
}

/* Returns block number `index` in the order of units. */
EPA_DEV uint32_t fused_block_of(const struct fused_args &a, const struct fused_tables &t,
                                uint32_t index)
{
    uint32_t unit;

    if (a.waves == 1)
        return index;
    unit = device_cell_of(t.unit_at, t.scalars[FUSED_UNITS], index);
    return t.unit_block[unit] + index - t.unit_at[unit];
}

/* Returns the number of rows of a block, and its expert. */
template <uint32_t ROWS>
EPA_DEV uint32_t fused_block_rows(const struct fused_args &a, const struct fused_tables &t,
                                  uint32_t block, uint32_t *expert)
{
    *expert = device_cell_of(t.block_at, a.c.local, block);
    return min(ROWS, t.rows[*expert] - (block - t.block_at[*expert]) * ROWS);
}

/* Waits until all rows of a block, or of its expert, have arrived. Called by one thread. */
template <class S>
EPA_DEV bool fused_wait_arrived(const struct fused_args &a, const struct fused_tables &t,
                                uint32_t block)
{
    const uint32_t *arrived = reinterpret_cast<const uint32_t *>(dev_own(a.c.v, a.arrived));
    uint32_t expert, rows = fused_block_rows<S::ROWS>(a, t, block, &expert);

    if (a.ways.by_expert != 0)
        return fused_wait_count(a, arrived + expert, t.rows[expert],
                                {0, FUSED_WAIT_EXPERT, expert, block});
    return fused_wait_count(a, arrived + block, rows, {0, FUSED_WAIT_ROWS, expert, block});
}

/* Called by one warp. */
template <class S>
EPA_DEV bool fused_wait_arrived_warp(const struct fused_args &a, const struct fused_tables &t,
                                     uint32_t block)
{
    bool ok = epa_dev_lane() != 0 || fused_wait_arrived<S>(a, t, block);

    ok = __all_sync(EPA_DEV_ALL, ok);
    __syncwarp();
    return ok;
}

#endif
