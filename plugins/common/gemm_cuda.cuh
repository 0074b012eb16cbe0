/* Main loops of matrix products for kernels of GPUs of compute capability 9.0 (wgmma, tensor
 * copies): the parts of a persistent kernel except epilogues (gemm_epilogue.cuh). Compile for
 * sm_90a.
 *
 * A tile is up to 128 rows of A times 256 rows of weights: two boxes of 128, which need not be
 * neighbours. With gate rows and the up rows of the same channels, one thread holds both inputs of
 * an activation. All of K passes through a ring of stages in shared memory (struct gemm_shared),
 * one block of K (128 bytes of each row) per stage. A block has 384 threads:
 *
 *     warp 0, a lane    gemm_load_weights() or gemm_load_packed() fills weights as soon as stages
 *                       are free; it never waits for rows
 *     warp 1, a lane    gemm_load_rows() fills rows; call it when the rows of the tile have arrived
 *     warp 2            gemm_load_scales(), FP8 only: the products of the scales; alternatively
 *                       warp 1 does both, with gemm_load_scaled_rows()
 *     warp 3            free for the kernel
 *     warps 4 to 11     gemm_multiply(): two warpgroups; sums in registers, then an epilogue
 *
 * Each role passes through the same tiles in the same order, with its own struct gemm_at that
 * begins as {0, 0}. Tiles of at most 64 rows have their operands swapped (gemm_multiply_small<N>(),
 * N of 8, 16, 32, 64 and at least the number of rows): weights are the operand of 64 rows, and only
 * N rows of A are loaded. In FP8 a tile of 128 rows may have up to 16 more rows, which are
 * multiplied swapped (multiply_more() in gemm_experts.cu, fused_multiply_more()): a separate tile
 * would load all weights again. Loads of the next tiles continue during an epilogue.
 *
 *     __launch_bounds__(GEMM_THREADS, 1) kernel(const __grid_constant__ struct args g)
 *         extern __shared__ __align__(1024) char shared[];
 *         auto &s = *reinterpret_cast<gemm_shared<4> *>(shared);
 *         gemm_begin<TYPE>(s); __syncthreads();
 *         if (threadIdx.x < 128) epa_dev_registers_less<gemm_registers<TYPE>::LOAD>(), by warp:
 *             for each tile: gemm_load_...(s, at, ...)
 *         else epa_dev_registers_more<gemm_registers<TYPE>::MATH>(), for each tile:
 *             float sum[2][64]; gemm_multiply<TYPE, GROUP>(s, at, k_blocks, sum); epilogue(sum)
 *
 * GROUP: values of a row of A that share a scale, 128 or 64 (FP8; otherwise any).
 *
 * If a wait for rows ends because a peer failed, load the rows in any state, so that all roles
 * continue.
 *
 * Indices of sums. gemm_multiply(): sum[b][i] is row gemm_row(i) (of the tile's 128), box b, column
 * gemm_column(i) (of 128). gemm_multiply_small<N>(): row gemm_small_row(i) (of N), box b, column
 * gemm_small_column(i). */
#ifndef GEMM_CUDA_CUH
#define GEMM_CUDA_CUH

#include <epa2a/sm90.cuh>

#include "gemm_cuda.h"

enum {
    GEMM_THREADS = 384,
    GEMM_MATH_WARPS = 8,
    GEMM_SMALL_ROWS = 64, /* maximum number of rows of a swapped tile */
    GEMM_ROWS_BYTES = GEMM_ROWS * GEMM_BLOCK,
    GEMM_BOX_BYTES = GEMM_BOX * GEMM_BLOCK,
    GEMM_NAMED_MATH = 1 /* named barrier of the multiplying warps */
};

/* Registers of a block at launch: the maximum for 384 threads in multiples of 8. If the roles (128
 * loading threads, 256 multiplying threads) request more in total, the block hangs. */
enum { GEMM_REGISTERS = GEMM_THREADS * 168 };

/* Registers per thread. Loading threads need more with FP8 scales. */
template <epa_dev_type TYPE> struct gemm_registers {
    enum { LOAD = TYPE == EPA_DEV_E4M3 ? 56 : 40, MATH = TYPE == EPA_DEV_E4M3 ? 224 : 232 };
    static_assert(128 * LOAD + 256 * MATH <= GEMM_REGISTERS, "registers of a block");
};

template <int STAGES, int MORE> struct gemm_more {
    char more[STAGES][MORE * GEMM_BLOCK];
};

template <int STAGES> struct gemm_more<STAGES, 0> {
};

/* Beginning of shared memory, aligned to 1024 bytes. GROUPS: maximum number of scale groups of a
 * block of K in FP8. BOXES 1: tiles have one box; also pass 1 to gemm_load_weights() and
 * gemm_multiply(). MORE: GEMM_MORE if tiles may have that many further rows, with one group. */
template <int STAGES_, int GROUPS = 2, int BOXES_ = 2, int CLUSTER_ = 1, int MORE_ = 0>
struct gemm_shared : gemm_more<STAGES_, MORE_> {
    enum { STAGES = STAGES_, BOXES = BOXES_, CLUSTER = CLUSTER_, MORE = MORE_ };
    char stage[STAGES_][GEMM_ROWS_BYTES + BOXES_ * GEMM_BOX_BYTES]; /* rows, then boxes */
    /* FP8: [box][group of a block of K]: scale of a row times scale of the box */
    float scale[STAGES_][BOXES_][GROUPS][GEMM_ROWS + MORE_];
    uint64_t full[STAGES_], empty[STAGES_];
    uint32_t amax[3][GROUPS][GEMM_SMALL_ROWS]; /* maxima of swapped tiles, see
                                                * gemm_quantise_small() */
};

/* Position of a role in the ring. */
struct gemm_at {
    uint32_t stage, phase;
};

template <class S> EPA_DEV void gemm_next(struct gemm_at &at)
{
    if (++at.stage == S::STAGES) {
        at.stage = 0;
        at.phase ^= 1;
    }
}

/* Returns the number of values of K in a block. */
template <epa_dev_type TYPE> EPA_DEV uint32_t gemm_values(void)
{
    return TYPE == EPA_DEV_E4M3 ? GEMM_BLOCK : GEMM_BLOCK / 2;
}

/* Called by all threads of the block, before a barrier of the block. */
template <epa_dev_type TYPE, class S> EPA_DEV void gemm_begin(S &s)
{
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < S::STAGES; i++) {
            /* weights, rows, and in FP8 each lane of the warp that fills the scales */
            epa_dev_mbar_init(&s.full[i], TYPE == EPA_DEV_E4M3 ? 2 + EPA_DEV_WARP : 2);
            /* see gemm_release() */
            epa_dev_mbar_init(&s.empty[i],
                              GEMM_MATH_WARPS *
                                  ((TYPE == EPA_DEV_E4M3 ? EPA_DEV_WARP : 1) + S::CLUSTER - 1));
        }
        epa_dev_mbar_init_done();
    }
    for (uint32_t i = threadIdx.x; i < sizeof(s.amax) / sizeof(uint32_t); i += blockDim.x)
        reinterpret_cast<uint32_t *>(s.amax)[i] = 0;
}

/* ---- loads ---- */

template <class S> EPA_DEV void gemm_wait_empty(S &s, const struct gemm_at &at)
{
    epa_dev_mbar_wait(&s.empty[at.stage], at.phase ^ 1);
}

/* Loads boxes of weights from rows `first` and `second` of the map on. Called by one lane. `boxes`
 * 1: loads only the first box, if the second is beyond C; the product may contain arbitrary values
 * in place of the second box. In a cluster of two, whose blocks multiply the same weights, each
 * block loads one box into both blocks. */
template <epa_dev_type TYPE, class S>
EPA_DEV void gemm_load_weights(S &s, struct gemm_at &at, const CUtensorMap *map, uint32_t first,
                               uint32_t second, uint32_t k_blocks, uint64_t l2, uint32_t boxes = 2)
{
    for (uint32_t k = 0; k < k_blocks; k++) {
        char *to = s.stage[at.stage] + GEMM_ROWS_BYTES;
        uint64_t *full = &s.full[at.stage];
        int32_t x = (int32_t)(k * gemm_values<TYPE>());

        gemm_wait_empty(s, at);
        epa_dev_mbar_expect(full, boxes * GEMM_BOX_BYTES);
        if constexpr (S::CLUSTER == 2) {
            uint32_t mine = epa_dev_cluster_rank();

            if (mine < boxes)
                epa_dev_tile_multicast(to + mine * GEMM_BOX_BYTES, map, x,
                                       (int32_t)(mine == 0 ? first : second), full, 3, l2);
        } else {
            epa_dev_tile_load(to, map, x, (int32_t)first, full, l2);
            if (boxes == 2)
                epa_dev_tile_load(to + GEMM_BOX_BYTES, map, x, (int32_t)second, full, l2);
        }
        gemm_next<S>(at);
    }
}

/* Loads weights in the layout of gemm_pack(), from the tile's start `from`. Called by one lane. */
template <class S>
EPA_DEV void gemm_load_packed(S &s, struct gemm_at &at, const char *from, uint32_t k_blocks,
                              uint64_t l2, uint32_t boxes = 2)
{
    for (uint32_t k = 0; k < k_blocks; k++) {
        gemm_wait_empty(s, at);
        epa_dev_mbar_expect(&s.full[at.stage], boxes * GEMM_BOX_BYTES);
        epa_dev_bulk_load(s.stage[at.stage] + GEMM_ROWS_BYTES,
                          from + (size_t)k * 2 * GEMM_BOX_BYTES, boxes * GEMM_BOX_BYTES,
                          &s.full[at.stage], l2);
        gemm_next<S>(at);
    }
}

/* Returns the index of the map in struct gemm_rows_map with boxes of 8 << index rows; GEMM_HEIGHTS:
 * the largest box plus GEMM_MORE rows. */
EPA_DEV uint32_t gemm_height(uint32_t rows)
{
    return rows <= 8                 ? 0
           : rows <= 16              ? 1
           : rows <= 32              ? 2
           : rows <= GEMM_SMALL_ROWS ? 3
           : rows <= GEMM_ROWS       ? 4
                                     : GEMM_HEIGHTS;
}

/* Loads block k of K of 8 << height rows from `row` on, or of GEMM_ROWS and GEMM_MORE rows, into an
 * empty stage. Called by one lane. */
template <epa_dev_type TYPE, class S>
EPA_DEV void gemm_load_box(S &s, const struct gemm_at &at, const struct gemm_rows_map *map,
                           uint32_t height, uint32_t row, uint32_t k, uint64_t l2)
{
    const int32_t x = (int32_t)(k * gemm_values<TYPE>());
    uint64_t *full = &s.full[at.stage];

    if constexpr (S::MORE != 0)
        if (height == GEMM_HEIGHTS) {
            epa_dev_mbar_expect(full, (GEMM_ROWS + GEMM_MORE) * GEMM_BLOCK);
            epa_dev_tile_load(s.stage[at.stage], &map->height[4], x, (int32_t)row, full, l2);
            epa_dev_tile_load(s.more[at.stage], &map->height[1], x, (int32_t)(row + GEMM_ROWS),
                              full, l2);
            return;
        }
    epa_dev_mbar_expect(full, (8u << height) * GEMM_BLOCK);
    epa_dev_tile_load(s.stage[at.stage], &map->height[height], x, (int32_t)row, full, l2);
}

template <epa_dev_type TYPE, class S>
EPA_DEV void gemm_load_rows(S &s, struct gemm_at &at, const struct gemm_rows_map *map,
                            uint32_t height, uint32_t row, uint32_t k_blocks, uint64_t l2)
{
    for (uint32_t k = 0; k < k_blocks; k++) {
        gemm_wait_empty(s, at);
        gemm_load_box<TYPE>(s, at, map, height, row, k, l2);
        gemm_next<S>(at);
    }
}

/* Scales of A and of the two boxes of weights. */
struct gemm_scales {
    const float *row;    /* scales of the tile's first row, one per group of K */
    size_t stride;       /* floats to the next row */
    uint32_t rows;       /* number of rows with readable scales, > 0 */
    const float *box[2]; /* scales of a box, one per block of K */
};

/* Loads four of `n` scales from `k` on; `aligned`: to 16 bytes. */
EPA_DEV float4 gemm_scale4(const float *from, uint32_t k, uint32_t n, bool aligned)
{
    if (aligned && k + 4 <= n)
        return __ldcg(reinterpret_cast<const float4 *>(from + k));
    return make_float4(__ldcg(from + k), k + 1 < n ? __ldcg(from + k + 1) : 0.0f,
                       k + 2 < n ? __ldcg(from + k + 2) : 0.0f,
                       k + 3 < n ? __ldcg(from + k + 3) : 0.0f);
}

EPA_DEV float gemm_scale_at(float4 v, uint32_t i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Prefetches the scales of a box of the next tile into L2: while the weights saturate the memory, a
 * miss takes as long as four blocks of K. Called by one thread. */
EPA_DEV void gemm_fetch_scales(const float *box, uint32_t k_blocks)
{
    for (uint32_t k = 0; k < k_blocks; k += 8)
        epa_dev_prefetch(box + k);
    epa_dev_prefetch(box + k_blocks - 1);
}

/* Fills the scales; each lane has 4 rows and loads 4 scales of each at a time. It loads the next
 * scales as soon as the previous ones are in the ring, so the loads are that far ahead of the
 * products. emptied(k), called by one lane: the stage for block k of K is empty. GROUP 64: a row
 * has `groups` scales; 0: two per block of K. MORE: two lanes each load a further row. Called by a
 * warp. */
template <int GROUP, bool MORE = false, class S, class EMPTIED>
EPA_DEV void gemm_fill_scales(S &s, struct gemm_at &at, const struct gemm_scales &of,
                              uint32_t k_blocks, EMPTIED emptied, uint32_t groups)
{
    enum { EACH = GEMM_ROWS / EPA_DEV_WARP, PER = GEMM_FP8_GROUP / GROUP, BLOCKS = 4 / PER };
    const uint32_t lane = epa_dev_lane();
    const bool aligned =
        (reinterpret_cast<uintptr_t>(of.row) | of.stride * sizeof(float)) % 16 == 0;

    if (PER == 1 || groups == 0)
        groups = k_blocks * PER;
    for (uint32_t k = 0; k < k_blocks; k += BLOCKS) {
        float4 row[EACH], box[2];
        float2 more = make_float2(0.0f, 0.0f);

#pragma unroll
        for (uint32_t i = 0; i < EACH; i++)
            if (MORE || i * EPA_DEV_WARP < of.rows)
                row[i] = gemm_scale4(of.row + min(i * EPA_DEV_WARP + lane, of.rows - 1) * of.stride,
                                     k * PER, groups, aligned);
#pragma unroll
        for (uint32_t b = 0; b < S::BOXES; b++)
            box[b] = gemm_scale4(of.box[b], k, k_blocks, false);
        if (MORE) {
            const float *from = of.row + min(GEMM_ROWS + lane / 2, of.rows - 1) * of.stride;
            uint32_t first = k + lane % 2 * 2;

            more.x = __ldcg(from + min(first, k_blocks - 1));
            more.y = __ldcg(from + min(first + 1, k_blocks - 1));
        }
#pragma unroll
        for (uint32_t j = 0; j < BLOCKS; j++) {
            if (k + j >= k_blocks)
                break;
            gemm_wait_empty(s, at);
            if (lane == 0)
                emptied(k + j);
#pragma unroll
            for (uint32_t i = 0; i < EACH; i++)
                if (MORE || i * EPA_DEV_WARP < of.rows)
#pragma unroll
                    for (uint32_t b = 0; b < S::BOXES; b++)
#pragma unroll
                        for (uint32_t p = 0; p < PER; p++)
                            s.scale[at.stage][b][p][i * EPA_DEV_WARP + lane] =
                                gemm_scale_at(row[i], j * PER + p) * gemm_scale_at(box[b], j);
            if (MORE && lane % 2 == j / 2)
#pragma unroll
                for (uint32_t b = 0; b < S::BOXES; b++)
                    s.scale[at.stage][b][0][GEMM_ROWS + lane / 2] =
                        (j % 2 == 0 ? more.x : more.y) * gemm_scale_at(box[b], j);
            /* Each lane releases its own scales. By the PTX memory model, __syncwarp() and one
             * arrival would also order the stores of all lanes before the reads (causality order
             * is transitive over bar.warp.sync and mbarrier.arrive), but racecheck does not
             * follow this chain. */
            epa_dev_mbar_arrive(&s.full[at.stage]);
            gemm_next<S>(at);
        }
    }
}

struct gemm_nothing {
    template <class... ANY> __device__ void operator()(ANY...) const
    {
    }
};

template <int GROUP, class S, class EMPTIED = struct gemm_nothing>
EPA_DEV void gemm_load_scales(S &s, struct gemm_at &at, const struct gemm_scales &of,
                              uint32_t k_blocks, EMPTIED emptied = {}, uint32_t groups = 0)
{
    if constexpr (S::MORE != 0)
        if (of.rows > GEMM_ROWS)
            return gemm_fill_scales<GROUP, true>(s, at, of, k_blocks, emptied, groups);
    gemm_fill_scales<GROUP>(s, at, of, k_blocks, emptied, groups);
}

/* Does the work of gemm_load_rows() and gemm_load_scales() in one warp. `groups`: scales of a
 * row. */
template <int GROUP, class S>
EPA_DEV void gemm_load_scaled_rows(S &s, struct gemm_at &at, const struct gemm_rows_map *map,
                                   uint32_t height, uint32_t row, const struct gemm_scales &of,
                                   uint32_t k_blocks, uint32_t groups, uint64_t l2)
{
    auto load = [&](uint32_t k) { gemm_load_box<EPA_DEV_E4M3>(s, at, map, height, row, k, l2); };

    gemm_load_scales<GROUP>(s, at, of, k_blocks, load, groups);
}

/* ---- products ---- */

/* Returns the index of the multiplying warpgroup: 0 or 1. */
EPA_DEV uint32_t gemm_warpgroup(void)
{
    return __shfl_sync(EPA_DEV_ALL, threadIdx.x / 128 - 1, 0);
}

EPA_DEV uint32_t gemm_row(int i)
{
    return (threadIdx.x / EPA_DEV_WARP - 4) * 16 + epa_dev_lane() / 4 + i / 2 % 2 * 8;
}

EPA_DEV uint32_t gemm_column(int i)
{
    return i / 4 * 8 + epa_dev_lane() % 4 * 2 + i % 2;
}

EPA_DEV uint32_t gemm_small_row(int i)
{
    return gemm_column(i);
}

EPA_DEV uint32_t gemm_small_column(int i)
{
    return gemm_row(i);
}

/* Releases the stage, which this warp has read. In FP8 each lane releases its own reads of scales,
 * as in gemm_fill_scales(). */
template <epa_dev_type TYPE, class S> EPA_DEV void gemm_release(S &s, uint32_t stage)
{
    __syncwarp();
    if constexpr (TYPE == EPA_DEV_E4M3) {
        epa_dev_mbar_arrive(&s.empty[stage]);
        if (S::CLUSTER == 2 && epa_dev_lane() == 0)
            epa_dev_cluster_arrive(&s.empty[stage], epa_dev_cluster_rank() ^ 1);
    } else if (epa_dev_lane() < S::CLUSTER) {
        if constexpr (S::CLUSTER == 1)
            epa_dev_mbar_arrive(&s.empty[stage]);
        else
            epa_dev_cluster_arrive(&s.empty[stage], epa_dev_lane());
    }
}

/* Multiplies values of 16 bits. A block's products are issued before the wait for the previous
 * block's products. meanwhile(): called once while two blocks are multiplied, if there are two. N:
 * columns of both boxes, or of one. */
template <epa_dev_type TYPE, int N, class S, class MEANWHILE>
EPA_DEV void gemm_multiply16(S &s, struct gemm_at &at, uint32_t k_blocks, float (&sum)[N / 2],
                             MEANWHILE meanwhile)
{
    const uint32_t rows = gemm_warpgroup() * 64 * GEMM_BLOCK;
    uint32_t before = 0;

    for (uint32_t k = 0; k < k_blocks; k++) {
        uint64_t a = epa_dev_tile_descriptor(s.stage[at.stage] + rows);
        uint64_t b = epa_dev_tile_descriptor(s.stage[at.stage] + GEMM_ROWS_BYTES);

        epa_dev_mbar_wait(&s.full[at.stage], at.phase);
        epa_dev_wgmma_begin();
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            epa_dev_wgmma<TYPE, N>(sum, epa_dev_descriptor_add(a, 32 * i),
                                   epa_dev_descriptor_add(b, 32 * i), k + i > 0);
        epa_dev_wgmma_commit();
        if (k == 1)
            meanwhile();
        epa_dev_wgmma_wait<1>();
        if (k > 0)
            gemm_release<TYPE>(s, before);
        before = at.stage;
        gemm_next<S>(at);
    }
    epa_dev_wgmma_wait<0>();
    gemm_release<TYPE>(s, before);
}

/* Adds `part`, times the scales of the rows, to `sum`, for a swapped tile of N rows. */
template <int N>
EPA_DEV void gemm_add_scaled(float (&sum)[N / 2], const float (&part)[N / 2], const float *scale)
{
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        float2 by = *reinterpret_cast<const float2 *>(scale + gemm_small_row(4 * j));

#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; i++)
            sum[i] = __fmaf_rn(part[i], i % 2 == 0 ? by.x : by.y, sum[i]);
    }
}

/* FP8: tensor cores add up the values of a group of K. The sums of groups, times their scales, are
 * added in float32; meanwhile the other warpgroup multiplies. */
template <int GROUP, class S>
EPA_DEV void gemm_multiply8(S &s, struct gemm_at &at, uint32_t k_blocks, float (&sum)[2][64],
                            uint32_t boxes)
{
    enum { PER = GEMM_FP8_GROUP / GROUP, STEPS = 4 / PER };
    const uint32_t rows = gemm_warpgroup() * 64 * GEMM_BLOCK, row = gemm_row(0);
    float part[64];

#pragma unroll
    for (int b = 0; b < S::BOXES; b++)
#pragma unroll
        for (int i = 0; i < 64; i++)
            sum[b][i] = 0.0f;
    for (uint32_t k = 0; k < k_blocks; k++) {
        uint64_t x = epa_dev_tile_descriptor(s.stage[at.stage] + rows);
        uint64_t w = epa_dev_tile_descriptor(s.stage[at.stage] + GEMM_ROWS_BYTES);
        float scale[2][PER][2];

        epa_dev_mbar_wait(&s.full[at.stage], at.phase);
#pragma unroll
        for (int b = 0; b < S::BOXES; b++)
#pragma unroll
            for (int p = 0; p < PER; p++) {
                scale[b][p][0] = s.scale[at.stage][b][p][row];
                scale[b][p][1] = s.scale[at.stage][b][p][row + 8];
            }
#pragma unroll
        for (int b = 0; b < S::BOXES; b++) {
            if (b == 1 && boxes == 1)
                break;
#pragma unroll
            for (int p = 0; p < PER; p++) {
                epa_dev_wgmma_begin();
#pragma unroll
                for (uint32_t i = 0; i < STEPS; i++) {
                    uint32_t at_k = 32 * ((uint32_t)p * STEPS + i);

                    epa_dev_wgmma<EPA_DEV_E4M3, 128>(
                        part, epa_dev_descriptor_add(x, at_k),
                        epa_dev_descriptor_add(w, (uint32_t)b * GEMM_BOX_BYTES + at_k), i > 0);
                }
                epa_dev_wgmma_commit();
                epa_dev_wgmma_wait<0>();
                if (p == PER - 1 && b + 1 == (int)boxes)
                    gemm_release<EPA_DEV_E4M3>(s, at.stage);
#pragma unroll
                for (int i = 0; i < 64; i++)
                    sum[b][i] = __fmaf_rn(part[i], scale[b][p][i / 2 % 2], sum[b][i]);
            }
        }
        gemm_next<S>(at);
    }
}

/* Multiplies a tile of more than 64 rows. `boxes` 1: sum[1] is undefined. FP8 never calls
 * meanwhile(). */
template <epa_dev_type TYPE, int GROUP, class S, class MEANWHILE = struct gemm_nothing>
EPA_DEV void gemm_multiply(S &s, struct gemm_at &at, uint32_t k_blocks, float (&sum)[2][64],
                           uint32_t boxes = 2, MEANWHILE meanwhile = {})
{
    if constexpr (TYPE == EPA_DEV_E4M3)
        gemm_multiply8<GROUP>(s, at, k_blocks, sum, boxes);
    else if (S::BOXES == 2 && boxes == 2)
        gemm_multiply16<TYPE, 256>(s, at, k_blocks, reinterpret_cast<float(&)[128]>(sum),
                                   meanwhile);
    else
        gemm_multiply16<TYPE, 128>(s, at, k_blocks, sum[0], meanwhile);
}

/* Multiplies a tile of at most N rows: weights times rows. Each warpgroup has 64 rows of each
 * box. */
template <epa_dev_type TYPE, int GROUP, int N, class S>
EPA_DEV void gemm_multiply_small(S &s, struct gemm_at &at, uint32_t k_blocks,
                                 float (&sum)[2][N / 2])
{
    enum { PER = TYPE == EPA_DEV_E4M3 ? GEMM_FP8_GROUP / GROUP : 1, STEPS = 4 / PER };
    const uint32_t rows = GEMM_ROWS_BYTES + gemm_warpgroup() * 64 * GEMM_BLOCK;
    float part[2][N / 2];

#pragma unroll
    for (int b = 0; b < S::BOXES; b++)
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            sum[b][i] = 0.0f;
    for (uint32_t k = 0; k < k_blocks; k++) {
        uint64_t w = epa_dev_tile_descriptor(s.stage[at.stage] + rows);
        uint64_t x = epa_dev_tile_descriptor(s.stage[at.stage]);

        epa_dev_mbar_wait(&s.full[at.stage], at.phase);
#pragma unroll
        for (int p = 0; p < PER; p++) {
            epa_dev_wgmma_begin();
#pragma unroll
            for (int b = 0; b < S::BOXES; b++)
#pragma unroll
                for (uint32_t i = 0; i < STEPS; i++) {
                    uint32_t at_k = 32 * ((uint32_t)p * STEPS + i);
                    uint64_t box = epa_dev_descriptor_add(w, (uint32_t)b * GEMM_BOX_BYTES + at_k);

                    if constexpr (TYPE == EPA_DEV_E4M3)
                        epa_dev_wgmma<TYPE, N>(part[b], box, epa_dev_descriptor_add(x, at_k),
                                               i > 0);
                    else
                        epa_dev_wgmma<TYPE, N>(sum[b], box, epa_dev_descriptor_add(x, at_k), true);
                }
            epa_dev_wgmma_commit();
            epa_dev_wgmma_wait<0>();
            if constexpr (TYPE == EPA_DEV_E4M3) {
#pragma unroll
                for (int b = 0; b < S::BOXES; b++)
                    gemm_add_scaled<N>(sum[b], part[b], s.scale[at.stage][b][p]);
            }
        }
        gemm_release<TYPE>(s, at.stage);
        gemm_next<S>(at);
    }
}

/* ---- packed weights ---- */

/* Packs weights, one thread per 16 bytes of the layout: piece `i % 8` of a row in the order of the
 * swizzle. Boxes beyond the weights are 0. Called by all threads of a grid. */
EPA_DEV void gemm_pack_pieces(char *to, const char *from, const struct gemm_packing &p,
                              uint64_t pieces)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < pieces;
         i += (uint64_t)gridDim.x * blockDim.x) {
        uint32_t row = i / 8 % GEMM_BOX, box = i / 8 / GEMM_BOX % 2;
        uint64_t block = i / 8 / GEMM_BOX / 2, tile = block / p.k_blocks;
        uint32_t expert = tile / p.tiles, column = tile % p.tiles * p.step + box * p.second + row;
        uint32_t piece = i % 8 ^ row % 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        uint32_t at = block % p.k_blocks * GEMM_BLOCK + piece * 16; /* byte offset in the row */

        if (column < p.weight_rows && at < p.row_bytes)
            v = __ldg(reinterpret_cast<const uint4 *>(
                from + ((uint64_t)expert * p.weight_rows + column) * p.row_bytes + at));
        reinterpret_cast<uint4 *>(to)[i] = v;
    }
}

#endif
