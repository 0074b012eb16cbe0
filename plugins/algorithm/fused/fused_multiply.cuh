/* Of the kernel of fused: the warpgroups that multiply tiles, and what becomes of their sums. */
#ifndef FUSED_MULTIPLY_CUH
#define FUSED_MULTIPLY_CUH

#include "../../common/gemm_epilogue.cuh"
#include "fused_tiles.cuh"

/* Where 128 channels of a tile go, and their scales. */
template <class S>
EPA_DEV struct gemm_out fused_out(const struct fused_args &a, const struct fused_pipe *p,
                                  const struct fused_task &task, uint32_t group, float **scale)
{
    uint64_t row = (uint64_t)task.block * S::ROWS;
    bool up = task.kind == FUSED_UP;
    size_t stride = up ? a.ffn * S::BYTES : a.c.hidden * 2;
    uint64_t skip = 0;

    /* Few tokens: rows that did not choose this expert. */
    if (!S::WAYS && p->wants != NULL)
        skip = ~((uint64_t)p->wants[2 * task.expert + 1] << 32 | p->wants[2 * task.expert]);
    *scale = a.act_row_scales + row * a.act_groups + group * S::SUBS;
    return {(up ? a.act_rows : a.y) + row * stride + group * FUSED_GROUP * (up ? S::BYTES : 2),
            stride, task.rows, skip};
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

/* The first thread of a warpgroup: what it has stored, if that is not counted yet. */
EPA_DEV void fused_count_tile(struct fused_pipe *p)
{
    uint32_t **tile = &p->uncounted[threadIdx.x / 128 - 1];

    if (*tile != NULL)
        epa_dev_add_release_gpu(*tile, 1);
    *tile = NULL;
}

/* A tile of more than S::SMALL_ROWS rows. */
template <class S>
EPA_DEV void fused_wide_tile(const struct fused_args &a, struct fused_pipe *p,
                             typename S::ring &ring, struct gemm_at &at,
                             const struct fused_task &task)
{
    float sum[2][64], *scale;
    uint32_t group[2];
    bool both = fused_groups(a, task, group), up = task.kind == FUSED_UP;
    auto count = [p]() {
        if (threadIdx.x % 128 == 0)
            fused_count_tile(p);
        __syncwarp();
    };

    if (S::SUBS == 1 || up)
        gemm_multiply<S::TYPE, FUSED_GROUP>(ring, at, up ? a.up_steps : a.down_steps, sum, 2,
                                            count);
    else
        gemm_multiply<S::TYPE, FUSED_GROUP / S::SUBS>(ring, at, a.down_steps, sum, 2, count);
    fused_activate(a, task, sum);
#pragma unroll
    for (int b = 0; b < 2; b++) {
        if (b == 1 && !both)
            break;
        struct gemm_out out = fused_out<S>(a, p, task, group[b], &scale);

        if (S::FP8 && up)
            gemm_quantise<FUSED_GROUP / S::SUBS>(out, scale, a.act_groups, sum[b]);
        else
            gemm_store<S::F16, false>(out, sum[b]);
    }
}

/* A tile of at most N rows: `turn` as gemm_quantise_small() takes it. */
template <class S, int N>
EPA_DEV void fused_small_tile(const struct fused_args &a, const struct fused_pipe *p,
                              typename S::ring &ring, struct gemm_at &at,
                              const struct fused_task &task, uint32_t *turn)
{
    float sum[2][N / 2], *scale;
    uint32_t group[2];
    bool both = fused_groups(a, task, group), up = task.kind == FUSED_UP;

    if (S::SUBS == 1 || up)
        gemm_multiply_small<S::TYPE, FUSED_GROUP, N>(ring, at, up ? a.up_steps : a.down_steps, sum);
    else
        gemm_multiply_small<S::TYPE, FUSED_GROUP / S::SUBS, N>(ring, at, a.down_steps, sum);
    fused_activate(a, task, sum);
#pragma unroll
    for (int b = 0; b < 2; b++) {
        if (b == 1 && !both)
            break;
        struct gemm_out out = fused_out<S>(a, p, task, group[b], &scale);

        if (S::FP8 && up) {
            gemm_quantise_small<FUSED_GROUP / S::SUBS, N>(ring, *turn, out, scale, a.act_groups,
                                                          sum[b]);
            *turn = *turn == 2 ? 0 : *turn + 1;
        } else {
            gemm_store_small<S::F16, false, N>(out, sum[b]);
        }
    }
}

/* A warpgroup. */
template <class S>
EPA_DEV void fused_multiply(const struct fused_args &a, struct fused_pipe *p,
                            typename S::ring &ring)
{
    struct gemm_at at = {0, 0};
    uint32_t turn = 0;

    for (uint32_t i = 0;; i++) {
        uint32_t slot = i % FUSED_RING;
        struct fused_task task;

        epa_dev_mbar_wait(&p->known[slot], i / FUSED_RING & 1);
        task = p->task[slot];
        __syncwarp();
        if (epa_dev_lane() == 0)
            epa_dev_mbar_arrive(&p->free[slot]);
        /* Rows that are not here may depend on the tile before: it is counted before they are
         * waited for. */
        if (!S::FP8 && threadIdx.x % 128 == 0 &&
            (task.rows <= S::SMALL_ROWS || !epa_dev_mbar_test(&ring.full[at.stage], at.phase)))
            fused_count_tile(p);
        __syncwarp();
        if (task.kind == FUSED_END)
            break;
        if (task.rows > S::SMALL_ROWS)
            fused_wide_tile<S>(a, p, ring, at, task);
        else if (task.rows > 32)
            fused_small_tile<S, S::SMALL_ROWS>(a, p, ring, at, task, &turn);
        else if (task.rows > 16)
            fused_small_tile<S, 32>(a, p, ring, at, task, &turn);
        else
            fused_small_tile<S, 16>(a, p, ring, at, task, &turn);
        /* Each warpgroup counts what all of its threads have stored: a wide tile of 16 bits while
         * the next is multiplied, so that nobody waits for the stores. */
        epa_dev_named_sync(FUSED_NAMED_STORED + gemm_warpgroup(), 128);
        if (threadIdx.x % 128 == 0) {
            fused_count_tile(p); /* that before, if this had but one block of K */
            p->uncounted[threadIdx.x / 128 - 1] =
                (task.kind == FUSED_UP ? fused_acts(a) : fused_outputs(a)) + task.block;
            if (S::FP8 || task.rows <= S::SMALL_ROWS)
                fused_count_tile(p);
        }
        __syncwarp();
    }
}

#endif
