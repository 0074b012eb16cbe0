/* The MoE layer in one kernel: dispatch, both products of the experts, and combine.
 *
 * Each multiprocessor has a persistent block, whose warps have roles:
 *
 *   warp 0         takes tiles in the order of the queue, announces them, loads their weights
 *   warp 1         loads the rows of tiles after they have arrived or have been computed
 *   warps 2, 3     send many tokens, or copy picked rows; then send complete sums; then add up own
 *                  tokens
 *   warpgroups     send few tokens and copy picked rows, or quantise many tokens; multiply
 *                  (gemm_cuda.cuh); then help to combine
 *
 * Path of a token:
 *   1. Counts. Block 0 counts the choices of this rank and sends the counts to all ranks in
 *      packets. From the counts of all ranks, each block computes the place of every row at every
 *      rank: rows of an expert are contiguous, by rank; each expert begins at a block of rows. For
 *      many tokens, each block counts the tokens that it sends, while its multiplying warps
 *      quantise them.
 *   2. Dispatch. A warp quantises a row, stores it directly at its place at the expert's rank, and
 *      then increases the counter of the block of rows there. Many tokens are sent expert by
 *      expert, so that the first blocks are complete early; or in waves, from shared memory, with
 *      one bulk copy per row.
 *   3. Tiles. `up`, the intermediate of a block, waits for the counter of the block's rows. `down`,
 *      the output, waits for the counter of the block's `up` tiles. Output tiles follow a lag of
 *      units later, so that they rarely wait, and their sums are sent while other tiles are
 *      multiplied. A tile waits only for work that precedes it in the order in which all blocks
 *      take tiles, and all blocks are resident: so no tile waits forever.
 *   4. Combine. Warps 2 and 3 watch a share of the blocks each: after all output tiles of a block
 *      are counted, they count its rows for their tokens. If blocks are few, a warp with a block
 *      only watches it. A token whose choices on this rank are all counted is queued. A warp adds
 *      up its weighted outputs in the order of its choices, and stores the sum at the token's rank,
 *      with a flag. Few tokens are queued after their rows have arrived, and the warp that adds up
 *      a token waits for its outputs.
 *   5. The token's rank waits for the flags of all sums, and adds up the sums in the order of
 *      ranks.
 * If all ranks together have few tokens, fused_few.cuh or fused_picks.cuh replaces steps 1, 2, 4
 * and 5. If experts have a few rows more than a tile, their blocks have GEMM_MORE further rows
 * (fused_more.cu).
 *
 * The device counts calls. Counts and flags hold the number of the call, and waits compare with >=.
 * One set of buffers is enough, without a barrier: a rank stores rows, counters and sums at p in
 * call n only after it has received p's counts of n. p sends these counts after its kernel of n - 1
 * has ended and its counters are 0 again. Counts themselves have two sets: a rank sends its counts
 * of n + 2 after its call n + 1 has ended. This call waited for p's counts of n + 1, so p's kernel
 * n has ended.
 *
 * Weights are loaded before rows arrive, but after the counts: warp 0 loads the weights of experts
 * with rows only. */
#ifndef FUSED_LAYER_CUH
#define FUSED_LAYER_CUH

#include "fused_combine.cuh"
#include "fused_dispatch.cuh"
#include "fused_few_combine.cuh"
#include "fused_multiply.cuh"

extern __shared__ __align__(1024) uint32_t shared[];

/* Beginning of shared memory; tables follow. */
template <class S> struct __align__(16) fused_shared
{
    typename S::ring ring;
    struct fused_pipe pipe;
};

/* Called by one thread. */
template <class S>
EPA_DEV void fused_init(const struct fused_args &a, const uint32_t *wants, struct fused_pipe *p)
{
    for (uint32_t i = 0; i < FUSED_RING; i++) {
        epa_dev_mbar_init(&p->known[i], 1);
        /* lanes of the loading and multiplying warps, which each release their reads */
        epa_dev_mbar_init(&p->free[i], (1 + FUSED_MATH_WARPS) * EPA_DEV_WARP);
    }
    /* picks: each lane of the warp that orders tokens; otherwise a lane per multiplying warp */
    epa_dev_mbar_init(&p->ready, S::PICKS ? (uint32_t)EPA_DEV_WARP : (uint32_t)FUSED_MATH_WARPS);
    epa_dev_mbar_init_done();
    p->uncounted[0] = p->uncounted[1] = NULL;
    p->wants = wants;
    for (uint32_t i = 0; i < GEMM_HEIGHTS; i++) {
        epa_dev_map_prefetch(&a.rows.height[i]);
        epa_dev_map_prefetch(&a.act.height[i]);
    }
}

/* Returns the index of this thread block among `n` blocks that `after` blocks follow; ~0: it is not
 * one of them. */
EPA_DEV uint32_t fused_last(uint32_t n, uint32_t after = 0)
{
    uint32_t end = gridDim.x - after, index = blockIdx.x + n - end;

    return blockIdx.x < end && index < n ? index : ~0u;
}

/* Combines after the products, with the switches of struct fused_ways. `index`: index of this block
 * among the blocks that combine; ~0: the block adds up own tokens, or has neither role. */
template <class S, int SWEEPS, int MANY>
EPA_DEV void fused_combine_ways(const struct fused_args &a, uint64_t call,
                                const struct fused_tables &t, uint32_t index, struct fused_watch w)
{
    if (index != ~0u)
        fused_combine<S, SWEEPS, MANY>(a, call, t, w);
    else if (fused_last(a.ways.reducers) != ~0u)
        fused_combine_own<S, SWEEPS, MANY>(a, call);
}

/* Returns the index of this block among the blocks that combine; ~0: it is not one of them. */
EPA_DEV uint32_t fused_combiner(const struct fused_args &a)
{
    return fused_last(a.ways.combiners, a.ways.reducers);
}

/* Work of warps 2 and 3, with the switches of struct fused_ways. */
template <int IN, class S>
EPA_DEV void fused_move(const struct fused_args &a, uint64_t call, const struct fused_tables &t,
                        uint32_t own, struct fused_slots slots)
{
    uint32_t tail = fused_last(a.ways.tails), combine = fused_combiner(a);

    if (a.ways.part != FUSED_PART_DOWN) {
        bool ok = true;

        if (a.sorted != 0 && blockIdx.x < a.ways.dispatchers)
            fused_dispatch_sorted<IN, S>(a, t, own, slots);
        fused_stamp(a, call, FUSED_PHASE_DISPATCH, true);
        if (a.ways.tail != 0 && tail != ~0u) {
            fused_stamp(a, call, FUSED_PHASE_TAIL, false);
            ok = fused_tail<S>(a, t, tail + own * a.ways.tails, FUSED_TOKEN_WARPS * a.ways.tails);
            fused_stamp(a, call, FUSED_PHASE_TAIL, true);
        }
        if (!ok)
            return;
    }
    if (a.ways.part != FUSED_PART_UP)
        fused_combine_ways<S, 1, 8>(a, call, t, combine,
                                    {combine + own * a.ways.combiners,
                                     FUSED_TOKEN_WARPS * a.ways.combiners, t.block_at[a.c.local],
                                     slots.first});
}

/* Work of a thread block in a launch: few: the tokens are few; begins: the launch begins the call;
 * dispatches: the block sends tokens. */
struct fused_does {
    bool few, begins, dispatches;
};

/* Reads the counts or choices of all ranks, and computes the places of rows. Sends few tokens, and
 * the first wave of many tokens. `scales`: scales of rows in the multiplying warps; `picked`:
 * picks: a row for each of these warps. Called by all threads of the block. */
template <class S, int IN>
EPA_DEV bool fused_layout(const struct fused_args &a, uint64_t call, struct fused_shared<S> *s,
                          const struct fused_tables &t, float *scales, struct fused_does is,
                          struct fused_picked *picked)
{
    enum {
        QUANTISES = IN == DEVICE_QUANTISE || IN == DEVICE_QUANTISE_F16,
        WARPS = FUSED_THREADS / EPA_DEV_WARP,
        SCALES = FUSED_MOST_GROUPS * S::ROW_SUBS /* maximum of a row */
    };
    /* In the stages, which are still unused; the floats of each warp come first. */
    float *floats = reinterpret_cast<float *>(s->ring.stage);
    uint32_t *scratch = reinterpret_cast<uint32_t *>(floats + WARPS * SCALES);
    uint32_t group = __shfl_sync(EPA_DEV_ALL, threadIdx.x / 128, 0),
             warp = threadIdx.x / EPA_DEV_WARP;
    bool ok = true;

    if (S::PICKS && group == 0) {
        ok = fused_picks_prepare<S>(a, call, t);
    } else if (S::PICKS) {
        fused_few_send<IN, true>(a, call, warp - 4, scales + (warp - 4) * a.scales);
        epa_dev_named_sync(FUSED_NAMED_SEND, FUSED_MATH_WARPS * EPA_DEV_WARP);
        if (warp == 4)
            fused_few_arrive<true>(a, call);
        if (blockIdx.x + (warp - 4) * gridDim.x < a.few * fused_picks_sharers(a))
            ok = fused_picked_begin(a, call, blockIdx.x + (warp - 4) * gridDim.x,
                                    fused_picks_sharers(a), picked);
    } else if (is.few) {
        if (blockIdx.x == 0)
            fused_few_publish(a, call);
        if (group != 0) {
            fused_few_send<IN, false>(a, call, warp - 4, scales + (warp - 4) * a.scales);
            epa_dev_named_sync(FUSED_NAMED_SEND, FUSED_MATH_WARPS * EPA_DEV_WARP);
        }
        if (warp == 4)
            fused_few_arrive<false>(a, call);
    } else if (a.sorted != 0 && is.dispatches) {
        if (group == 0) {
            fused_publish_share<S>(a, call, scratch, t);
            if (a.waves == 1)
                fused_list<S>(a, t, scratch);
        } else if (QUANTISES && a.waves == 1) {
            fused_quantise<IN, S>(a, warp - 4, floats + warp * SCALES);
        }
    } else if (a.sorted == 0 && blockIdx.x == 0 && is.begins) {
        fused_publish<S>(a, call, scratch);
    }
    ok = __syncthreads_and(ok);
    if (!S::PICKS)
        ok = is.few ? fused_few_prepare<S>(a, call, t)
                    : fused_prepare<S>(a, call, scratch, t, a.sorted != 0 && is.dispatches);
    if (!ok)
        return false;
    if (!S::PICKS && a.waves > 1 && is.dispatches)
        fused_dispatch_wave<IN, S>(
            a, t, 0, warp, WARPS,
            {s->ring.stage[0] + warp * FUSED_SLOTS * fused_slot_bytes<S::ROW_GROUP>(), FUSED_SLOTS,
             0});
    else if (S::WAYS && a.sorted != 0 && a.ways.once != 0 && is.dispatches)
        fused_list_rows<S>(a, t);
    return true;
}

template <class S, int IN>
static __global__ void __launch_bounds__(FUSED_THREADS, 1)
    fused_layer(const __grid_constant__ struct fused_args a)
{
    struct fused_shared<S> *s = reinterpret_cast<struct fused_shared<S> *>(shared);
    struct fused_pipe *p = &s->pipe;
    char *stages = reinterpret_cast<char *>(s + 1);
    /* Scales of rows that the multiplying warps send. */
    float *scales = reinterpret_cast<float *>(stages + a.mover_bytes * FUSED_TOKEN_WARPS);
    struct fused_tables t = fused_tables_at(
        a, reinterpret_cast<char *>(scales + (a.sorted != 0 ? 0 : FUSED_MATH_WARPS * a.scales)));
    uint32_t group = __shfl_sync(EPA_DEV_ALL, threadIdx.x / 128, 0),
             warp = threadIdx.x / EPA_DEV_WARP;
    bool begins = !S::WAYS || a.ways.part != FUSED_PART_DOWN; /* this launch begins the call */
    bool ends = !S::WAYS || a.ways.part != FUSED_PART_UP;
    bool dispatches = !S::WAYS || (begins && blockIdx.x < a.ways.dispatchers);
    bool few = S::PICKS || (!S::WAYS && S::MORE == 0 && a.few != 0);
    struct fused_picked picked; /* used by the multiplying warps */

    if (!S::WAYS && a.spread != 0)
        fused_fetch<IN>(a, few ? fused_few_token() : blockIdx.x);
    uint64_t call = dev_begin(a.c, false, true);

    if (begins)
        fused_stamp(a, call, FUSED_PHASE_LAYOUT, false);
    if (threadIdx.x == 0)
        fused_init<S>(a, few && !S::PICKS ? t.wants : NULL, p);
    gemm_begin<S::TYPE>(s->ring);
    if (!fused_layout<S, IN>(a, call, s, t, scales, {few, begins, dispatches}, &picked)) {
        dev_end(a.c, call, ends);
        return;
    }
    if (begins)
        fused_stamp(a, call, FUSED_PHASE_LAYOUT, true);
    if (group == 0) {
        uint32_t own = warp < 2 ? 0 : warp - 2; /* index among warps 2 and 3 */
        struct fused_slots slots = {stages + own * a.mover_bytes,
                                    a.mover_bytes / fused_slot_bytes<S::ROW_GROUP>(), 0};

        epa_dev_fence_async_shared(); /* bulk copies overwrite the scratch memory */
        __syncwarp();
        epa_dev_named_sync(FUSED_NAMED_ROLES, FUSED_THREADS);
        epa_dev_registers_less<72>();
        if (begins)
            fused_stamp(a, call, warp < 2 ? FUSED_PHASE_TILES : FUSED_PHASE_DISPATCH, false);
        if (threadIdx.x == 0)
            fused_load_weights<S>(a, t, p, s->ring);
        else if (warp == 1)
            fused_load_rows<S>(a, call, t, p, s->ring);
        else if (S::WAYS && warp >= 2)
            fused_move<IN, S>(a, call, t, own, slots);
        else if (S::PICKS && warp >= 2) {
            fused_picks_copy_rest<S>(a, call, t, own);
            fused_stamp(a, call, FUSED_PHASE_DISPATCH, true);
            if (warp == 2)
                fused_picks_order(a, t, &p->ready);
            fused_few_end<S>(a, call, t, &p->ready);
        } else if (warp >= 2 && !few) {
            if (fused_has_first<IN, S>(a))
                epa_dev_mbar_wait(&p->ready, 0);
            if (a.sorted != 0)
                fused_dispatch_sorted<IN, S>(a, t, own, slots);
            fused_stamp(a, call, FUSED_PHASE_DISPATCH, true);
            fused_combine<S, 1, 8>(a, call, t,
                                   {blockIdx.x + own * gridDim.x, FUSED_TOKEN_WARPS * gridDim.x,
                                    t.block_at[a.c.local], slots.first});
        }
        if (warp < 2)
            fused_stamp(a, call, FUSED_PHASE_TILES, true);
    } else {
        if (begins)
            fused_stamp(a, call, FUSED_PHASE_DISPATCH, false);
        struct fused_mover m = {blockIdx.x + (warp - 4) * fused_dispatchers<S>(a),
                                8 * fused_dispatchers<S>(a), scales + (warp - 4) * a.scales};

        epa_dev_fence_async_shared();
        __syncwarp();
        epa_dev_named_sync(FUSED_NAMED_ROLES, FUSED_THREADS);
        if (S::PICKS)
            fused_picks_copy<S>(a, call, t, warp - 4, &picked);
        else if (!few && a.spread && dispatches)
            fused_dispatch_spread<IN, S>(a, t, warp - 4, p->rows, m.staged);
        else if (!few && !a.sorted && dispatches)
            fused_dispatch<IN, S>(a, t, m);
        else if (fused_has_first<IN, S>(a))
            fused_dispatch_first<IN, S>(a, t, warp - 4, &p->ready);
        if (begins)
            fused_stamp(a, call, FUSED_PHASE_DISPATCH, true);
        epa_dev_registers_more<216>();
        if (begins)
            fused_stamp(a, call, FUSED_PHASE_TILES, false);
        fused_multiply<S>(a, call, t, p, s->ring);
        fused_stamp(a, call, FUSED_PHASE_TILES, true);
        if (few)
            fused_few_end<S>(a, call, t, &p->ready);
        else if (S::WAYS && ends)
            fused_combine_ways<S, 3, 8>(a, call, t, fused_combiner(a), {0, 0, 0, NULL});
        else if (!S::WAYS)
            fused_combine<S, 3, 8>(a, call, t, {0, 0, 0, NULL});
    }
    dev_end(a.c, call, ends);
}

/* ---- choice of the kernel ---- */

/* Returns the kernel, or NULL if there is no such kernel. Only kernels for the defaults accept FP8
 * inputs. */
template <class S> static const void *of_input(enum device_input input)
{
    constexpr int QUANTISES = S::F16 ? DEVICE_QUANTISE_F16 : DEVICE_QUANTISE;

    if constexpr (!S::FP8 && S::ROW_SUBS == 1)
        if (input == DEVICE_PLAIN)
            return (const void *)fused_layer<S, DEVICE_PLAIN>;
    if constexpr (S::FP8 && !S::WAYS)
        if (input == DEVICE_FP8)
            return (const void *)fused_layer<S, DEVICE_FP8>;
    if constexpr (S::FP8 || S::WAYS)
        if (input == QUANTISES)
            return (const void *)fused_layer<S, QUANTISES>;
    return NULL;
}

template <int TYPE, bool F16, bool WAYS, bool PICKS, bool PROFILE>
using fused_usual_shape = fused_shape<TYPE, F16, WAYS, 1, PICKS, 0, 1, PROFILE>;

template <bool WAYS, bool PICKS = false, bool PROFILE = false>
static const void *of_kind(const struct fused_kernel_kind *k)
{
    if (k->fp8)
        return k->f16
                   ? of_input<fused_usual_shape<EPA_DEV_E4M3, true, WAYS, PICKS, PROFILE>>(k->input)
                   : of_input<fused_usual_shape<EPA_DEV_E4M3, false, WAYS, PICKS, PROFILE>>(
                         k->input);
    return k->f16
               ? of_input<fused_usual_shape<EPA_DEV_F16, true, WAYS, PICKS, PROFILE>>(k->input)
               : of_input<fused_usual_shape<EPA_DEV_BF16, false, WAYS, PICKS, PROFILE>>(k->input);
}

/* Returns the kernel for blocks of up to GEMM_ROWS + GEMM_MORE rows. */
template <bool PROFILE = false> static const void *of_more(const struct fused_kernel_kind *k)
{
    return k->f16 ? of_input<fused_more_shape<true, PROFILE>>(k->input)
                  : of_input<fused_more_shape<false, PROFILE>>(k->input);
}

#endif
