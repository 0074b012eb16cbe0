/* Of the kernel of fused: tiles. Which there are and in what order, and the warps that load them
 * (fused_multiply.cuh has the warpgroups that multiply). */
#ifndef FUSED_TILES_CUH
#define FUSED_TILES_CUH

#include "fused_picks.cuh"

enum fused_task_kind { FUSED_END, FUSED_UP, FUSED_DOWN };

/* A tile; `rows` of its block are in use. */
struct fused_task {
    uint32_t kind, expert, block, tile, rows;
};

/* Of a block, in shared memory behind the ring. */
struct fused_pipe {
    uint64_t known[FUSED_RING], free[FUSED_RING];
    struct fused_task task[FUSED_RING];
    uint32_t rows[EPA_DEV_WARP]; /* of the choices of a token */
    const uint32_t *wants;       /* few tokens: fused_tables' */
    uint64_t
        ready; /* picks: the tables' order is there; else: rows for the first tiles have left */
    uint32_t *uncounted[2]; /* what counts the last tile of a warpgroup, and has not; or NULL */
};

/* ---- order ----
 *
 * A unit is a few blocks of one expert. Step s is the up tiles of unit s, then the down tiles of
 * unit s - lag. In a unit, tiles that read the same weights follow each other. */

EPA_DEV uint32_t fused_step_at(const struct fused_args &a, const struct fused_tables &t, uint32_t s)
{
    uint32_t units = t.scalars[FUSED_UNITS], lag = t.scalars[FUSED_LAG];

    return t.unit_at[min(s, units)] * a.up_tiles +
           t.unit_at[s < lag ? 0 : min(s - lag, units)] * a.down_tiles;
}

/* The index-th tile of all, or of those of this launch; *step: that of a tile before it, or 0. */
template <class S>
EPA_DEV struct fused_task fused_task_at(const struct fused_args &a, const struct fused_tables &t,
                                        uint32_t index, uint32_t *step)
{
    uint32_t units = t.scalars[FUSED_UNITS], lag = t.scalars[FUSED_LAG], unit, first, blocks, ups;
    struct fused_task task = {FUSED_END, 0, 0, 0, 0};

    if (S::WAYS && a.ways.part != FUSED_PART_ALL) { /* all up tiles come before those down */
        uint32_t all = t.unit_at[units] * a.up_tiles;

        if (a.ways.part == FUSED_PART_UP && index >= all)
            return task;
        index += a.ways.part == FUSED_PART_DOWN ? all : 0;
    }
    if (index >= t.unit_at[units] * (a.up_tiles + a.down_tiles))
        return task;
    /* The first `lag` steps are up tiles alone. */
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

/* ---- loads ----
 *
 * Where a wait for rows ends because something failed, whatever is there is loaded: all roles go on
 * to the last tile. */

/* Which groups of 128 channels of the intermediate or of y the boxes of a tile are: false: the
 * second is not one of them, or, of gate and up, they are one. */
EPA_DEV bool fused_groups(const struct fused_args &a, const struct fused_task &task,
                          uint32_t (&group)[2])
{
    bool up = task.kind == FUSED_UP, pairs = up && a.swiglu != 0;

    group[0] = pairs ? task.tile : 2 * task.tile;
    group[1] = group[0] + 1;
    return !pairs && group[1] * FUSED_GROUP < (up ? a.ffn : a.c.hidden);
}

/* Takes the index-th tile of this block, and makes it known. */
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

/* Of the i-th tile of this block. The first is by number, as an atomic takes a while. */
template <class S> EPA_DEV uint32_t fused_ticket(const struct fused_args &a, uint32_t i)
{
    uint32_t counter = S::WAYS && a.ways.part == FUSED_PART_DOWN ? FUSED_TICKET_DOWN : FUSED_TICKET;

    if (i == 0)
        return blockIdx.x;
    return a.dynamic != 0 ? gridDim.x + atomicInc(a.state + counter, INT32_MAX) : 0;
}

/* The first row that a tile multiplies: received, or of the intermediate. */
template <class S>
EPA_DEV uint32_t fused_first_row(const struct fused_args &a, uint64_t call,
                                 const struct fused_tables &t, const struct fused_task &task)
{
    if (S::PICKS && task.kind == FUSED_UP)
        return fused_picks_first<S>(a, call, t, task.expert, task.block);
    return !S::WAYS && S::MORE == 0 && a.few != 0 && task.kind == FUSED_UP ? fused_few_rows(call)
                                                                           : task.block * S::ROWS;
}

/* The scales of the rows of a tile, from `row` on, and of its weights. */
template <class S>
EPA_DEV struct gemm_scales fused_scales(const struct fused_args &a, const struct fused_task &task,
                                        uint32_t row)
{
    bool up = task.kind == FUSED_UP, pairs = up && a.swiglu != 0;
    uint32_t steps = up ? a.up_steps : a.down_steps;
    uint32_t groups = (up ? a.up_rows : a.c.hidden) / GEMM_BOX, at = task.tile * (pairs ? 1 : 2);
    const float *boxes = (up ? a.up_scale : a.down_scale) + (size_t)task.expert * groups * steps;
    /* Sums of a box beyond the weights are not used. */
    uint32_t second = pairs ? at + a.ffn / GEMM_BOX : min(at + 1, groups - 1);

    return {up ? reinterpret_cast<const float *>(
                     dev_own(a.c.v, a.recv + (uint64_t)row * a.message_bytes) + a.scales_at)
               : a.act_row_scales + (size_t)row * a.act_groups,
            up ? a.message_bytes / 4 : a.act_groups,
            task.rows,
            {boxes + (size_t)at * steps, boxes + (size_t)second * steps}};
}

/* How many blocks of K of a tile are loaded before the next is taken, and before it is known. */
struct fused_turn {
    uint32_t taken, known;
};

/* The next tile is taken at once, so that nothing waits for the work counter. Where tiles are
 * `few`, not before one is multiplied, as another block may have nothing to do. Where experts have
 * more than one block, `late`: tiles that read the same weights follow each other in the counter,
 * and so begin about together. If one is ahead by more than L2 holds, the other reads memory
 * again. */
template <class S> EPA_DEV struct fused_turn fused_turn_of(bool few, bool late, uint32_t steps)
{
    enum { TAKEN = 6, KNOWN = 3, STAGES = S::ring::STAGES };
    uint32_t first = few && steps > STAGES ? STAGES + 1 : 1;

    if (late && steps > TAKEN)
        return {steps - TAKEN, steps - KNOWN};
    return {first, first};
}

/* One thread: takes tiles and loads their weights. It does not wait for tokens. */
template <class S>
EPA_DEV void fused_load_weights(const struct fused_args &a, const struct fused_tables &t,
                                struct fused_pipe *p, typename S::ring &ring)
{
    enum { STAGE = 2 * GEMM_BOX_BYTES };
    struct gemm_at at = {0, 0};
    uint32_t units = t.scalars[FUSED_UNITS], blocks = t.unit_at[units], step = 0;
    bool few = blocks * (a.up_tiles + a.down_tiles) <= 2 * gridDim.x,
         late = blocks > units + units / 16;
    /* What is read once leaves L2 first, and tokens, intermediates and outputs stay. */
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

/* One warp: loads the rows of tiles, once they are there, and their scales. */
template <class S>
EPA_DEV void fused_load_rows(const struct fused_args &a, uint64_t call,
                             const struct fused_tables &t, struct fused_pipe *p,
                             typename S::ring &ring)
{
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
        __syncwarp();
        if (lane == 0)
            epa_dev_mbar_arrive(&p->free[slot]);
        if (task.kind == FUSED_END)
            return;
        up = task.kind == FUSED_UP;
        steps = up ? a.up_steps : a.down_steps;
        row = fused_first_row<S>(a, call, t, task);
        height = gemm_height(task.rows);
        if (lane == 0 && ok && !(few && up))
            ok = fused_wait_rows<S>(a, t, task);
        ok = __shfl_sync(EPA_DEV_ALL, ok, 0);
        epa_dev_fence_async_global();
        __syncwarp();
        const struct gemm_rows_map *map = up ? &a.rows : &a.act;
        if constexpr (S::FP8) {
            struct gemm_scales of = fused_scales<S>(a, task, row);

            if (S::SUBS == 1 || up)
                gemm_load_scaled_rows<FUSED_GROUP>(ring, at, map, height, row, of, steps,
                                                   EPA_L2_NORMAL);
            else
                gemm_load_scaled_rows<FUSED_GROUP / S::SUBS>(ring, at, map, height, row, of, steps,
                                                             EPA_L2_NORMAL);
        } else if (lane == 0) {
            gemm_load_rows<S::TYPE>(ring, at, map, height, row, steps, EPA_L2_NORMAL);
        }
    }
}

#endif
