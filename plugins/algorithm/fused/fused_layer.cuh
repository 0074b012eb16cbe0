/* The MoE layer in one kernel: dispatch, both products of the experts, and combine.
 *
 * A persistent block for each multiprocessor. Its warps have roles:
 *
 *   warp 0         takes tiles in the order of the queue, makes them known, loads their weights
 *   warp 1         loads the rows of tiles, when they have arrived or have been computed
 *   warps 2, 3     send many tokens, or copy picked rows; then send what is complete; then add up
 *                  own tokens
 *   warpgroups     send few tokens and copy picked rows, or quantise many; multiply
 *                  (gemm_cuda.cuh); then help to combine
 *
 * What happens to a token:
 *   1. Counts. Block 0 counts the choices of this rank and sends all ranks packets of them. With
 *      the counts of all, each block knows where every row stands at every rank: rows of an
 *      expert follow each other, by rank; experts begin at a block of rows. Many tokens each block
 *      counts that sends them, while its warps that multiply quantise them.
 *   2. Dispatch. A warp quantises a row and stores it straight to its place at the expert's rank,
 *      then adds to the counter of the block of rows there. Many tokens are sent expert by
 *      expert, so that the first blocks are complete early; or in waves, from shared memory, by a
 *      bulk copy for each row.
 *   3. Tiles. The intermediate of a block, `up`, waits for the counter of its rows; the output,
 *      `down`, for a counter of the block's tiles of the intermediate. Output tiles trail by so
 *      many units that they rarely wait, and their combine leaves while others are multiplied.
 *      A tile waits only for what comes before it in the order, which all blocks take tiles in,
 *      and all blocks are resident: so none waits for ever.
 *   4. Combine. Warps 2 and 3 watch blocks, a share each: when all output tiles of one are counted
 *      they count its rows for their tokens. Who watches one does nothing else, if blocks are few.
 *      A token whose choices at this rank are all counted is queued; a warp adds up its outputs by
 *      weight, in the order of its choices, and stores the sum at the token's rank, with a flag.
 *      Few tokens are queued when their rows have arrived, and who adds up one waits for its
 *      outputs.
 *   5. The token's rank adds up the sums of ranks, in their order, when all flags are there.
 * Where all ranks together have few tokens, 1, 2, 4 and 5 are those of fused_few.cuh, or of
 * fused_picks.cuh. Where experts have few more rows than a tile, their blocks have GEMM_MORE rows
 * more (fused_more.cu).
 *
 * Calls count up, on the device; counts and flags carry the call and are waited for with >=.
 * Why one set of buffers is enough, without a barrier: a rank stores rows, counters and sums at
 * p in call n only when it has p's counts of n, which p sends after its kernel of n - 1 has ended
 * and its counters are 0 again. Counts themselves stand in two sets: those of n + 2 are sent when
 * n + 1 has ended here, which waited for p's counts of n + 1, so that p's kernel n has ended.
 *
 * Weights begin to be loaded before rows arrive, but for the counts: what warp 0 loads depends on
 * which experts have rows. */
#ifndef FUSED_LAYER_CUH
#define FUSED_LAYER_CUH

#include "fused_combine.cuh"
#include "fused_dispatch.cuh"
#include "fused_few_combine.cuh"
#include "fused_multiply.cuh"

extern __shared__ __align__(1024) uint32_t shared[];

/* At the beginning of shared memory; then tables. */
template <class S> struct __align__(16) fused_shared
{
    typename S::ring ring;
    struct fused_pipe pipe;
};

/* One thread. */
template <class S>
EPA_DEV void fused_init(const struct fused_args &a, const uint32_t *wants, struct fused_pipe *p)
{
    for (uint32_t i = 0; i < FUSED_RING; i++) {
        epa_dev_mbar_init(&p->known[i], 1);
        epa_dev_mbar_init(&p->free[i],
                          1 + FUSED_MATH_WARPS); /* who loads rows, and who multiplies */
    }
    epa_dev_mbar_init(&p->ready, S::PICKS ? 1 : FUSED_MATH_WARPS);
    epa_dev_mbar_init_done();
    p->uncounted[0] = p->uncounted[1] = NULL;
    p->wants = wants;
    for (uint32_t i = 0; i < GEMM_HEIGHTS; i++) {
        epa_dev_map_prefetch(&a.rows.height[i]);
        epa_dev_map_prefetch(&a.act.height[i]);
    }
}

/* Which of the last `n` thread blocks this one is; ~0: it is none. */
EPA_DEV uint32_t fused_last(uint32_t n)
{
    return blockIdx.x + n >= gridDim.x ? blockIdx.x + n - gridDim.x : ~0u;
}

/* Warps 2 and 3, with the switches of struct fused_ways. */
template <int IN, class S>
EPA_DEV void fused_move(const struct fused_args &a, uint64_t call, const struct fused_tables &t,
                        uint32_t own, struct fused_slots slots)
{
    uint32_t tail = fused_last(a.ways.tails), combine = fused_last(a.ways.combiners);

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
    if (a.ways.part != FUSED_PART_UP && combine != ~0u)
        fused_combine<S, 1, 8>(a, call, t,
                               {combine + own * a.ways.combiners,
                                FUSED_TOKEN_WARPS * a.ways.combiners, t.block_at[a.c.local],
                                slots.first});
}

/* What a thread block has to do in a launch: the tokens are few; the call begins; it sends. */
struct fused_does {
    bool few, begins, dispatches;
};

/* Counts or choices of all ranks, and where rows go. Few tokens, and the first wave of many, are
 * sent. `scales`: of rows of the warps that multiply; `picked`: picks: a row for each of them. All
 * of the block. */
template <class S, int IN>
EPA_DEV bool fused_layout(const struct fused_args &a, uint64_t call, struct fused_shared<S> *s,
                          const struct fused_tables &t, float *scales, struct fused_does is,
                          struct fused_picked *picked)
{
    enum {
        QUANTISES = IN == DEVICE_QUANTISE || IN == DEVICE_QUANTISE_F16,
        WARPS = FUSED_THREADS / EPA_DEV_WARP
    };
    /* In the stages, as nothing is loaded yet; floats of each warp first. */
    float *floats = reinterpret_cast<float *>(s->ring.stage);
    uint32_t *scratch = reinterpret_cast<uint32_t *>(floats + WARPS * FUSED_MOST_GROUPS);
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
            fused_quantise<IN, S>(a, warp - 4, floats + warp * FUSED_MOST_GROUPS);
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
            {s->ring.stage[0] + warp * FUSED_SLOTS * FUSED_SLOT_BYTES, FUSED_SLOTS, 0});
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
    /* Of rows of the warps that multiply, on their way out. */
    float *scales = reinterpret_cast<float *>(stages + a.mover_bytes * FUSED_TOKEN_WARPS);
    struct fused_tables t = fused_tables_at(
        a, reinterpret_cast<char *>(scales + (a.sorted != 0 ? 0 : FUSED_MATH_WARPS * a.scales)));
    uint32_t group = __shfl_sync(EPA_DEV_ALL, threadIdx.x / 128, 0),
             warp = threadIdx.x / EPA_DEV_WARP;
    bool begins = !S::WAYS || a.ways.part != FUSED_PART_DOWN; /* the call, and ends it */
    bool ends = !S::WAYS || a.ways.part != FUSED_PART_UP;
    bool dispatches = !S::WAYS || (begins && blockIdx.x < a.ways.dispatchers);
    bool few = S::PICKS || (!S::WAYS && S::MORE == 0 && a.few != 0);
    struct fused_picked picked; /* by a warp that multiplies */

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
        uint32_t own = warp < 2 ? 0 : warp - 2; /* of those that dispatch and combine */
        struct fused_slots slots = {stages + own * a.mover_bytes, a.mover_bytes / FUSED_SLOT_BYTES,
                                    0};

        epa_dev_fence_async_shared(); /* bulk copies write where the scratch was */
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
        fused_multiply<S>(a, p, s->ring);
        fused_stamp(a, call, FUSED_PHASE_TILES, true);
        if (few)
            fused_few_end<S>(a, call, t, &p->ready);
        else if (!S::WAYS || (ends && fused_last(a.ways.combiners) != ~0u))
            fused_combine<S, 3, 8>(a, call, t, {0, 0, 0, NULL});
    }
    dev_end(a.c, call, ends);
}

/* ---- which ---- */

/* NULL: there is none. Inputs that are in FP8 already only the defaults take. */
template <class S> static const void *of_input(enum device_input input)
{
    constexpr int QUANTISES = S::F16 ? DEVICE_QUANTISE_F16 : DEVICE_QUANTISE;

    if constexpr (!S::FP8)
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

template <bool WAYS, bool PICKS = false>
static const void *of_kind(const struct fused_kernel_kind *k)
{
    if (k->fp8)
        return k->f16 ? of_input<fused_shape<EPA_DEV_E4M3, true, WAYS, 1, PICKS>>(k->input)
                      : of_input<fused_shape<EPA_DEV_E4M3, false, WAYS, 1, PICKS>>(k->input);
    return k->f16 ? of_input<fused_shape<EPA_DEV_F16, true, WAYS, 1, PICKS>>(k->input)
                  : of_input<fused_shape<EPA_DEV_BF16, false, WAYS, 1, PICKS>>(k->input);
}

#endif
