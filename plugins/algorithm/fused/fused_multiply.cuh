/* Of the kernel of fused: the warpgroups that multiply tiles, and what becomes of their sums. */
#ifndef FUSED_MULTIPLY_CUH
#define FUSED_MULTIPLY_CUH

#include "fused_tiles.cuh"

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

/* One half of a step in FP8, or of some of its channels: its products, which are added up to less
 * than float32. */
template <class S, uint32_t FROM = 0, uint32_t BYTES = FUSED_K_BYTES>
EPA_DEV void fused_products(uint64_t rows, uint64_t half, float (&part)[S::SUMS])
{
    epa_dev_wgmma_begin();
#pragma unroll
    for (uint32_t k = FROM; k < FROM + BYTES; k += 32)
        epa_dev_wgmma<S::TYPE, S::COLUMNS>(part, epa_dev_descriptor_add(rows, k),
                                           epa_dev_descriptor_add(half, k), k > FROM);
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

/* FP8, where each 64 channels of a row have a scale. */
template <class S>
EPA_DEV void fused_multiply64(const struct fused_args &a, struct fused_pipe *p, const char *stages,
                              uint32_t steps, struct fused_math *m, float (&sum)[2 * S::SUMS])
{
    const float *scales = reinterpret_cast<const float *>(stages + S::STAGES * S::STAGE_BYTES) +
                          (S::WIDE ? m->group * 64 : 0) + m->warp * 16 + m->lane / 4;
    uint64_t rows, half[2];

#pragma unroll
    for (int i = 0; i < 2 * S::SUMS; i++)
        sum[i] = 0.0f;
    for (uint32_t s = 0; s < steps; s++, fused_advance<S>(&m->at)) {
        const float *scale = scales + m->at.stage * (S::SCALE_BYTES / 4);
        float part[S::SUMS], by[4][2]; /* [sub][half] */

        fused_operands<S>(*m, stages + m->at.stage * S::STAGE_BYTES, &rows, &half[0], &half[1]);
        fused_wait_stage(a, p, s, steps, m);
#pragma unroll
        for (int h = 0; h < 4; h++) {
            by[h][0] = scale[h * S::ROWS];
            by[h][1] = scale[h * S::ROWS + 8];
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            fused_products<S, 0, 64>(rows, half[h], part);
            epa_dev_wgmma_wait<0>();
            fused_promote<S>(part, by[h][0], by[h][1], sum + h * S::SUMS);
            fused_products<S, 64, 64>(rows, half[h], part);
            epa_dev_wgmma_wait<0>();
            if (h == 1)
                fused_release(*m, &p->empty[m->at.stage]);
            fused_promote<S>(part, by[2 + h][0], by[2 + h][1], sum + h * S::SUMS);
        }
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

/* The same over 64 channels, which are a warpgroup's own: of N values. */
template <int N> EPA_DEV void fused_amax64(const float *value, float *amax)
{
    amax[0] = amax[1] = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        amax[i / 2 % 2] = fmaxf(amax[i / 2 % 2], fused_finite(value[i]));
#pragma unroll
    for (int r = 0; r < 2; r++) {
        amax[r] = fmaxf(amax[r], __shfl_xor_sync(EPA_DEV_ALL, amax[r], 1));
        amax[r] = fmaxf(amax[r], __shfl_xor_sync(EPA_DEV_ALL, amax[r], 2));
    }
}

EPA_DEV float fused_swiglu(float gate, float up)
{
    return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

/* 128 channels of the intermediate with a scale for each 64: two in a warpgroup, or one in each. */
template <class S>
EPA_DEV void fused_store_act64(const struct fused_args &a, struct fused_math *m,
                               const struct fused_task &task, const float *value, uint32_t group)
{
    enum { N = 32, OWN = S::SUMS / N };
    uint32_t at = (S::WIDE ? m->group * 64 : 0) + m->warp * 16 + m->lane / 4;

#pragma unroll
    for (int g = 0; g < OWN; g++) {
        uint32_t column = 2 * group + (S::WIDE ? g : m->group);
        float amax[2];

        fused_amax64<N>(value + g * N, amax);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint64_t row = (uint64_t)task.block * S::ROWS + at + r * 8;
            bool stored = at + r * 8 < task.rows;
            float scale = amax[r] != 0 ? amax[r] * (1.0f / 448.0f) : 1.0f;

            fused_store8<N / 2>(value + g * N + r * 2, scale,
                                a.act_rows + row * a.ffn + column * 64, stored, m->lane);
            if (stored && m->lane % 4 == 0)
                a.act_row_scales[row * a.act_groups + column] = scale;
        }
    }
}

/* 128 channels of the intermediate; `group`: of the row's. */
template <class S>
EPA_DEV void fused_store_act(const struct fused_args &a, struct fused_pipe *p, struct fused_math *m,
                             const struct fused_task &task, const float *value, uint32_t group)
{
    uint32_t at = (S::WIDE ? m->group * 64 : 0) + m->warp * 16 + m->lane / 4;
    uint32_t channel = group * FUSED_HALF + (S::WIDE ? 0 : m->group * 64);
    float amax[2];

    if constexpr (S::SUBS == 2) {
        fused_store_act64<S>(a, m, task, value, group);
        return;
    }
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
        if constexpr (S::SUBS == 2)
            fused_multiply64<S>(a, p, stages, steps, &m, sum);
        else if constexpr (S::FP8)
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
