/* Kernel of fused: the tiles and their order, and the warps that load them (fused_multiply.cuh has
 * the warpgroups that multiply). */
#ifndef FUSED_TILES_CUH
#define FUSED_TILES_CUH

#include "fused_picks.cuh"

enum fused_task_kind { FUSED_END, FUSED_UP, FUSED_DOWN };

/* A tile; `rows` is the number of used rows of its block. */
struct fused_task {
    uint32_t kind, expert, block, tile, rows;
};

/* Shared memory of a block, after the ring. */
struct fused_pipe {
    uint64_t known[FUSED_RING], free[FUSED_RING];
    struct fused_task task[FUSED_RING];
    uint32_t rows[EPA_DEV_WARP]; /* rows of a token's choices */
    const uint32_t *wants;       /* few tokens: `wants` of struct fused_tables */
    uint64_t ready; /* picks: the order in the tables is complete; otherwise: the rows for the first
                * tiles have been sent */
    uint32_t *uncounted[2]; /* counter of a warpgroup's last tile, if the tile is not counted
                             * yet; or NULL */
};

/* ---- order ----
 *
 * A unit is a few blocks of one expert. Step s consists of the up tiles of unit s, then the down
 * tiles of unit s - lag. In a unit, tiles that read the same weights are consecutive. */

EPA_DEV uint32_t fused_step_at(const struct fused_args &a, const struct fused_tables &t, uint32_t s)
{
    uint32_t units = t.scalars[FUSED_UNITS], lag = t.scalars[FUSED_LAG];

    return t.unit_at[min(s, units)] * a.up_tiles +
           t.unit_at[s < lag ? 0 : min(s - lag, units)] * a.down_tiles;
}

/* Returns tile number `index` of all tiles, or of the tiles of this launch; *step: step of an
 * earlier tile, or 0. */
template <class S>
EPA_DEV struct fused_task fused_task_at(const struct fused_args &a, const struct fused_tables &t,
                                        uint32_t index, uint32_t *step)
{
    uint32_t units = t.scalars[FUSED_UNITS], lag = t.scalars[FUSED_LAG], unit, first, blocks, ups;
    struct fused_task task = {FUSED_END, 0, 0, 0, 0};

    if (S::WAYS && a.ways.part != FUSED_PART_ALL) { /* all up tiles precede the down tiles */
        uint32_t all = t.unit_at[units] * a.up_tiles;

        if (a.ways.part == FUSED_PART_UP && index >= all)
            return task;
        index += a.ways.part == FUSED_PART_DOWN ? all : 0;
    }
    if (index >= t.unit_at[units] * (a.up_tiles + a.down_tiles))
        return task;
    /* The first `lag` steps consist of up tiles only. */
    *step = max(*step, device_cell_of(t.unit_at, min(units, lag), index / a.up_tiles));
    while (fused_step_at(a, t, *step + 1) <= index)
        ++*step;
    index -= fused_step_at(a, t, *step);
    ups = *step < units ? (t.unit_at[*step + 1] - t.unit_at[*step]) * a.up_tiles : 0;
    task.kind = index < ups ? FUSED_UP : FUSED_DOWN;
    unit = index < ups ? *step : *step - lag;
    index -= index < ups ? 0 : ups;
    first = t.unit_at[unit];
    blocks = t.unit_at[unit + 1] - first;
    task.block = t.unit_block[unit] + index % blocks;
    task.tile = index / blocks;
    task.rows = fused_block_rows<S::ROWS>(a, t, task.block, &task.expert);
    return task;
}

/* ---- profile ---- */

/* Returns true if intervals of tiles are recorded: always by the kernels of fused_profile.cu, never
 * by the other kernels for the defaults, and for a profile by kernels with switches. */
template <class S> EPA_DEV bool fused_has_notes(const struct fused_args &a)
{
    return S::PROFILE || (S::WAYS && a.notes != NULL);
}

/* Returns the place of an interval of a tile. */
EPA_DEV struct fused_note *fused_note_of(const struct fused_args &a, const struct fused_task &task,
                                         enum fused_interval of)
{
    uint32_t tile = task.tile + (task.kind == FUSED_UP ? 0 : a.up_tiles);

    return a.notes + fused_intervals(task.block, a.up_tiles, a.down_tiles) +
           tile * FUSED_INTERVALS + of;
}

/* Records an interval of a tile, which began at `begin`. Called by one thread. */
template <class S>
EPA_DEV void fused_note_begin(const struct fused_args &a, uint64_t call,
                              const struct fused_tables &t, const struct fused_task &task,
                              enum fused_interval of, uint64_t begin)
{
    uint4 *to = reinterpret_cast<uint4 *>(fused_note_of(a, task, of));

    to[0] = make_uint4((uint32_t)begin, (uint32_t)(begin >> 32), 0, 0);
    to[1] =
        make_uint4((uint32_t)call, blockIdx.x * a.c.warps + threadIdx.x / EPA_DEV_WARP,
                   (task.block - t.block_at[task.expert]) * S::ROWS, task.expert | task.rows << 16);
}

/* Called by the thread of fused_note_begin(). */
EPA_DEV void fused_note_end(const struct fused_args &a, const struct fused_task &task,
                            enum fused_interval of)
{
    fused_note_of(a, task, of)->end = epa_dev_time();
}

/* ---- loads ----
 *
 * After a failed wait for rows, the warps load the rows in any state, so that all roles continue to
 * the last tile. */

/* Computes the groups of 128 channels, of the intermediate or of y, that the boxes of a tile belong
 * to. Returns false if the second box is beyond the channels, or if the boxes are gate and up of
 * one group. */
EPA_DEV bool fused_groups(const struct fused_args &a, const struct fused_task &task,
                          uint32_t (&group)[2])
{
    bool up = task.kind == FUSED_UP, pairs = up && a.swiglu != 0;

    group[0] = pairs ? task.tile : 2 * task.tile;
    group[1] = group[0] + 1;
    return !pairs && group[1] * FUSED_GROUP < (up ? a.ffn : a.c.hidden);
}

/* Takes tile i of this block and announces it. */
template <class S>
EPA_DEV struct fused_task fused_take_tile(const struct fused_args &a, const struct fused_tables &t,
                                          struct fused_pipe *p, uint32_t i, uint32_t ticket,
                                          uint32_t *step)
{
    uint32_t slot = i % FUSED_RING, index = a.dynamic ? ticket : blockIdx.x + i * gridDim.x;
    struct fused_task task = fused_task_at<S>(a, t, index, step);

    epa_dev_mbar_wait(&p->free[slot], (i / FUSED_RING & 1) ^ 1);
    p->task[slot] = task;
    epa_dev_mbar_arrive(&p->known[slot]);
    return task;
}

/* Returns the ticket of tile i of this block. The first ticket is the block's number, to avoid the
 * latency of an atomic operation. */
template <class S> EPA_DEV uint32_t fused_ticket(const struct fused_args &a, uint32_t i)
{
    uint32_t counter = S::WAYS && a.ways.part == FUSED_PART_DOWN ? FUSED_TICKET_DOWN : FUSED_TICKET;

    if (i == 0)
        return blockIdx.x;
    return a.dynamic != 0 ? gridDim.x + atomicInc(a.state + counter, INT32_MAX) : 0;
}

/* Returns the first row that a tile multiplies: a received row, or a row of the intermediate. */
template <class S>
EPA_DEV uint32_t fused_first_row(const struct fused_args &a, uint64_t call,
                                 const struct fused_tables &t, const struct fused_task &task)
{
    if (S::PICKS && task.kind == FUSED_UP)
        return fused_picks_first<S>(a, call, t, task.expert, task.block);
    return !S::WAYS && S::MORE == 0 && a.few != 0 && task.kind == FUSED_UP ? fused_few_rows(call)
                                                                           : task.block * S::ROWS;
}

/* Returns the number of blocks of up to 128 weights that share a scale, in `n` rows of weights. */
template <class S> EPA_DEV uint32_t fused_weight_blocks(uint32_t n)
{
    return (n + (S::RAGGED ? GEMM_BOX - 1 : 0)) / GEMM_BOX;
}

/* Returns the scales of the rows of a tile, from `row` on, and of its weights. */
template <class S>
EPA_DEV struct gemm_scales fused_scales(const struct fused_args &a, const struct fused_task &task,
                                        uint32_t row)
{
    bool up = task.kind == FUSED_UP, pairs = up && a.swiglu != 0;
    uint32_t steps = up ? a.up_steps : a.down_steps;
    uint32_t of_ffn = fused_weight_blocks<S>(a.ffn), at = task.tile * (pairs ? 1 : 2);
    uint32_t groups = S::RAGGED && pairs ? 2 * of_ffn /* gate and up */
                                         : fused_weight_blocks<S>(up ? a.up_rows : a.c.hidden);
    const float *boxes = (up ? a.up_scale : a.down_scale) + (size_t)task.expert * groups * steps;
    /* A box beyond the weights has unused sums. */
    uint32_t second = pairs ? at + of_ffn : min(at + 1, groups - 1);

    return {up ? reinterpret_cast<const float *>(
                     dev_own(a.c.v, a.recv + (uint64_t)row * a.message_bytes) + a.scales_at)
               : a.act_row_scales + (size_t)row * a.act_groups,
            up ? a.message_bytes / 4 : a.act_groups,
            task.rows,
            {boxes + (size_t)at * steps, boxes + (size_t)second * steps}};
}

/* Number of blocks of K of a tile that are loaded before the next tile is taken, and before it is
 * announced. */
struct fused_turn {
    uint32_t taken, known;
};

/* Usually the next tile is taken at once, so that no wait for the work counter follows. With `few`
 * tiles, it is taken after the current tile's multiplication has begun, since another block may be
 * idle. `late`, if experts have more than one block: tiles that read the same weights are
 * consecutive in the counter, and then begin at about the same time. If one were ahead by more than
 * the capacity of L2, the other would read memory again. */
template <class S> EPA_DEV struct fused_turn fused_turn_of(bool few, bool late, uint32_t steps)
{
    enum { TAKEN = 6, KNOWN = 3, STAGES = S::ring::STAGES };
    uint32_t first = few && steps > STAGES ? STAGES + 1 : 1;

    if (late && steps > TAKEN)
        return {steps - TAKEN, steps - KNOWN};
    return {first, first};
}

/* Takes tiles and loads their weights, without waiting for tokens. Called by one thread. */
template <class S>
EPA_DEV void fused_load_weights(const struct fused_args &a, const struct fused_tables &t,
                                struct fused_pipe *p, typename S::ring &ring)
{
    enum { STAGE = 2 * GEMM_BOX_BYTES };
    struct gemm_at at = {0, 0};
    uint32_t units = t.scalars[FUSED_UNITS], blocks = t.unit_at[units], step = 0;
    bool few = blocks * (a.up_tiles + a.down_tiles) <= 2 * gridDim.x,
         late = blocks > units + units / 16;
    /* Weights that are read once leave L2 first, so that tokens, intermediates and outputs stay. */
    const uint64_t l2 = late ? EPA_L2_NORMAL : EPA_L2_EVICT_FIRST;
    struct fused_task next = fused_take_tile<S>(a, t, p, 0, fused_ticket<S>(a, 0), &step);

    for (uint32_t i = 1; next.kind != FUSED_END; i++) {
        struct fused_task task = next;
        bool up = task.kind == FUSED_UP;
        uint32_t steps = up ? a.up_steps : a.down_steps, ticket;
        struct fused_turn turn = fused_turn_of<S>(few, late, steps);
        const char *from =
            (up ? a.up : a.down) +
            ((uint64_t)task.expert * (up ? a.up_tiles : a.down_tiles) + task.tile) * steps * STAGE;

        gemm_load_packed(ring, at, from, turn.taken, l2);
        ticket = fused_ticket<S>(a, i);
        gemm_load_packed(ring, at, from + turn.taken * STAGE, turn.known - turn.taken, l2);
        next = fused_take_tile<S>(a, t, p, i, ticket, &step);
        if (S::FP8 && next.kind != FUSED_END) {
            struct gemm_scales of = fused_scales<S>(a, next, 0);

            for (uint32_t b = 0; b < 2; b++)
                gemm_fetch_scales(of.box[b], next.kind == FUSED_UP ? a.up_steps : a.down_steps);
        }
        gemm_load_packed(ring, at, from + turn.known * STAGE, steps - turn.known, l2);
    }
}

template <class S>
EPA_DEV bool fused_wait_rows(const struct fused_args &a, const struct fused_tables &t,
                             const struct fused_task &task)
{
    if (task.kind == FUSED_UP && (S::PICKS || (S::WAYS && a.ways.tail != 0)))
        return fused_wait_count(a, fused_copied(a) + task.block,
                                task.rows * (S::PICKS ? fused_picks_sharers(a) : 1),
                                {0, FUSED_WAIT_COPIES, task.expert, task.block});
    if (S::WAYS && task.kind == FUSED_UP)
        return fused_wait_arrived<S>(a, t, task.block);
    if (task.kind == FUSED_UP)
        return fused_wait_count(
            a, reinterpret_cast<const uint32_t *>(dev_own(a.c.v, a.arrived)) + task.block,
            task.rows, {0, FUSED_WAIT_ROWS, task.expert, task.block});
    return fused_wait_count(a, fused_acts(a) + task.block, 2 * a.up_tiles,
                            {0, FUSED_WAIT_ACTS, task.expert, task.block});
}

/* Loads the rows of tiles after they have arrived, and their scales. Called by one warp. */
template <class S>
EPA_DEV void fused_load_rows(const struct fused_args &a, uint64_t call,
                             const struct fused_tables &t, struct fused_pipe *p,
                             typename S::ring &ring)
{
    uint64_t begin = fused_has_notes<S>(a) ? epa_dev_time() : 0;
    bool few = !S::PICKS && !S::WAYS && S::MORE == 0 && a.few != 0,
         ok = !few || fused_few_wait(a, call, t);
    struct gemm_at at = {0, 0};
    uint32_t lane = epa_dev_lane();

    for (uint32_t i = 0;; i++) {
        uint32_t slot = i % FUSED_RING, height, steps, row;
        struct fused_task task;
        bool up;

        epa_dev_mbar_wait(&p->known[slot], i / FUSED_RING & 1);
        task = p->task[slot];
        epa_dev_mbar_arrive(&p->free[slot]);
        if (task.kind == FUSED_END)
            return;
        up = task.kind == FUSED_UP;
        steps = up ? a.up_steps : a.down_steps;
        row = fused_first_row<S>(a, call, t, task);
        height = gemm_height(task.rows);
        /* The first interval includes the wait for few tokens. */
        if (fused_has_notes<S>(a) && i > 0)
            begin = epa_dev_time();
        if (lane == 0 && ok && !(few && up))
            ok = fused_wait_rows<S>(a, t, task);
        if (fused_has_notes<S>(a) && lane == 0) {
            fused_note_begin<S>(a, call, t, task, FUSED_NOTE_WAIT, begin);
            fused_note_end(a, task, FUSED_NOTE_WAIT);
        }
        ok = __shfl_sync(EPA_DEV_ALL, ok, 0);
        epa_dev_fence_async_global();
        __syncwarp();
        const struct gemm_rows_map *map = up ? &a.rows : &a.act;
        if constexpr (S::FP8) {
            struct gemm_scales of = fused_scales<S>(a, task, row);

            if (S::SUBS == S::ROW_SUBS || up)
                gemm_load_scaled_rows<S::ROW_GROUP>(ring, at, map, height, row, of, steps,
                                                    (up ? a.c.hidden : a.ffn) / S::ROW_GROUP,
                                                    EPA_L2_NORMAL);
            else
                gemm_load_scaled_rows<S::GROUP>(ring, at, map, height, row, of, steps,
                                                a.ffn / S::GROUP, EPA_L2_NORMAL);
        } else if (lane == 0) {
            gemm_load_rows<S::TYPE>(ring, at, map, height, row, steps, EPA_L2_NORMAL);
        }
    }
}

#endif
