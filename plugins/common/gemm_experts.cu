/* Products of the rows of all experts (gemm_experts.h), out of the main loops of gemm_cuda.cuh. */
#include "gemm_experts.h"
#include "gemm_cuda.cuh"

#ifndef GEMM_TURNS
#define GEMM_TURNS false
#endif

namespace
{

enum { STAGES = 4, PANEL = 16 }; /* PANEL: tiles down before the next column of tiles */

struct shared_head {
    gemm_shared<STAGES> ring;
    uint32_t tables[]; /* [experts + 1] units of rows before an expert, then rows before it */
};

struct tile {
    uint32_t expert, column, rows; /* column of C; rows > 0 */
    uint64_t in, out;              /* first row of A, of C */
};

/* All tiles, as each role goes through them. */
struct tiles {
    const struct gemm_args &g;
    const uint32_t *units, *rows;
    uint32_t expert, next, step;
};

template <int CLUSTER> EPA_DEV bool next_tile(struct tiles &l, struct tile &out)
{
    const struct gemm_args &g = l.g;
    uint32_t at, panel, height, m, count;
    uint64_t start;

    if (l.next >= l.units[g.experts] * g.tiles)
        return false;
    while (l.next >= l.units[l.expert + 1] * g.tiles)
        l.expert++;
    at = l.next - l.units[l.expert] * g.tiles;
    panel = at / (PANEL / CLUSTER * g.tiles);
    at -= panel * (PANEL / CLUSTER) * g.tiles;
    height = min((uint32_t)(PANEL / CLUSTER),
                 l.units[l.expert + 1] - l.units[l.expert] - panel * (PANEL / CLUSTER));
    m = (panel * (PANEL / CLUSTER) + at % height) * CLUSTER * GEMM_ROWS;
    if (CLUSTER > 1)
        m += epa_dev_cluster_rank() * GEMM_ROWS;
    count = l.rows[l.expert + 1] - l.rows[l.expert];
    start = g.start == NULL ? l.rows[l.expert] : __ldg(g.start + l.expert);
    out.expert = l.expert;
    out.column = at / height * g.step;
    out.rows = m < count ? min(count - m, (uint32_t)GEMM_ROWS) : 0;
    out.in = (g.in_packed ? l.rows[l.expert] : start) + m;
    out.out = (g.out_packed ? l.rows[l.expert] : start) + m;
    l.next += l.step;
    return true;
}

/* Warp 0 counts: units of CLUSTER * GEMM_ROWS rows, and rows, before each expert. */
template <int CLUSTER> EPA_DEV void count_units(const struct gemm_args &g, uint32_t *units, uint32_t *rows)
{
    uint32_t units_before = 0, rows_before = 0;

    for (uint32_t first = 0; first < g.experts; first += EPA_DEV_WARP) {
        uint32_t e = first + epa_dev_lane(), n = e < g.experts ? __ldcg(g.count + e) : 0;
        uint32_t u = (n + CLUSTER * GEMM_ROWS - 1) / (CLUSTER * GEMM_ROWS), unit_sum = u, row_sum = n;

        for (uint32_t step = 1; step < EPA_DEV_WARP; step *= 2) {
            uint32_t a = __shfl_up_sync(EPA_DEV_ALL, unit_sum, step);
            uint32_t b = __shfl_up_sync(EPA_DEV_ALL, row_sum, step);

            if (epa_dev_lane() >= step) {
                unit_sum += a;
                row_sum += b;
            }
        }
        if (e < g.experts) {
            units[e] = units_before + unit_sum - u;
            rows[e] = rows_before + row_sum - n;
        }
        units_before += __shfl_sync(EPA_DEV_ALL, unit_sum, EPA_DEV_WARP - 1);
        rows_before += __shfl_sync(EPA_DEV_ALL, row_sum, EPA_DEV_WARP - 1);
    }
    if (epa_dev_lane() == 0) {
        units[g.experts] = units_before;
        rows[g.experts] = rows_before;
    }
}

/* ---- epilogues ---- */

template <int OUT> EPA_DEV uint32_t value_bytes(void)
{
    return OUT == GEMM_OUT_FP8 ? 1 : OUT == GEMM_OUT_F32 ? 4 : 2;
}

/* Where box `b` of the tile goes; false where it is beyond C. */
template <int OUT>
EPA_DEV bool out_of(const struct gemm_args &g, const struct tile &t, int b, struct gemm_out &out,
                    float *&scale)
{
    uint32_t column = t.column + (uint32_t)b * GEMM_BOX;

    out.row = g.out + t.out * g.out_stride + column * value_bytes<OUT>();
    out.stride = g.out_stride;
    out.rows = t.rows;
    scale = g.out_scale + t.out * (g.columns / GEMM_FP8_GROUP) + column / GEMM_FP8_GROUP;
    return column < g.columns;
}

template <int OUT, bool SWIGLU>
EPA_DEV void store_tile(const struct gemm_args &g, const struct tile &t, float (&sum)[2][64])
{
    if (SWIGLU) {
#pragma unroll
        for (int i = 0; i < 64; i++)
            sum[0][i] = gemm_swiglu(sum[0][i], sum[1][i]);
    }
#pragma unroll
    for (int b = 0; b < (SWIGLU ? 1 : 2); b++) {
        struct gemm_out out;
        float *scale;

        if (!out_of<OUT>(g, t, b, out, scale))
            break;
        if constexpr (OUT == GEMM_OUT_FP8)
            gemm_quantise(out, scale, g.columns / GEMM_FP8_GROUP, sum[b]);
        else
            gemm_store<OUT == GEMM_OUT_F16, OUT == GEMM_OUT_F32>(out, sum[b]);
    }
}

template <int OUT, bool SWIGLU, int N, class S>
EPA_DEV void store_small(S &s, const struct gemm_args &g, const struct tile &t, uint32_t &turn,
                         float (&sum)[2][N / 2])
{
    if (SWIGLU) {
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            sum[0][i] = gemm_swiglu(sum[0][i], sum[1][i]);
    }
#pragma unroll
    for (int b = 0; b < (SWIGLU ? 1 : 2); b++) {
        struct gemm_out out;
        float *scale;

        if (!out_of<OUT>(g, t, b, out, scale))
            break;
        if constexpr (OUT == GEMM_OUT_FP8) {
            gemm_quantise_small<N>(s, turn, out, scale, g.columns / GEMM_FP8_GROUP, sum[b]);
            turn = turn == 2 ? 0 : turn + 1;
        } else {
            gemm_store_small<OUT == GEMM_OUT_F16, OUT == GEMM_OUT_F32, N>(out, sum[b]);
        }
    }
}

template <epa_dev_type TYPE, int OUT, bool SWIGLU, int N, class S>
EPA_DEV void small_tile(S &s, struct gemm_at &at, const struct gemm_args &g, const struct tile &t,
                        uint32_t &turn)
{
    float sum[2][N / 2];

    gemm_multiply_small<TYPE, N>(s, at, g.k_blocks, sum);
    store_small<OUT, SWIGLU, N>(s, g, t, turn, sum);
}

/* ---- roles ---- */

template <epa_dev_type TYPE, int CLUSTER>
EPA_DEV void load(gemm_shared<STAGES> &s, const struct gemm_args &g, struct tiles &l)
{
    const uint32_t warp = threadIdx.x / EPA_DEV_WARP;
    struct gemm_at at = {0, 0};
    struct tile t;

    if (warp == 0 && epa_dev_lane() == 0) {
        while (next_tile<CLUSTER>(l, t)) {
            const uint32_t first[2] = {t.expert * g.weight_rows + t.column,
                                       t.expert * g.weight_rows + t.column + g.second};

            gemm_load_weights<TYPE, CLUSTER>(s, at, &g.weights, first, g.k_blocks,
                                             l.rows[t.expert + 1] - l.rows[t.expert] <= GEMM_ROWS
                                                 ? EPA_L2_EVICT_FIRST
                                                 : EPA_L2_NORMAL);
        }
    } else if (warp == 1 && epa_dev_lane() == 0) {
        if (g.early)
            epa_dev_after_kernel();
        while (next_tile<CLUSTER>(l, t))
            gemm_load_rows<TYPE, CLUSTER>(s, at, &g.rows, CLUSTER == 1 ? gemm_height(t.rows) : 4,
                                          (uint32_t)t.in, g.k_blocks, EPA_L2_NORMAL);
    } else if (warp == 2 && TYPE == EPA_DEV_E4M3) {
        if (g.early)
            epa_dev_after_kernel();
        while (next_tile<CLUSTER>(l, t)) {
            const float *scale = g.weight_scale +
                                 (size_t)(t.expert * g.weight_rows + t.column) / GEMM_BOX * g.k_blocks;
            /* A box beyond C has the scales of the first: its sums are not used. */
            bool both = g.step == GEMM_BOX || t.column + GEMM_BOX < g.columns;
            struct gemm_scales of = {
                g.row_scale + t.in * g.row_scale_stride,
                g.row_scale_stride,
                t.rows,
                {scale, scale + (both ? g.second / GEMM_BOX * g.k_blocks : 0)},
            };

            if (t.rows == 0) { /* of a block of a cluster: any will do */
                of.row = g.row_scale;
                of.rows = 1;
            }
            gemm_load_scales<CLUSTER>(s, at, of, g.k_blocks);
        }
    }
}

template <epa_dev_type TYPE, int OUT, bool SWIGLU, int CLUSTER>
EPA_DEV void multiply(gemm_shared<STAGES> &s, const struct gemm_args &g, struct tiles &l)
{
    enum { TURNS = TYPE == EPA_DEV_E4M3 && GEMM_TURNS };
    struct gemm_at at = {0, 0};
    uint32_t turn = 0;
    struct tile t;

    gemm_turns_begin<TURNS>();
    while (next_tile<CLUSTER>(l, t)) {
        if (CLUSTER > 1 || t.rows > GEMM_SMALL_ROWS) {
            float sum[2][64];

            gemm_multiply<TYPE, CLUSTER, TURNS>(s, at, g.k_blocks, sum);
            store_tile<OUT, SWIGLU>(g, t, sum);
        } else if constexpr (CLUSTER == 1) {
            if (t.rows <= 8)
                small_tile<TYPE, OUT, SWIGLU, 8>(s, at, g, t, turn);
            else if (t.rows <= 16)
                small_tile<TYPE, OUT, SWIGLU, 16>(s, at, g, t, turn);
            else if (t.rows <= 32)
                small_tile<TYPE, OUT, SWIGLU, 32>(s, at, g, t, turn);
            else
                small_tile<TYPE, OUT, SWIGLU, 64>(s, at, g, t, turn);
        }
    }
    gemm_turns_end<TURNS>();
}

template <epa_dev_type TYPE, int OUT, bool SWIGLU, int CLUSTER>
__global__ void __launch_bounds__(GEMM_THREADS, 1)
    multiply_experts(const __grid_constant__ struct gemm_args g)
{
    extern __shared__ __align__(1024) char shared[];
    struct shared_head &h = *reinterpret_cast<struct shared_head *>(shared);
    uint32_t *units = h.tables, *rows = units + g.experts + 1;
    struct tiles l = {g, units, rows, 0, blockIdx.x / CLUSTER, gridDim.x / CLUSTER};

    gemm_begin<TYPE>(h.ring, CLUSTER);
    if (!g.early)
        epa_dev_after_kernel();
    if (threadIdx.x < EPA_DEV_WARP)
        count_units<CLUSTER>(g, units, rows);
    __syncthreads();
    if (CLUSTER > 1) {
        epa_dev_cluster_arrive();
        epa_dev_cluster_wait();
    }
    if (!g.early)
        epa_dev_next_kernel();
    if (threadIdx.x < 128) {
        epa_dev_registers_less<GEMM_LOAD_REGISTERS>();
        load<TYPE, CLUSTER>(h.ring, g, l);
    } else {
        epa_dev_registers_more<GEMM_MATH_REGISTERS>();
        multiply<TYPE, OUT, SWIGLU, CLUSTER>(h.ring, g, l);
    }
    if (CLUSTER > 1) { /* arrivals from the other block need this one's memory */
        __syncwarp();
        epa_dev_cluster_arrive();
        epa_dev_cluster_wait();
    }
}

/* ---- launches ---- */

template <epa_dev_type TYPE, int OUT, bool SWIGLU, int CLUSTER>
cudaError_t launch(const struct gemm_args *g, uint32_t blocks, cudaStream_t stream)
{
    const auto kernel = multiply_experts<TYPE, OUT, SWIGLU, CLUSTER>;
    size_t bytes = sizeof(struct shared_head) + 2 * (g->experts + 1) * sizeof(uint32_t);
    cudaLaunchAttribute attribute[2] = {};
    cudaLaunchConfig_t config = {};
    cudaError_t error;

    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (error != cudaSuccess)
        return error;
    attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[0].val.programmaticStreamSerializationAllowed = 1;
    attribute[1].id = cudaLaunchAttributeClusterDimension;
    attribute[1].val.clusterDim.x = CLUSTER;
    attribute[1].val.clusterDim.y = attribute[1].val.clusterDim.z = 1;
    config.gridDim = dim3(blocks / CLUSTER * CLUSTER);
    config.blockDim = dim3(GEMM_THREADS);
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    config.attrs = attribute;
    config.numAttrs = CLUSTER > 1 ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel, *g);
}

} // namespace

#ifndef GEMM_CLUSTER
#define GEMM_CLUSTER 1
#endif

cudaError_t gemm_launch(const struct gemm_args *g, int dtype, enum gemm_out_type out, bool swiglu,
                        uint32_t blocks, cudaStream_t stream)
{
    if (dtype == EPA_FP8_E4M3 && out == GEMM_OUT_FP8)
        return swiglu ? launch<EPA_DEV_E4M3, GEMM_OUT_FP8, true, GEMM_CLUSTER>(g, blocks, stream)
                      : launch<EPA_DEV_E4M3, GEMM_OUT_FP8, false, GEMM_CLUSTER>(g, blocks, stream);
    if (dtype == EPA_FP8_E4M3)
        return launch<EPA_DEV_E4M3, GEMM_OUT_BF16, false, GEMM_CLUSTER>(g, blocks, stream);
    return swiglu ? launch<EPA_DEV_BF16, GEMM_OUT_BF16, true, GEMM_CLUSTER>(g, blocks, stream)
                  : launch<EPA_DEV_BF16, GEMM_OUT_BF16, false, GEMM_CLUSTER>(g, blocks, stream);
}
