/* Of the kernel of fused: tiles. Which there are and in what order, and the warps that load them
 * (fused_multiply.cuh has the warpgroups that multiply). */
#ifndef FUSED_TILES_CUH
#define FUSED_TILES_CUH

#include "fused_tokens.cuh"

enum fused_task_kind { FUSED_END, FUSED_UP, FUSED_DOWN };

/* A tile; `rows` of its block are in use. */
struct fused_task {
    uint32_t kind, expert, block, tile, rows;
    uint32_t shared; /* other blocks read the same weights at about the same time */
};

/* Of a block, in shared memory behind the stages. */
struct fused_pipe {
    uint64_t full[8], empty[8]; /* stages */
    uint64_t known[FUSED_RING], free[FUSED_RING];
    struct fused_task task[FUSED_RING];
    float amax[2][2][64];
    /* Scales of a row, on their way out. */
    __align__(16) float staged[FUSED_TOKEN_WARPS][FUSED_MOST_GROUPS];
    float scales_of_warp[FUSED_MATH_WARPS][FUSED_MOST_GROUPS];
    uint32_t rows[EPA_DEV_WARP]; /* of the choices of a token */
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
    struct fused_task task = {FUSED_END, 0, 0, 0, 0, 0};

    if (S::WAYS && a.ways.part != FUSED_PART_ALL) { /* all up tiles come before those down */
        uint32_t all = t.unit_at[units] * a.up_tiles;

        if (a.ways.part == FUSED_PART_UP && index >= all)
            return task;
        index += a.ways.part == FUSED_PART_DOWN ? all : 0;
    }
    if (index >= t.unit_at[units] * (a.up_tiles + a.down_tiles))
        return task;
    while (fused_step_at(a, t, *step + 1) <= index)
        ++*step;
    index -= fused_step_at(a, t, *step);
    ups = *step < units ? (t.unit_at[*step + 1] - t.unit_at[*step]) * a.up_tiles : 0;
    task.kind = index < ups ? FUSED_UP : FUSED_DOWN;
    unit = index < ups ? *step : *step - lag;
    index -= index < ups ? 0 : ups;
    first = t.unit_at[unit];
    blocks = t.unit_at[unit + 1] - first;
    task.block = first + index % blocks;
    task.tile = index / blocks;
    task.shared = blocks > 1;
    task.rows = fused_block_rows<S::ROWS>(a, t, task.block, &task.expert);
    return task;
}

/* Where a role is in the ring of stages. */
struct fused_cursor {
    uint32_t stage, parity;
};

template <class S> EPA_DEV void fused_advance(struct fused_cursor *at)
{
    at->stage++;
    if (at->stage == (uint32_t)S::STAGES) {
        at->stage = 0;
        at->parity ^= 1;
    }
}

/* ---- loads ----
 *
 * Where a wait for rows ends because something failed, whatever is there is loaded: all roles go on
 * to the last tile. */

/* Groups of 128 rows of weights that are the halves of a tile. */
EPA_DEV void fused_halves(const struct fused_args &a, const struct fused_task &task,
                          uint32_t *first, uint32_t *second)
{
    bool up = task.kind == FUSED_UP;
    uint32_t groups = (up ? a.up_rows : a.c.hidden) / FUSED_HALF;
    bool pairs = up && a.swiglu != 0;
    uint32_t at = pairs ? task.tile : 2 * task.tile;

    *first = task.expert * groups + at;
    *second = task.expert * groups + (pairs ? at + a.ffn / FUSED_HALF : min(at + 1, groups - 1));
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

template <class S> EPA_DEV uint32_t fused_ticket(const struct fused_args &a)
{
    uint32_t counter = S::WAYS && a.ways.part == FUSED_PART_DOWN ? FUSED_TICKET_DOWN : FUSED_TICKET;

    return a.dynamic != 0 ? atomicInc(a.state + counter, INT32_MAX) : 0;
}

/* One thread: takes tiles and loads their weights. It does not wait for tokens. A tile is known
 * while the one before is loaded, so that nothing waits for its ticket. */
template <class S>
EPA_DEV void fused_load_weights(const struct fused_args &a, const struct fused_tables &t,
                                struct fused_pipe *p, char *stages)
{
    struct fused_cursor at = {0, 1};
    uint32_t step = 0;
    struct fused_task next = fused_take_tile<S>(a, t, p, 0, fused_ticket<S>(a), &step);

    for (uint32_t i = 1; next.kind != FUSED_END; i++) {
        struct fused_task task = next;
        bool up = task.kind == FUSED_UP;
        uint32_t steps = up ? a.up_steps : a.down_steps;
        uint64_t l2 = task.shared ? EPA_L2_NORMAL : EPA_L2_EVICT_FIRST;
        const char *from = (up ? a.up : a.down) +
                           ((uint64_t)task.expert * (up ? a.up_tiles : a.down_tiles) + task.tile) *
                               steps * FUSED_WEIGHT_BYTES;

        for (uint32_t s = 0; s < steps; s++, fused_advance<S>(&at)) {
            uint64_t *full = &p->full[at.stage];

            epa_dev_mbar_wait(&p->empty[at.stage], at.parity);
            epa_dev_mbar_expect(full, FUSED_WEIGHT_BYTES);
            epa_dev_bulk_load(stages + at.stage * S::STAGE_BYTES + S::A_BYTES,
                              from + (uint64_t)s * FUSED_WEIGHT_BYTES, FUSED_WEIGHT_BYTES, full,
                              l2);
            if (s == 0)
                next = fused_take_tile<S>(a, t, p, i, fused_ticket<S>(a), &step);
        }
    }
}

/* Scales of some steps: of this lane's rows of a tile, and of the halves of the weights. */
template <class S> struct fused_scales {
    float4 row[S::ROWS / EPA_DEV_WARP], half[2];
};

/* Those of a row: of four steps, or, two for each, of two. */
template <class S> EPA_DEV float4 fused_load_row_scales(const float *from, uint32_t step, bool up)
{
    if (S::SUBS == 1)
        return __ldcg(reinterpret_cast<const float4 *>(from + step));
    if (!up)
        return __ldcg(reinterpret_cast<const float4 *>(from + 2 * step));
    float2 v = __ldcg(reinterpret_cast<const float2 *>(from + step));

    return make_float4(v.x, v.x, v.y, v.y);
}

EPA_DEV float fused_of4(float4 v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Four of `n` floats, aligned to 4 bytes alone. */
EPA_DEV float4 fused_load4(const float *from, uint32_t at, uint32_t n)
{
    return make_float4(__ldg(from + at), __ldg(from + min(at + 1, n - 1)),
                       __ldg(from + min(at + 2, n - 1)), __ldg(from + min(at + 3, n - 1)));
}

template <class S>
EPA_DEV bool fused_wait_rows(const struct fused_args &a, const struct fused_tables &t,
                             const struct fused_task &task)
{
    if (S::WAYS && task.kind == FUSED_UP && a.ways.tail != 0)
        return fused_wait_count(a, fused_copied(a) + task.block, task.rows,
                                {0, FUSED_WAIT_COPIES, task.expert, task.block});
    if (S::WAYS && task.kind == FUSED_UP)
        return fused_wait_arrived<S>(a, t, task.block);
    if (task.kind == FUSED_UP)
        return fused_wait_count(
            a, reinterpret_cast<const uint32_t *>(dev_own(a.c.v, a.arrived)) + task.block,
            task.rows * (a.spread != 0 ? FUSED_MATH_WARPS : 1),
            {0, FUSED_WAIT_ROWS, task.expert, task.block});
    return fused_wait_count(a, fused_acts(a) + task.block, 2 * a.up_tiles,
                            {0, FUSED_WAIT_ACTS, task.expert, task.block});
}

/* One warp: loads the rows of tiles, once they are there, and their scales. */
template <class S>
EPA_DEV void fused_load_rows(const struct fused_args &a, const struct fused_tables &t,
                             struct fused_pipe *p, char *stages)
{
    struct fused_cursor at = {0, 1};
    float *scales = reinterpret_cast<float *>(stages + S::STAGES * S::STAGE_BYTES);
    uint32_t lane = epa_dev_lane();
    bool ok = true;

    for (uint32_t i = 0;; i++) {
        uint32_t slot = i % FUSED_RING, height, steps, first, second, row;
        const float *row_scales, *half_scales;
        struct fused_task task;
        size_t stride;
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
        row = task.block * S::ROWS;
        height = task.rows <= 16 ? 0 : task.rows <= 32 ? 1 : task.rows <= 64 ? 2 : 3;
        const CUtensorMap *map = up ? &a.rows[height] : &a.act[height];
        if (S::FP8) {
            row_scales =
                up ? reinterpret_cast<const float *>(
                         dev_own(a.c.v, a.recv + (uint64_t)row * a.message_bytes) + a.scales_at)
                   : a.act_row_scales + (size_t)row * a.act_groups;
            stride = up ? a.message_bytes / 4 : a.act_groups;
            half_scales = up ? a.up_scale : a.down_scale;
            fused_halves(a, task, &first, &second);
        }
        if (lane == 0 && ok)
            ok = fused_wait_rows<S>(a, t, task);
        ok = __shfl_sync(EPA_DEV_ALL, ok, 0);
        epa_dev_fence_async_global();
        __syncwarp();
        for (uint32_t s4 = 0; s4 < steps; s4 += 4 / S::SUBS) {
            struct fused_scales<S> v;

            if (S::FP8) {
#pragma unroll
                for (uint32_t r = 0; r < S::ROWS / EPA_DEV_WARP; r++)
                    v.row[r] = fused_load_row_scales<S>(
                        row_scales + (r * EPA_DEV_WARP + lane) * stride, s4, up);
                v.half[0] = fused_load4(half_scales + (size_t)first * steps, s4, steps);
                v.half[1] = fused_load4(half_scales + (size_t)second * steps, s4, steps);
            }
#pragma unroll
            for (int q = 0; q < 4 / S::SUBS; q++) {
                if (s4 + q >= steps)
                    break;
                float *to = scales + at.stage * (S::SCALE_BYTES / 4) + lane;

                epa_dev_mbar_wait(&p->empty[at.stage], at.parity);
                if (S::FP8) {
#pragma unroll
                    for (uint32_t r = 0; r < S::ROWS / EPA_DEV_WARP; r++)
#pragma unroll
                        for (uint32_t h = 0; h < 2 * S::SUBS; h++)
                            to[h * S::ROWS + r * EPA_DEV_WARP] =
                                fused_of4(v.row[r], S::SUBS * q + h / 2) *
                                fused_of4(v.half[h % 2], q);
                }
                __syncwarp(); /* no lane may be a phase behind, either */
                if (lane == 0) {
                    epa_dev_mbar_expect(&p->full[at.stage], (16u << height) * FUSED_K_BYTES);
                    epa_dev_tile_load(stages + at.stage * S::STAGE_BYTES, map,
                                      (int32_t)((s4 + q) * FUSED_K_BYTES), (int32_t)row,
                                      &p->full[at.stage], EPA_L2_NORMAL);
                }
                fused_advance<S>(&at);
            }
        }
    }
}

#endif
