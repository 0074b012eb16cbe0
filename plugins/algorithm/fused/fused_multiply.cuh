/* Kernel of fused: the warpgroups that multiply tiles, and the stores of their sums. */
#ifndef FUSED_MULTIPLY_CUH
#define FUSED_MULTIPLY_CUH

#include "../../common/gemm_epilogue.cuh"
#include "fused_tiles.cuh"

/* Returns the destination of 128 channels of a tile, from row `first` of the tile on, and of their
 * scales. */
template <class S>
EPA_DEV struct gemm_out fused_out(const struct fused_args &a, const struct fused_pipe *p,
                                  const struct fused_task &task, uint32_t first, uint32_t group,
                                  float **scale)
{
    uint64_t row = (uint64_t)task.block * S::ROWS + first;
    bool up = task.kind == FUSED_UP;
    size_t stride = up ? a.ffn * S::BYTES : a.c.hidden * 2;
    uint64_t skip = 0;
    uint32_t beyond = 0;

    /* Few tokens: skips rows that did not choose this expert. */
    if (!S::WAYS && !S::PICKS && S::MORE == 0 && p->wants != NULL)
        skip = ~((uint64_t)p->wants[2 * task.expert + 1] << 32 | p->wants[2 * task.expert]);
    if (S::RAGGED) {
        uint32_t columns = up ? a.ffn : a.c.hidden, end = (group + 1) * FUSED_GROUP;

        beyond = end > columns ? end - columns : 0;
    }
    *scale = a.act_row_scales + row * a.act_groups + group * S::SUBS;
    return {(up ? a.act_rows : a.y) + row * stride + group * FUSED_GROUP * (up ? S::BYTES : 2),
            stride, task.rows - first, skip, beyond};
}

template <int N>
EPA_DEV void fused_activate(const struct fused_args &a, const struct fused_task &task,
                            float (&sum)[2][N])
{
    if (task.kind == FUSED_UP && a.swiglu != 0) {
#pragma unroll
        for (int i = 0; i < N; i++)
            sum[0][i] = gemm_swiglu(sum[0][i], sum[1][i]);
    }
}

/* Counts the stored tile of a warpgroup, if it is not counted yet. Called by the first thread of
 * the warpgroup. */
EPA_DEV void fused_count_tile(struct fused_pipe *p)
{
    uint32_t **tile = &p->uncounted[threadIdx.x / 128 - 1];

    if (*tile != NULL)
        epa_dev_add_release_gpu(*tile, 1);
    *tile = NULL;
}

/* Stores the sums of a tile of more than S::SMALL_ROWS rows. */
template <class S>
EPA_DEV void fused_store_wide(const struct fused_args &a, const struct fused_pipe *p,
                              const struct fused_task &task, float (&sum)[2][64])
{
    float *scale;
    uint32_t group[2];
    bool both = fused_groups(a, task, group);

    fused_activate(a, task, sum);
#pragma unroll
    for (int b = 0; b < 2; b++) {
        if (b == 1 && !both)
            break;
        struct gemm_out out = fused_out<S>(a, p, task, 0, group[b], &scale);

        if (S::FP8 && task.kind == FUSED_UP)
            gemm_quantise<S::GROUP>(out, scale, a.act_groups, sum[b]);
        else
            gemm_store<S::F16, false>(out, sum[b]);
    }
}

/* Stores the sums of at most N rows, from row `first` of the tile on; `turn` is that parameter of
 * gemm_quantise_small(). */
template <class S, int N>
EPA_DEV void fused_store_small(const struct fused_args &a, const struct fused_pipe *p,
                               typename S::ring &ring, const struct fused_task &task,
                               uint32_t first, uint32_t *turn, float (&sum)[2][N / 2])
{
    float *scale;
    uint32_t group[2];
    bool both = fused_groups(a, task, group);

    fused_activate(a, task, sum);
#pragma unroll
    for (int b = 0; b < 2; b++) {
        if (b == 1 && !both)
            break;
        struct gemm_out out = fused_out<S>(a, p, task, first, group[b], &scale);

        if (S::RAGGED && gemm_small_beyond(out))
            out.rows = 0;
        if (S::FP8 && task.kind == FUSED_UP) {
            gemm_quantise_small<S::GROUP, N>(ring, *turn, out, scale, a.act_groups, sum[b]);
            *turn = *turn == 2 ? 0 : *turn + 1;
        } else {
            gemm_store_small<S::F16, false, N>(out, sum[b]);
        }
    }
}

/* Computes a tile of more than S::SMALL_ROWS rows. */
template <class S>
EPA_DEV void fused_wide_tile(const struct fused_args &a, struct fused_pipe *p,
                             typename S::ring &ring, struct gemm_at &at,
                             const struct fused_task &task)
{
    float sum[2][64];
    bool up = task.kind == FUSED_UP;
    auto count = [p]() {
        if (threadIdx.x % 128 == 0)
            fused_count_tile(p);
        __syncwarp();
    };

    if (!S::FP8 || S::SUBS == S::ROW_SUBS || up)
        gemm_multiply<S::TYPE, S::ROW_GROUP>(ring, at, up ? a.up_steps : a.down_steps, sum, 2,
                                             count);
    else
        gemm_multiply<S::TYPE, S::GROUP>(ring, at, a.down_steps, sum, 2, count);
    fused_store_wide<S>(a, p, task, sum);
}

/* Multiplies columns FROM to FROM + N of both boxes, of a block of K, and adds the products to the
 * sums of GEMM_ROWS rows. besides(): issues PENDING further groups of products. */
template <int FROM, int N, int PENDING, class RING, class BESIDES>
EPA_DEV void fused_multiply_columns(RING &ring, uint32_t stage, float (&sum)[2][64],
                                    BESIDES besides)
{
    const char *rows = ring.stage[stage] + gemm_warpgroup() * 64 * GEMM_BLOCK;
    uint64_t x = epa_dev_tile_descriptor(rows);
    uint64_t w = epa_dev_tile_descriptor(ring.stage[stage] + GEMM_ROWS_BYTES + FROM * GEMM_BLOCK);
    const uint32_t row = gemm_row(0);
    float part[N / 2];

    epa_dev_wgmma_begin();
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        epa_dev_wgmma<EPA_DEV_E4M3, N>(part, epa_dev_descriptor_add(x, 32 * i),
                                       epa_dev_descriptor_add(w, 32 * i), i > 0);
    epa_dev_wgmma_commit();
    besides();
    epa_dev_wgmma_wait<PENDING>();
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        const int at = FROM / 2 + i, b = at / 64;

        sum[b][at % 64] =
            __fmaf_rn(part[i], ring.scale[stage][b][0][row + i / 2 % 2 * 8], sum[b][at % 64]);
    }
}

/* Multiplies an FP8 tile of GEMM_ROWS rows and up to GEMM_MORE further rows: `more` receives the
 * sums of the further rows, in the layout of gemm_multiply_small<GEMM_MORE>(). A box at a time, as
 * in multiply_more() of gemm_experts.cu, would take eight registers more than warps have here.
 * Spills would go to L2, since shared memory leaves no room for a cache, and such a tile would take
 * 1.5 times as long. */
template <class RING>
EPA_DEV void fused_multiply_more(RING &ring, struct gemm_at &at, uint32_t k_blocks,
                                 float (&sum)[2][64], float (&more)[2][GEMM_MORE / 2])
{
#pragma unroll
    for (int b = 0; b < 2; b++) {
#pragma unroll
        for (int i = 0; i < 64; i++)
            sum[b][i] = 0.0f;
#pragma unroll
        for (int i = 0; i < GEMM_MORE / 2; i++)
            more[b][i] = 0.0f;
    }
    for (uint32_t k = 0; k < k_blocks; k++) {
        float part[2][GEMM_MORE / 2];
        auto besides = [&] {
#pragma unroll
            for (uint32_t b = 0; b < 2; b++) {
                uint64_t w = epa_dev_tile_descriptor(ring.stage[at.stage] + GEMM_ROWS_BYTES +
                                                     b * GEMM_BOX_BYTES +
                                                     gemm_warpgroup() * 64 * GEMM_BLOCK);
                uint64_t x = epa_dev_tile_descriptor(ring.more[at.stage]);

#pragma unroll
                for (uint32_t i = 0; i < 4; i++)
                    epa_dev_wgmma<EPA_DEV_E4M3, GEMM_MORE>(
                        part[b], epa_dev_descriptor_add(w, 32 * i),
                        epa_dev_descriptor_add(x, 32 * i), i > 0);
            }
            epa_dev_wgmma_commit();
        };

        epa_dev_mbar_wait(&ring.full[at.stage], at.phase);
        fused_multiply_columns<0, 96, 0>(ring, at.stage, sum, [] {});
        fused_multiply_columns<96, 96, 0>(ring, at.stage, sum, [] {});
        fused_multiply_columns<192, 64, 1>(ring, at.stage, sum, besides);
        epa_dev_wgmma_wait<0>();
#pragma unroll
        for (int b = 0; b < 2; b++)
            gemm_add_scaled<GEMM_MORE>(more[b], part[b], ring.scale[at.stage][b][0] + GEMM_ROWS);
        gemm_release<EPA_DEV_E4M3>(ring, at.stage);
        gemm_next<RING>(at);
    }
}

/* Computes a tile of more than GEMM_ROWS rows. */
template <class S>
EPA_DEV void fused_tall_tile(const struct fused_args &a, struct fused_pipe *p,
                             typename S::ring &ring, struct gemm_at &at,
                             const struct fused_task &task, uint32_t *turn)
{
    float sum[2][64], more[2][S::MORE / 2];

    fused_multiply_more(ring, at, task.kind == FUSED_UP ? a.up_steps : a.down_steps, sum, more);
    fused_store_wide<S>(a, p, task, sum);
    fused_store_small<S, S::MORE>(a, p, ring, task, GEMM_ROWS, turn, more);
}

/* Computes a tile of at most N rows. */
template <class S, int N>
EPA_DEV void fused_small_tile(const struct fused_args &a, const struct fused_pipe *p,
                              typename S::ring &ring, struct gemm_at &at,
                              const struct fused_task &task, uint32_t *turn)
{
    float sum[2][N / 2];
    bool up = task.kind == FUSED_UP;

    if (!S::FP8 || S::SUBS == S::ROW_SUBS || up)
        gemm_multiply_small<S::TYPE, S::ROW_GROUP, N>(ring, at, up ? a.up_steps : a.down_steps,
                                                      sum);
    else
        gemm_multiply_small<S::TYPE, S::GROUP, N>(ring, at, a.down_steps, sum);
    fused_store_small<S, N>(a, p, ring, task, 0, turn, sum);
}

template <class S>
EPA_DEV void fused_tile(const struct fused_args &a, struct fused_pipe *p, typename S::ring &ring,
                        struct gemm_at &at, const struct fused_task &task, uint32_t *turn)
{
    if constexpr (S::MORE != 0)
        if (task.rows > GEMM_ROWS)
            return fused_tall_tile<S>(a, p, ring, at, task, turn);
    if (task.rows > S::SMALL_ROWS)
        fused_wide_tile<S>(a, p, ring, at, task);
    else if (task.rows > 32)
        fused_small_tile<S, S::SMALL_ROWS>(a, p, ring, at, task, turn);
    else if (task.rows > 16)
        fused_small_tile<S, 32>(a, p, ring, at, task, turn);
    else
        fused_small_tile<S, 16>(a, p, ring, at, task, turn);
}

/* Called by a warpgroup. */
template <class S>
EPA_DEV void fused_multiply(const struct fused_args &a, uint64_t call, const struct fused_tables &t,
                            struct fused_pipe *p, typename S::ring &ring)
{
    struct gemm_at at = {0, 0};
    uint32_t turn = 0;

    for (uint32_t i = 0;; i++) {
        uint32_t slot = i % FUSED_RING;
        struct fused_task task;

        epa_dev_mbar_wait(&p->known[slot], i / FUSED_RING & 1);
        task = p->task[slot];
        epa_dev_mbar_arrive(&p->free[slot]);
        /* Missing rows may depend on the previous tile, so the warpgroup counts that tile before it
         * waits for the rows. */
        if (!S::FP8 && threadIdx.x % 128 == 0 &&
            (task.rows <= S::SMALL_ROWS || !epa_dev_mbar_test(&ring.full[at.stage], at.phase)))
            fused_count_tile(p);
        __syncwarp();
        if (task.kind == FUSED_END)
            break;
        if (fused_has_notes<S>(a) && threadIdx.x == FUSED_FIRST_MATH)
            fused_note_begin<S>(a, call, t, task, FUSED_NOTE_TILE, epa_dev_time());
        fused_tile<S>(a, p, ring, at, task, &turn);
        /* Each warpgroup counts a tile after all of its threads have stored: a wide tile of 16 bits
         * during the multiplication of the next tile, so that no thread waits for the stores. */
        epa_dev_named_sync(FUSED_NAMED_STORED + gemm_warpgroup(), 128);
        if (fused_has_notes<S>(a) && threadIdx.x == FUSED_FIRST_MATH)
            fused_note_end(a, task, FUSED_NOTE_TILE);
        if (threadIdx.x % 128 == 0) {
            fused_count_tile(p); /* the previous tile, if this tile had only one block of K */
            p->uncounted[threadIdx.x / 128 - 1] =
                (task.kind == FUSED_UP ? fused_acts(a) : fused_outputs(a)) + task.block;
            if (S::FP8 || task.rows <= S::SMALL_ROWS)
                fused_count_tile(p);
        }
        __syncwarp();
    }
}

#endif
