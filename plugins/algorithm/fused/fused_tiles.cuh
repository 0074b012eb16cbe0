/* Of the kernel of fused: tiles. Which there are and in what order, the warps that load them, and
 * the warpgroups that multiply. */
#ifndef FUSED_TILES_CUH
#define FUSED_TILES_CUH

#include "fused_tokens.cuh"

/* What a kernel is made for. */
template <int TYPE_, int ROW_KIND, bool F16_> struct fused_shape {
    static constexpr epa_dev_type TYPE = (epa_dev_type)TYPE_; /* that is multiplied */
    static constexpr bool FP8 = TYPE_ == EPA_DEV_E4M3, F16 = F16_;
    enum {
        WIDE = ROW_KIND == FUSED_ROWS_128, /* a warpgroup has 64 rows of its own */
        ROWS = WIDE ? 128 : 64,
        STAGES = WIDE ? 4 : 5,
        COLUMNS = WIDE ? 128 : 64, /* of each half of the tile that a warpgroup has */
        SUMS = COLUMNS / 2,        /* of them, that a thread has */
        A_BYTES = ROWS * FUSED_K_BYTES,
        B_BYTES = FUSED_COLUMNS * FUSED_K_BYTES,
        STAGE_BYTES = A_BYTES + B_BYTES,
        SCALE_BYTES = FP8 ? 2 * ROWS * 4 : 0, /* [half][row]: of the row times the half's */
        PIPE_BYTES = STAGES * (STAGE_BYTES + SCALE_BYTES)
    };
};

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

/* The index-th tile of all; *step: that of a tile before it, or 0. */
template <uint32_t ROWS>
EPA_DEV struct fused_task fused_task_at(const struct fused_args &a, const struct fused_tables &t,
                                        uint32_t index, uint32_t *step)
{
    uint32_t units = t.scalars[FUSED_UNITS], lag = t.scalars[FUSED_LAG], unit, first, blocks, ups;
    struct fused_task task = {FUSED_END, 0, 0, 0, 0, 0};

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
    task.rows = fused_block_rows<ROWS>(a, t, task.block, &task.expert);
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
    struct fused_task task = fused_task_at<S::ROWS>(a, t, index, step);

    epa_dev_mbar_wait(&p->free[slot], (i / FUSED_RING & 1) ^ 1);
    p->task[slot] = task;
    epa_dev_mbar_arrive(&p->known[slot]);
    return task;
}

EPA_DEV uint32_t fused_ticket(const struct fused_args &a)
{
    return a.dynamic != 0 ? atomicInc(a.state + FUSED_TICKET, INT32_MAX) : 0;
}

/* One thread: takes tiles and loads their weights. It does not wait for tokens. A tile is known
 * while the one before is loaded, so that nothing waits for its ticket. */
template <class S>
EPA_DEV void fused_load_weights(const struct fused_args &a, const struct fused_tables &t,
                                struct fused_pipe *p, char *stages)
{
    struct fused_cursor at = {0, 1};
    uint32_t step = 0;
    struct fused_task next = fused_take_tile<S>(a, t, p, 0, fused_ticket(a), &step);

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
                next = fused_take_tile<S>(a, t, p, i, fused_ticket(a), &step);
        }
    }
}

/* Scales of four steps: of this lane's rows of a tile, and of the halves of the weights. */
template <class S> struct fused_scales {
    float4 row[S::ROWS / EPA_DEV_WARP], half[2];
};

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
EPA_DEV bool fused_wait_rows(const struct fused_args &a, const struct fused_task &task)
{
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
EPA_DEV void fused_load_rows(const struct fused_args &a, struct fused_pipe *p, char *stages)
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
            ok = fused_wait_rows<S>(a, task);
        ok = __shfl_sync(EPA_DEV_ALL, ok, 0);
        epa_dev_fence_async_global();
        __syncwarp();
        for (uint32_t s4 = 0; s4 < steps; s4 += 4) {
            struct fused_scales<S> v;

            if (S::FP8) {
#pragma unroll
                for (uint32_t r = 0; r < S::ROWS / EPA_DEV_WARP; r++)
                    v.row[r] = __ldcg(reinterpret_cast<const float4 *>(
                        row_scales + (r * EPA_DEV_WARP + lane) * stride + s4));
                v.half[0] = fused_load4(half_scales + (size_t)first * steps, s4, steps);
                v.half[1] = fused_load4(half_scales + (size_t)second * steps, s4, steps);
            }
#pragma unroll
            for (int q = 0; q < 4; q++) {
                if (s4 + q >= steps)
                    break;
                float *to = scales + at.stage * (S::SCALE_BYTES / 4) + lane;

                epa_dev_mbar_wait(&p->empty[at.stage], at.parity);
                if (S::FP8) {
#pragma unroll
                    for (uint32_t r = 0; r < S::ROWS / EPA_DEV_WARP; r++)
#pragma unroll
                        for (uint32_t h = 0; h < 2; h++)
                            to[h * S::ROWS + r * EPA_DEV_WARP] =
                                fused_of4(v.row[r], q) * fused_of4(v.half[h], q);
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

/* ---- sums ---- */

/* A thread of a warpgroup that multiplies. */
struct fused_math {
    uint32_t group, warp, lane; /* which warpgroup, warp of it, lane of that */
    struct fused_cursor at;
    uint32_t scaled; /* tiles whose amax was exchanged */
    /* The tile before: it is stored, but nobody has been told. */
    uint32_t stored, block; /* stored: its enum fused_task_kind; 0: none is */
};

/* The warp has read its stage. */
EPA_DEV void fused_release(const struct fused_math &m, uint64_t *empty)
{
    __syncwarp();
    if (m.lane == 0)
        epa_dev_mbar_arrive(empty);
}

/* Counts the tile that is stored: a release waits until all of it is in place, so it is put off
 * to where it takes less time. All of the warpgroup. */
EPA_DEV void fused_tell(const struct fused_args &a, struct fused_math *m)
{
    uint32_t *count = (m->stored == FUSED_UP ? fused_acts(a) : fused_outputs(a)) + m->block;

    m->stored = 0;
    if (m->warp == 0 && m->lane == 0)
        epa_dev_add_release_gpu(count, 1);
    __syncwarp();
}

/* Before the products of a step: the tile before is told of in the third, or when rows are waited
 * for, which may wait for this. */
EPA_DEV void fused_wait_stage(const struct fused_args &a, struct fused_pipe *p, uint32_t s,
                              uint32_t steps, struct fused_math *m)
{
    uint64_t *full = &p->full[m->at.stage];

    if (m->stored != 0) {
        bool now = s == min(2u, steps - 1);

        if (s == 0 && !now) /* all lanes decide alike */
            now = __any_sync(EPA_DEV_ALL, !epa_dev_mbar_test(full, m->at.parity));
        if (now)
            fused_tell(a, m);
    }
    epa_dev_mbar_wait(full, m->at.parity);
}

/* Descriptors of a stage for this warpgroup: its rows, and its columns of each half. */
template <class S>
EPA_DEV void fused_operands(const struct fused_math &m, const char *stage, uint64_t *rows,
                            uint64_t *half0, uint64_t *half1)
{
    const char *b = stage + S::A_BYTES + (S::WIDE ? 0 : m.group * 64 * FUSED_K_BYTES);

    *rows = epa_dev_tile_descriptor(stage + (S::WIDE ? m.group * 64 * FUSED_K_BYTES : 0));
    *half0 = epa_dev_tile_descriptor(b);
    *half1 = epa_dev_tile_descriptor(b + S::B_BYTES / 2);
}

/* Of 16 bits: the products of a step are queued before those of the step before are waited for. */
template <class S>
EPA_DEV void fused_multiply16(const struct fused_args &a, struct fused_pipe *p, const char *stages,
                              uint32_t steps, struct fused_math *m, float (&sum)[2 * S::SUMS])
{
    uint64_t rows, half0, half1;
    uint32_t before = 0;

    for (uint32_t s = 0; s < steps; s++, fused_advance<S>(&m->at)) {
        fused_operands<S>(*m, stages + m->at.stage * S::STAGE_BYTES, &rows, &half0, &half1);
        fused_wait_stage(a, p, s, steps, m);
        epa_dev_wgmma_begin();
#pragma unroll
        for (uint32_t k = 0; k < FUSED_K_BYTES; k += 32) {
            if constexpr (S::WIDE) {
                epa_dev_wgmma<S::TYPE, 256>(sum, epa_dev_descriptor_add(rows, k),
                                            epa_dev_descriptor_add(half0, k), s + k > 0);
            } else {
                epa_dev_wgmma<S::TYPE, 64>(reinterpret_cast<float(&)[32]>(sum[0]),
                                           epa_dev_descriptor_add(rows, k),
                                           epa_dev_descriptor_add(half0, k), s + k > 0);
                epa_dev_wgmma<S::TYPE, 64>(reinterpret_cast<float(&)[32]>(sum[32]),
                                           epa_dev_descriptor_add(rows, k),
                                           epa_dev_descriptor_add(half1, k), s + k > 0);
            }
        }
        epa_dev_wgmma_commit();
        epa_dev_wgmma_wait<1>();
        if (s > 0)
            fused_release(*m, &p->empty[before]);
        before = m->at.stage;
    }
    epa_dev_wgmma_wait<0>();
    fused_release(*m, &p->empty[before]);
}

/* One half of a step in FP8: its products, which are added up to less than float32. */
template <class S> EPA_DEV void fused_products(uint64_t rows, uint64_t half, float (&part)[S::SUMS])
{
    epa_dev_wgmma_begin();
#pragma unroll
    for (uint32_t k = 0; k < FUSED_K_BYTES; k += 32)
        epa_dev_wgmma<S::TYPE, S::COLUMNS>(part, epa_dev_descriptor_add(rows, k),
                                           epa_dev_descriptor_add(half, k), k > 0);
    epa_dev_wgmma_commit();
}

template <class S>
EPA_DEV void fused_promote(const float (&part)[S::SUMS], float scale0, float scale1, float *sum)
{
#pragma unroll
    for (int i = 0; i < S::SUMS; i++)
        sum[i] = __fmaf_rn(part[i], i / 2 % 2 == 0 ? scale0 : scale1, sum[i]);
}

/* FP8: while a warpgroup promotes its products, the other one multiplies. */
template <class S>
EPA_DEV void fused_multiply8(const struct fused_args &a, struct fused_pipe *p, const char *stages,
                             uint32_t steps, struct fused_math *m, float (&sum)[2 * S::SUMS])
{
    const float *scales = reinterpret_cast<const float *>(stages + S::STAGES * S::STAGE_BYTES) +
                          (S::WIDE ? m->group * 64 : 0) + m->warp * 16 + m->lane / 4;
    uint64_t rows, half0, half1;

#pragma unroll
    for (int i = 0; i < 2 * S::SUMS; i++)
        sum[i] = 0.0f;
    for (uint32_t s = 0; s < steps; s++, fused_advance<S>(&m->at)) {
        const float *scale = scales + m->at.stage * (S::SCALE_BYTES / 4);
        float part[S::SUMS], by[2][2];

        fused_operands<S>(*m, stages + m->at.stage * S::STAGE_BYTES, &rows, &half0, &half1);
        fused_wait_stage(a, p, s, steps, m);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            by[h][0] = scale[h * S::ROWS];
            by[h][1] = scale[h * S::ROWS + 8];
        }
        fused_products<S>(rows, half0, part);
        epa_dev_wgmma_wait<0>();
        fused_promote<S>(part, by[0][0], by[0][1], sum);
        fused_products<S>(rows, half1, part);
        epa_dev_wgmma_wait<0>();
        fused_release(*m, &p->empty[m->at.stage]);
        fused_promote<S>(part, by[1][0], by[1][1], sum + S::SUMS);
    }
}

/* ---- out of sums ---- */

/* A 4 x 4 transpose in each four lanes: lane q gets word q of lanes 0 to 3. */
EPA_DEV uint4 fused_turn(uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3, uint32_t lane)
{
    bool odd = (lane & 1) != 0, upper = (lane & 2) != 0;
    uint32_t x = __shfl_xor_sync(EPA_DEV_ALL, odd ? w0 : w1, 1);
    uint32_t y = __shfl_xor_sync(EPA_DEV_ALL, odd ? w2 : w3, 1);
    uint32_t a0 = odd ? x : w0, a1 = odd ? w1 : x; /* of word `odd`: the lanes of this pair */
    uint32_t b0 = odd ? y : w2, b1 = odd ? w3 : y; /* of word 2 + `odd` */

    x = __shfl_xor_sync(EPA_DEV_ALL, upper ? a0 : b0, 2);
    y = __shfl_xor_sync(EPA_DEV_ALL, upper ? a1 : b1, 2);
    return upper ? make_uint4(x, y, b0, b1) : make_uint4(a0, a1, x, y);
}

/* One of this thread's two rows, its `n` values at value[i / 2 * 4 + i % 2], to 16 bits each. */
template <bool F16, int N>
EPA_DEV void fused_store16(const float *value, char *row, bool stored, uint32_t lane)
{
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        uint32_t w[4];

#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] = epa_dev_pack2<F16>(value[(4 * j + i) * 4], value[(4 * j + i) * 4 + 1]);
        uint4 v = fused_turn(w[0], w[1], w[2], w[3], lane);

        if (stored)
            epa_dev_store16(row + (4 * j + lane % 4) * 16, v);
    }
}

EPA_DEV float fused_finite(float v)
{
    v = fabsf(v);
    return v <= 3.402823466e+38f ? v : 0.0f;
}

EPA_DEV uint32_t fused_codes(float v0, float v1, float scale, float inverse)
{
    return __nv_cvt_float2_to_fp8x2(
        make_float2(epa_quotient(v0, scale, inverse), epa_quotient(v1, scale, inverse)),
        __NV_SATFINITE, __NV_E4M3);
}

/* The same, to FP8 with the scale of its group. */
template <int N>
EPA_DEV void fused_store8(const float *value, float scale, char *row, bool stored, uint32_t lane)
{
    /* So that the quotient's remainder is exact. */
    float by = scale < EPA_QUOTIENT_LEAST ? 0x1p100f : scale > EPA_QUOTIENT_MOST ? 0x1p-64f : 1.0f;
    float inverse;

    scale *= by;
    inverse = __frcp_rn(scale);
#pragma unroll
    for (int j = 0; j < N / 16; j++) {
        uint32_t w[4];

#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *v = value + (4 * j + i) * 8;

            w[i] = fused_codes(v[0] * by, v[1] * by, scale, inverse) |
                   fused_codes(v[4] * by, v[5] * by, scale, inverse) << 16;
        }
        uint4 v = fused_turn(w[0], w[1], w[2], w[3], lane);

        v = make_uint4(__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.z, v.w, 0x5410),
                       __byte_perm(v.x, v.y, 0x7632), __byte_perm(v.z, v.w, 0x7632));
        if (stored)
            epa_dev_store16(row + (4 * j + lane % 4) * 16, v);
    }
}

/* Largest magnitudes of both rows over a group: of this warpgroup's lanes, or of both. */
template <class S>
EPA_DEV void fused_amax(struct fused_pipe *p, struct fused_math *m, const float *value, float *amax)
{
    uint32_t at = m->warp * 16 + m->lane / 4;

    amax[0] = amax[1] = 0;
#pragma unroll
    for (int i = 0; i < S::SUMS; i++)
        amax[i / 2 % 2] = fmaxf(amax[i / 2 % 2], fused_finite(value[i]));
#pragma unroll
    for (int r = 0; r < 2; r++) {
        amax[r] = fmaxf(amax[r], __shfl_xor_sync(EPA_DEV_ALL, amax[r], 1));
        amax[r] = fmaxf(amax[r], __shfl_xor_sync(EPA_DEV_ALL, amax[r], 2));
    }
    if (S::WIDE)
        return;
    float(*both)[64] = p->amax[m->scaled++ % 2];

    if (m->lane % 4 == 0) {
        both[m->group][at] = amax[0];
        both[m->group][at + 8] = amax[1];
    }
    epa_dev_named_sync(3, 256);
    amax[0] = fmaxf(amax[0], both[1 - m->group][at]);
    amax[1] = fmaxf(amax[1], both[1 - m->group][at + 8]);
}

EPA_DEV float fused_swiglu(float gate, float up)
{
    return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

/* 128 channels of the intermediate; `group`: of the row's. */
template <class S>
EPA_DEV void fused_store_act(const struct fused_args &a, struct fused_pipe *p, struct fused_math *m,
                             const struct fused_task &task, const float *value, uint32_t group)
{
    uint32_t at = (S::WIDE ? m->group * 64 : 0) + m->warp * 16 + m->lane / 4;
    uint32_t channel = group * FUSED_HALF + (S::WIDE ? 0 : m->group * 64);
    float amax[2];

    if (S::FP8)
        fused_amax<S>(p, m, value, amax);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint64_t row = (uint64_t)task.block * S::ROWS + at + r * 8;
        bool stored = at + r * 8 < task.rows;

        if (S::FP8) {
            float scale = amax[r] != 0 ? amax[r] * (1.0f / 448.0f) : 1.0f;

            fused_store8<S::SUMS / 2>(value + r * 2, scale, a.act_rows + row * a.ffn + channel,
                                      stored, m->lane);
            if (stored && m->lane % 4 == 0 && (S::WIDE || m->group == 0))
                a.act_row_scales[row * a.act_groups + group] = scale;
        } else {
            fused_store16<S::F16, S::SUMS / 2>(
                value + r * 2, a.act_rows + (row * a.ffn + channel) * 2, stored, m->lane);
        }
    }
}

template <class S>
EPA_DEV void fused_finish_up(const struct fused_args &a, struct fused_pipe *p, struct fused_math *m,
                             const struct fused_task &task, float (&sum)[2 * S::SUMS])
{
    if (a.swiglu != 0) {
#pragma unroll
        for (int i = 0; i < S::SUMS; i++)
            sum[i] = fused_swiglu(sum[i], sum[S::SUMS + i]);
        fused_store_act<S>(a, p, m, task, sum, task.tile);
    } else {
        fused_store_act<S>(a, p, m, task, sum, task.tile * 2);
        if ((task.tile * 2 + 1) * FUSED_HALF < a.ffn)
            fused_store_act<S>(a, p, m, task, sum + S::SUMS, task.tile * 2 + 1);
    }
}

template <class S>
EPA_DEV void fused_finish_down(const struct fused_args &a, const struct fused_math *m,
                               const struct fused_task &task, const float (&sum)[2 * S::SUMS])
{
    uint32_t at = (S::WIDE ? m->group * 64 : 0) + m->warp * 16 + m->lane / 4;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t channel = task.tile * FUSED_COLUMNS + h * FUSED_HALF;

        if (channel >= a.c.hidden)
            break;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint64_t row = (uint64_t)task.block * S::ROWS + at + r * 8;

            fused_store16<S::F16, S::SUMS / 2>(
                sum + h * S::SUMS + r * 2,
                a.y + (row * a.c.hidden + channel + (S::WIDE ? 0 : m->group * 64)) * 2,
                at + r * 8 < task.rows, m->lane);
        }
    }
}

/* A warpgroup. */
template <class S>
EPA_DEV void fused_multiply(const struct fused_args &a, struct fused_pipe *p, const char *stages,
                            uint32_t group)
{
    struct fused_math m = {group,
                           __shfl_sync(EPA_DEV_ALL, threadIdx.x / EPA_DEV_WARP % 4, 0),
                           epa_dev_lane(),
                           {0, 0},
                           0,
                           0,
                           0};

    for (uint32_t i = 0;; i++) {
        uint32_t slot = i % FUSED_RING, steps;
        struct fused_task task;
        float sum[2 * S::SUMS];

        epa_dev_mbar_wait(&p->known[slot], i / FUSED_RING & 1);
        task = p->task[slot];
        __syncwarp();
        if (m.lane == 0)
            epa_dev_mbar_arrive(&p->free[slot]);
        if (task.kind == FUSED_END)
            break;
        steps = task.kind == FUSED_UP ? a.up_steps : a.down_steps;
        if constexpr (S::FP8)
            fused_multiply8<S>(a, p, stages, steps, &m, sum);
        else
            fused_multiply16<S>(a, p, stages, steps, &m, sum);
        if (task.kind == FUSED_UP)
            fused_finish_up<S>(a, p, &m, task, sum);
        else
            fused_finish_down<S>(a, &m, task, sum);
        epa_dev_named_sync(1 + m.group, 128); /* all of its threads have stored */
        m.stored = task.kind;
        m.block = task.block;
    }
    if (m.stored != 0)
        fused_tell(a, &m);
}

#endif
