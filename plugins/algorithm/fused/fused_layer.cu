/* The MoE layer in one kernel: dispatch, both products of the experts, and combine.
 *
 * A persistent block for each multiprocessor. Its warps have roles:
 *
 *   warp 0         takes tiles in the order of the queue, makes them known, loads their weights
 *   warp 1         loads the rows of tiles, when they have arrived or have been computed
 *   warps 2, 3     send many tokens; then send what is complete; then add up own tokens
 *   warpgroups     send few tokens; multiply: 64 rows each, or the same 64 rows and half of the
 *                  columns each; then help to combine
 *
 * What happens to a token:
 *   1. Counts. Block 0 counts the choices of this rank and sends all ranks packets of them. With
 *      the counts of all, each block knows where every row stands at every rank: rows of an
 *      expert follow each other, by rank; experts begin at a block of rows.
 *   2. Dispatch. A warp quantises a row and stores it straight to its place at the expert's rank,
 *      then adds to the counter of the block of rows there. Many tokens are sent expert by
 *      expert, so that the first blocks are complete early.
 *   3. Tiles. The intermediate of a block, `up`, waits for the counter of its rows; the output,
 *      `down`, for a counter of the block's tiles of the intermediate. Output tiles trail by so
 *      many units that they rarely wait, and their combine leaves while others are multiplied.
 *      A tile waits only for what comes before it in the order, which all blocks take tiles in,
 *      and all blocks are resident: so none waits for ever.
 *   4. Combine. Warps 2 and 3 watch blocks, a share each: when all output tiles of one are counted
 *      they count its rows for their tokens. A token whose choices at this rank are all counted is
 *      queued; a warp adds up its outputs by weight, in the order of its choices, and stores the
 *      sum at the token's rank, with a flag.
 *   5. The token's rank adds up the sums of ranks, in their order, when all flags are there.
 *
 * Calls count up, on the device; counts and flags carry the call and are waited for with >=.
 * Why one set of buffers is enough, without a barrier: a rank stores rows, counters and sums at
 * p in call n only when it has p's counts of n, which p sends after its kernel of n - 1 has ended
 * and its counters are 0 again. Counts themselves stand in two sets: those of n + 2 are sent when
 * n + 1 has ended here, which waited for p's counts of n + 1, so that p's kernel n has ended.
 *
 * Weights begin to be loaded before rows arrive, but for the counts: what warp 0 loads depends on
 * which experts have rows. */
#include "fused_tiles.cuh"

extern __shared__ __align__(1024) uint32_t shared[];

/* One thread. */
template <class S> EPA_DEV void fused_init(const struct fused_args &a, struct fused_pipe *p)
{
    for (uint32_t i = 0; i < S::STAGES; i++) {
        epa_dev_mbar_init(&p->full[i], 2);  /* rows, weights */
        epa_dev_mbar_init(&p->empty[i], 8); /* the warps that multiply */
    }
    for (uint32_t i = 0; i < FUSED_RING; i++) {
        epa_dev_mbar_init(&p->known[i], 1);
        epa_dev_mbar_init(&p->free[i], 9); /* and the one that loads rows */
    }
    epa_dev_mbar_init_done();
    for (uint32_t i = 0; i < FUSED_HEIGHTS; i++) {
        epa_dev_map_prefetch(&a.rows[i]);
        epa_dev_map_prefetch(&a.act[i]);
    }
}

template <class S, int IN>
static __global__ void __launch_bounds__(FUSED_THREADS, 1)
    fused_layer(const __grid_constant__ struct fused_args a)
{
    enum {
        QUANTISES = IN == DEVICE_QUANTISE || IN == DEVICE_QUANTISE_F16,
        WARPS = FUSED_THREADS / EPA_DEV_WARP
    };
    char *stages = reinterpret_cast<char *>(shared);
    struct fused_pipe *p = reinterpret_cast<struct fused_pipe *>(stages + S::PIPE_BYTES);
    struct fused_tables t = fused_tables_at(a, reinterpret_cast<char *>(p + 1));
    /* In the stages, as nothing is loaded yet; floats of each warp first. */
    uint32_t *scratch = reinterpret_cast<uint32_t *>(stages) + WARPS * FUSED_MOST_GROUPS;
    uint32_t group = __shfl_sync(EPA_DEV_ALL, threadIdx.x / 128, 0),
             warp = threadIdx.x / EPA_DEV_WARP;
    struct fused_mover m = {blockIdx.x + warp * gridDim.x, WARPS * gridDim.x,
                            reinterpret_cast<float *>(stages) + warp * FUSED_MOST_GROUPS};
    uint64_t call = dev_begin(a.c, false, true);

    if (threadIdx.x == 0)
        fused_init<S>(a, p);
    if (blockIdx.x == 0)
        fused_publish(a, call, scratch);
    if (QUANTISES && a.sorted)
        fused_quantise<IN>(a, m);
    __syncthreads();
    if (!fused_prepare<S::ROWS>(a, call, scratch, t)) {
        dev_end(a.c, call, true);
        return;
    }
    if (group == 0) {
        uint32_t own = warp < 2 ? 0 : warp - 2; /* of those that dispatch and combine */

        epa_dev_fence_async_shared(); /* bulk copies write where the scratch was */
        __syncwarp();
        epa_dev_named_sync(4, FUSED_THREADS);
        epa_dev_registers_less<S::WIDE ? 72 : 104>();
        m = {blockIdx.x + own * gridDim.x, FUSED_TOKEN_WARPS * gridDim.x, p->staged[own]};
        fused_stamp(a, warp < 2 ? FUSED_PHASE_TILES : FUSED_PHASE_DISPATCH, false);
        if (threadIdx.x == 0)
            fused_load_weights<S>(a, t, p, stages);
        else if (warp == 1)
            fused_load_rows<S>(a, p, stages);
        else if (warp >= 2 && (!a.sorted || fused_dispatch_sorted<IN, S::ROWS>(a, t, m))) {
            fused_stamp(a, FUSED_PHASE_DISPATCH, true);
            fused_combine<S::F16, 2, S::ROWS>(a, call, t, {m.index, m.of, t.block_at[a.c.local]});
        }
        if (warp < 2)
            fused_stamp(a, FUSED_PHASE_TILES, true);
    } else {
        fused_stamp(a, FUSED_PHASE_DISPATCH, false);
        m = {blockIdx.x + (warp - 4) * gridDim.x, 8 * gridDim.x, p->scales_of_warp[warp - 4]};
        epa_dev_fence_async_shared();
        __syncwarp();
        epa_dev_named_sync(4, FUSED_THREADS);
        if (a.spread)
            fused_dispatch_spread<IN, S::ROWS>(a, t, warp - 4, p->rows, m.staged);
        else if (!a.sorted)
            fused_dispatch<IN, S::ROWS>(a, t, m);
        fused_stamp(a, FUSED_PHASE_DISPATCH, true);
        epa_dev_registers_more<S::WIDE ? 216 : 200>();
        fused_stamp(a, FUSED_PHASE_TILES, false);
        fused_multiply<S>(a, p, stages, group - 1);
        fused_stamp(a, FUSED_PHASE_TILES, true);
        fused_combine<S::F16, 4, S::ROWS>(a, call, t, {0, 0, 0});
    }
    dev_end(a.c, call, true);
}

/* ---- weights ---- */

/* One matrix, of `groups` of 128 rows for each expert, into tiles of two groups: the pairs of gate
 * and up, or neighbours; the second half of the last tile may be empty. */
EPA_DEV void fused_pack_matrix(const char *from, char *to, uint32_t experts, uint32_t groups,
                               uint32_t tiles, uint32_t steps, bool pairs)
{
    uint64_t pieces = (uint64_t)experts * tiles * steps * (FUSED_WEIGHT_BYTES / 16);

    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < pieces;
         i += (uint64_t)gridDim.x * blockDim.x) {
        uint32_t piece = i % 8, row = i / 8 % FUSED_HALF, half = i / (8 * FUSED_HALF) % 2;
        uint64_t stage = i / (16 * FUSED_HALF), tile = stage / steps;
        uint32_t step = stage % steps;
        uint32_t group = pairs ? tile % tiles + half * (groups / 2) : tile % tiles * 2 + half;
        uint4 v = make_uint4(0, 0, 0, 0);

        if (group < groups)
            v = *reinterpret_cast<const uint4 *>(
                from +
                (((tile / tiles * groups + group) * FUSED_HALF + row) * steps + step) *
                    FUSED_K_BYTES +
                piece * 16);
        *reinterpret_cast<uint4 *>(to + stage * FUSED_WEIGHT_BYTES +
                                   (half * FUSED_HALF + row) * FUSED_K_BYTES +
                                   (piece ^ row % 8) * 16) = v;
    }
}

static __global__ void fused_pack(const __grid_constant__ struct fused_args a)
{
    fused_pack_matrix(a.up_from, a.up, a.c.local, a.up_rows / FUSED_HALF, a.up_tiles, a.up_steps,
                      a.swiglu != 0);
    fused_pack_matrix(a.down_from, a.down, a.c.local, a.c.hidden / FUSED_HALF, a.down_tiles,
                      a.down_steps, false);
}

extern "C" const void *fused_pack_kernel(void)
{
    return (const void *)fused_pack;
}

/* ---- which ---- */

template <class S> static const void *of_input(enum device_input input)
{
    if constexpr (!S::FP8)
        return (const void *)fused_layer<S, DEVICE_PLAIN>;
    else if (input == DEVICE_FP8)
        return (const void *)fused_layer<S, DEVICE_FP8>;
    else
        return (const void *)fused_layer < S, S::F16 ? DEVICE_QUANTISE_F16 : DEVICE_QUANTISE > ;
}

template <int TYPE, bool F16> static const void *of_rows(const struct fused_kernel_kind *k)
{
    if (k->rows == FUSED_ROWS_64)
        return of_input<fused_shape<TYPE, FUSED_ROWS_64, F16>>(k->input);
    return of_input<fused_shape<TYPE, FUSED_ROWS_128, F16>>(k->input);
}

extern "C" const void *fused_kernel(struct fused_kernel_kind k)
{
    if (k.fp8)
        return k.f16 ? of_rows<EPA_DEV_E4M3, true>(&k) : of_rows<EPA_DEV_E4M3, false>(&k);
    return k.f16 ? of_rows<EPA_DEV_F16, true>(&k) : of_rows<EPA_DEV_BF16, false>(&k);
}

extern "C" uint32_t fused_shared_bytes(struct fused_kernel_kind k, uint32_t experts, uint32_t local)
{
    uint32_t tables = 4 * (FUSED_SCALARS + 2 * experts + 2 * local + 1 + FUSED_MOST_UNITS + 1);
    uint32_t wide = fused_shape<EPA_DEV_E4M3, FUSED_ROWS_128, false>::PIPE_BYTES;
    uint32_t narrow = fused_shape<EPA_DEV_E4M3, FUSED_ROWS_64, false>::PIPE_BYTES;

    return (k.rows == FUSED_ROWS_64 ? narrow : wide) + (uint32_t)sizeof(struct fused_pipe) +
           device_up16(tables);
}
