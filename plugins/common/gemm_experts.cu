/* Products of the rows of all experts (gemm_experts.h), from the main loops of gemm_cuda.cuh. */
#include "gemm_experts.h"
#include "gemm_epilogue.cuh"

namespace
{

/* Number of tiles down before the next column of tiles, so that the weights of many experts, or A
 * of one expert, stay in L2. */
enum { STAGES = 4, PANEL_EXPERTS = 4, PANEL_DENSE = 16 };

/* Parameters of a kernel. FP8 has quantisation groups of IN_GROUP in A and of GROUP in C. MORE:
 * tiles may have that many rows beyond GEMM_ROWS. */
template <epa_dev_type TYPE_, int OUT_, bool SWIGLU_, int GROUP_, int MORE_ = 0,
          int IN_GROUP_ = OUT_ == GEMM_OUT_FP8 ? (int)GEMM_FP8_GROUP : GROUP_>
struct kind {
    static constexpr epa_dev_type TYPE = TYPE_;
    enum {
        SWIGLU = SWIGLU_,
        F16 = OUT_ == GEMM_OUT_F16,
        FLOAT = OUT_ == GEMM_OUT_F32,
        OUT = OUT_,
        BOXES = SWIGLU_ ? 1 : 2, /* boxes of C */
        IN_GROUP = IN_GROUP_,
        OUT_GROUP = GROUP_,
        MORE = MORE_
    };
    static_assert(MORE_ == 0 || (TYPE_ == EPA_DEV_E4M3 && (int)IN_GROUP == (int)GEMM_FP8_GROUP),
                  "rows besides have scales of one group");
    using ring =
        gemm_shared<STAGES, GEMM_FP8_GROUP / (GROUP_ < IN_GROUP_ ? GROUP_ : IN_GROUP_), 2, 1, MORE>;
};

template <class K> struct shared_head {
    typename K::ring ring;
    uint32_t tables[]; /* [experts + 1]: units of rows before an expert; then [experts + 1]: rows
                        * before it */
};

static_assert(sizeof(kind<EPA_DEV_E4M3, GEMM_OUT_FP8, true, 64, GEMM_MORE>::ring) +
                      2 * (GEMM_EXPERTS + 1) * sizeof(uint32_t) <=
                  227 * 1024,
              "shared memory of a block");

struct tile {
    uint32_t expert, column, rows; /* column: of C; rows: 1 to GEMM_ROWS + MORE */
    uint64_t in, out;              /* first row in A, in C */
};

/* Iterator over all tiles; each role has its own. */
struct tiles {
    const struct gemm_args &g;
    const uint32_t *units, *rows;
    uint32_t expert, round;
};

template <class K> EPA_DEV bool next_tile(struct tiles &l, struct tile &out)
{
    const struct gemm_args &g = l.g;
    const uint32_t panel = g.experts > 1 ? PANEL_EXPERTS : PANEL_DENSE;
    /* Shifts by one block per round; otherwise a block could get tiles of few rows in every
     * round. */
    uint32_t next = l.round * gridDim.x + (blockIdx.x + l.round) % gridDim.x;
    uint32_t at, first, height, count;
    uint64_t start;

    l.round++;
    if (next >= l.units[g.experts] * g.tiles)
        return false;
    while (next >= l.units[l.expert + 1] * g.tiles)
        l.expert++;
    at = next - l.units[l.expert] * g.tiles;
    first = at / (panel * g.tiles) * panel;
    at -= first * g.tiles;
    height = min(panel, l.units[l.expert + 1] - l.units[l.expert] - first);
    first = (first + at % height) * GEMM_ROWS;
    count = l.rows[l.expert + 1] - l.rows[l.expert];
    start = g.start == NULL ? l.rows[l.expert] : __ldcg(g.start + l.expert);
    out.expert = l.expert;
    out.column = at / height * g.step;
    out.rows = count - first <= GEMM_ROWS + K::MORE ? count - first : GEMM_ROWS;
    out.in = (g.in_packed ? l.rows[l.expert] : start) + first;
    out.out = (g.out_packed ? l.rows[l.expert] : start) + first;
    return true;
}

/* Counts, for each expert, the preceding units of GEMM_ROWS rows and the preceding rows. The last
 * unit of an expert may have K::MORE more rows. Called by warp 0. */
template <class K>
EPA_DEV void count_units(const struct gemm_args &g, uint32_t *units, uint32_t *rows)
{
    uint32_t units_before = 0, rows_before = 0;

    for (uint32_t first = 0; first < g.experts; first += EPA_DEV_WARP) {
        uint32_t e = first + epa_dev_lane(), n = e < g.experts ? __ldcg(g.count + e) : 0;
        uint32_t more = n > GEMM_ROWS ? K::MORE : 0;
        uint32_t u = (n - more + GEMM_ROWS - 1) / GEMM_ROWS, unit_sum = u, row_sum = n;

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

/* Returns the number of boxes of weights that a tile needs. */
template <class K> EPA_DEV uint32_t boxes_of(const struct gemm_args &g, const struct tile &t)
{
    return K::SWIGLU || t.column + GEMM_BOX < g.columns ? 2 : 1;
}

/* ---- epilogues ---- */

template <int OUT> EPA_DEV uint32_t value_bytes(void)
{
    return OUT == GEMM_OUT_FP8 ? 1 : OUT == GEMM_OUT_F32 ? 4 : 2;
}

/* Computes the destination of box `b` of the tile; returns false if the box is beyond C. */
template <int OUT>
EPA_DEV bool out_of(const struct gemm_args &g, const struct tile &t, int b, struct gemm_out &out,
                    float *&scale)
{
    uint32_t column = t.column + (uint32_t)b * GEMM_BOX;

    out.row = g.out + t.out * g.out_stride + column * value_bytes<OUT>();
    out.stride = g.out_stride;
    out.rows = t.rows;
    out.beyond = column + GEMM_BOX > g.columns ? column + GEMM_BOX - g.columns : 0;
    scale = g.out_scale + t.out * (g.columns / g.out_group) + column / g.out_group;
    return column < g.columns;
}

template <class K, int N> EPA_DEV void activate(float (&sum)[2][N])
{
    if (K::SWIGLU) {
#pragma unroll
        for (int i = 0; i < N; i++)
            sum[0][i] = gemm_swiglu(sum[0][i], sum[1][i]);
    }
}

template <class K>
EPA_DEV void store_tile(const struct gemm_args &g, const struct tile &t, float (&sum)[2][64])
{
    activate<K>(sum);
#pragma unroll
    for (int b = 0; b < K::BOXES; b++) {
        struct gemm_out out;
        float *scale;

        if (!out_of<K::OUT>(g, t, b, out, scale))
            break;
        if constexpr (K::OUT == GEMM_OUT_FP8)
            gemm_quantise<K::OUT_GROUP>(out, scale, g.columns / K::OUT_GROUP, sum[b]);
        else
            gemm_store<K::F16, K::FLOAT>(out, sum[b]);
    }
}

/* Stores a swapped tile, or the rows beyond GEMM_ROWS. */
template <class K, int N, class S>
EPA_DEV void store_small(S &s, const struct gemm_args &g, const struct tile &t, uint32_t &turn,
                         float (&sum)[2][N / 2])
{
    activate<K>(sum);
#pragma unroll
    for (int b = 0; b < K::BOXES; b++) {
        struct gemm_out out;
        float *scale;

        if (!out_of<K::OUT>(g, t, b, out, scale))
            break;
        if (gemm_small_beyond(out))
            out.rows = 0;
        if constexpr (K::OUT == GEMM_OUT_FP8) {
            gemm_quantise_small<K::OUT_GROUP, N>(s, turn, out, scale, g.columns / K::OUT_GROUP,
                                                 sum[b]);
            turn = turn == 2 ? 0 : turn + 1;
        } else {
            gemm_store_small<K::F16, K::FLOAT, N>(out, sum[b]);
        }
    }
}

template <class K, int N, class S>
EPA_DEV void small_tile(S &s, struct gemm_at &at, const struct gemm_args &g, const struct tile &t,
                        uint32_t &turn)
{
    float sum[2][N / 2];

    gemm_multiply_small<K::TYPE, K::IN_GROUP, N>(s, at, g.k_blocks, sum);
    store_small<K, N>(s, g, t, turn, sum);
}

/* Multiplies an FP8 tile of 128 rows and up to GEMM_MORE further rows: `more` receives the sums of
 * the further rows, in the layout of gemm_multiply_small<GEMM_MORE>(). */
template <class S>
EPA_DEV void multiply_more(S &s, struct gemm_at &at, uint32_t k_blocks, float (&sum)[2][64],
                           float (&more)[2][GEMM_MORE / 2], uint32_t boxes)
{
    const uint32_t rows = gemm_warpgroup() * 64 * GEMM_BLOCK, row = gemm_row(0);
    float part[64], few[GEMM_MORE / 2];

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
        uint64_t x = epa_dev_tile_descriptor(s.stage[at.stage] + rows);
        uint64_t w = epa_dev_tile_descriptor(s.stage[at.stage] + GEMM_ROWS_BYTES);
        uint64_t besides = epa_dev_tile_descriptor(s.more[at.stage]);

        epa_dev_mbar_wait(&s.full[at.stage], at.phase);
#pragma unroll
        for (int b = 0; b < 2; b++) {
            if (b == 1 && boxes == 1)
                break;
            const float *scale = s.scale[at.stage][b][0];
            const float low = scale[row], high = scale[row + 8];

            epa_dev_wgmma_begin();
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                epa_dev_wgmma<EPA_DEV_E4M3, 128>(
                    part, epa_dev_descriptor_add(x, 32 * i),
                    epa_dev_descriptor_add(w, (uint32_t)b * GEMM_BOX_BYTES + 32 * i), i > 0);
            epa_dev_wgmma_commit();
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                epa_dev_wgmma<EPA_DEV_E4M3, GEMM_MORE>(
                    few, epa_dev_descriptor_add(w, (uint32_t)b * GEMM_BOX_BYTES + rows + 32 * i),
                    epa_dev_descriptor_add(besides, 32 * i), i > 0);
            epa_dev_wgmma_commit();
            epa_dev_wgmma_wait<1>();
#pragma unroll
            for (int i = 0; i < 64; i++)
                sum[b][i] = __fmaf_rn(part[i], i / 2 % 2 == 0 ? low : high, sum[b][i]);
            epa_dev_wgmma_wait<0>();
            gemm_add_scaled<GEMM_MORE>(more[b], few, scale + GEMM_ROWS);
        }
        gemm_release<EPA_DEV_E4M3>(s, at.stage);
        gemm_next<S>(at);
    }
}

/* Computes a tile of more than GEMM_ROWS rows. */
template <class K, class S>
EPA_DEV void tile_and_more(S &s, struct gemm_at &at, const struct gemm_args &g, struct tile t,
                           uint32_t &turn)
{
    float sum[2][64], more[2][GEMM_MORE / 2];
    uint32_t rows = t.rows;

    multiply_more(s, at, g.k_blocks, sum, more, boxes_of<K>(g, t));
    t.rows = GEMM_ROWS;
    store_tile<K>(g, t, sum);
    t.rows = rows - GEMM_ROWS;
    t.out += GEMM_ROWS;
    store_small<K, GEMM_MORE>(s, g, t, turn, more);
}

/* ---- roles ---- */

template <class K>
EPA_DEV struct gemm_scales scales_of(const struct gemm_args &g, const struct tile &t)
{
    const float *first =
        g.weight_scale + (size_t)(t.expert * g.weight_blocks + t.column / GEMM_BOX) * g.k_blocks;
    /* A box beyond C uses the scales of the first box: its sums are unused. */
    bool both = boxes_of<K>(g, t) == 2;

    return {
        g.row_scale + t.in * g.row_scale_stride,
        g.row_scale_stride,
        t.rows,
        {first, first + (both ? (size_t)((g.second + GEMM_BOX - 1) / GEMM_BOX) * g.k_blocks : 0)}};
}

template <class K>
EPA_DEV void load(typename K::ring &s, const struct gemm_args &g, struct tiles &l)
{
    const uint32_t warp = threadIdx.x / EPA_DEV_WARP;
    struct gemm_at at = {0, 0};
    struct tile t;

    if (warp == 0 && epa_dev_lane() == 0) {
        while (next_tile<K>(l, t)) {
            uint32_t first = t.expert * g.weight_rows + t.column;

            if (g.packed != NULL)
                gemm_load_packed(s, at,
                                 g.packed + (size_t)(t.expert * g.tiles + t.column / g.step) *
                                                g.k_blocks * 2 * GEMM_BOX_BYTES,
                                 g.k_blocks, EPA_L2_NORMAL, boxes_of<K>(g, t));
            else
                gemm_load_weights<K::TYPE>(s, at, &g.weights, first, first + g.second, g.k_blocks,
                                           EPA_L2_NORMAL, boxes_of<K>(g, t));
        }
    } else if (warp == 1 && epa_dev_lane() == 0) {
        if (g.early)
            epa_dev_after_kernel();
        while (next_tile<K>(l, t))
            gemm_load_rows<K::TYPE>(s, at, &g.rows, gemm_height(t.rows), (uint32_t)t.in, g.k_blocks,
                                    EPA_L2_NORMAL);
    } else if (warp == 2 && K::TYPE == EPA_DEV_E4M3) {
        if (g.early)
            epa_dev_after_kernel();
        for (bool more = next_tile<K>(l, t); more;) {
            struct gemm_scales of = scales_of<K>(g, t), after;

            more = next_tile<K>(l, t);
            if (more && epa_dev_lane() < 2) {
                after = scales_of<K>(g, t);
                gemm_fetch_scales(after.box[epa_dev_lane()], g.k_blocks);
            }
            gemm_load_scales<K::IN_GROUP>(s, at, of, g.k_blocks, gemm_nothing{}, g.row_groups);
        }
    }
}

template <class K>
EPA_DEV void multiply(typename K::ring &s, const struct gemm_args &g, struct tiles &l)
{
    struct gemm_at at = {0, 0};
    uint32_t turn = 0;
    struct tile t;

    while (next_tile<K>(l, t)) {
        if constexpr (K::MORE != 0)
            if (t.rows > GEMM_ROWS) {
                tile_and_more<K>(s, at, g, t, turn);
                continue;
            }
        if (t.rows > GEMM_SMALL_ROWS) {
            float sum[2][64];

            gemm_multiply<K::TYPE, K::IN_GROUP>(s, at, g.k_blocks, sum, boxes_of<K>(g, t));
            store_tile<K>(g, t, sum);
        } else if (t.rows <= 8) {
            small_tile<K, 8>(s, at, g, t, turn);
        } else if (t.rows <= 16) {
            small_tile<K, 16>(s, at, g, t, turn);
        } else if (t.rows <= 32) {
            small_tile<K, 32>(s, at, g, t, turn);
        } else {
            small_tile<K, 64>(s, at, g, t, turn);
        }
    }
}

template <class K>
__global__ void __launch_bounds__(GEMM_THREADS, 1)
    multiply_experts(const __grid_constant__ struct gemm_args g)
{
    extern __shared__ __align__(1024) char shared[];
    struct shared_head<K> &h = *reinterpret_cast<struct shared_head<K> *>(shared);
    struct tiles l = {g, h.tables, h.tables + g.experts + 1, 0, 0};

    gemm_begin<K::TYPE>(h.ring);
    if (!g.early)
        epa_dev_after_kernel();
    if (threadIdx.x < EPA_DEV_WARP)
        count_units<K>(g, h.tables, h.tables + g.experts + 1);
    __syncthreads();
    if (!g.early)
        epa_dev_next_kernel();
    if (threadIdx.x < 128) {
        epa_dev_registers_less<gemm_registers<K::TYPE>::LOAD>();
        load<K>(h.ring, g, l);
    } else {
        epa_dev_registers_more<gemm_registers<K::TYPE>::MATH>();
        multiply<K>(h.ring, g, l);
    }
}

__global__ void pack(char *to, const char *from, struct gemm_packing p, uint64_t pieces)
{
    gemm_pack_pieces(to, from, p, pieces);
}

/* ---- launches ---- */

template <class K>
cudaError_t launch(const struct gemm_args *g, uint32_t blocks, cudaStream_t stream)
{
    size_t bytes = sizeof(struct shared_head<K>) + 2 * (g->experts + 1) * sizeof(uint32_t);
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    cudaError_t error;

    error = cudaFuncSetAttribute((const void *)multiply_experts<K>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (error != cudaSuccess)
        return error;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(GEMM_THREADS);
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    void *args[] = {const_cast<struct gemm_args *>(g)};

    return cudaLaunchKernelExC(&config, (const void *)multiply_experts<K>, args);
}

typedef cudaError_t launcher(const struct gemm_args *, uint32_t, cudaStream_t);

/* Returns the launcher for C in FP8 and rows of A in groups of 64. */
template <int GROUP> launcher *find_fp8_of_64(bool swiglu)
{
    return swiglu ? launch<kind<EPA_DEV_E4M3, GEMM_OUT_FP8, true, GROUP, 0, 64>>
                  : launch<kind<EPA_DEV_E4M3, GEMM_OUT_FP8, false, GROUP, 0, 64>>;
}

template <int GROUP, int MORE> launcher *find_fp8(enum gemm_out_type out, bool swiglu)
{
    /* for C in other types: A has groups of GROUP */
    constexpr int OTHER = GROUP == GEMM_FP8_GROUP ? MORE : 0;

    switch (out) {
    case GEMM_OUT_FP8:
        return swiglu ? launch<kind<EPA_DEV_E4M3, GEMM_OUT_FP8, true, GROUP, MORE>>
                      : launch<kind<EPA_DEV_E4M3, GEMM_OUT_FP8, false, GROUP, MORE>>;
    case GEMM_OUT_BF16:
        return launch<kind<EPA_DEV_E4M3, GEMM_OUT_BF16, false, GROUP, OTHER>>;
    case GEMM_OUT_F16:
        return launch<kind<EPA_DEV_E4M3, GEMM_OUT_F16, false, GROUP, OTHER>>;
    default:
        return launch<kind<EPA_DEV_E4M3, GEMM_OUT_F32, false, GROUP, OTHER>>;
    }
}

template <int MORE>
launcher *find_fp8_groups(uint32_t group, enum gemm_out_type out, bool swiglu)
{
    return group == 64 ? find_fp8<64, MORE>(out, swiglu)
                       : find_fp8<GEMM_FP8_GROUP, MORE>(out, swiglu);
}

template <epa_dev_type TYPE, int SAME> launcher *find16(enum gemm_out_type out, bool swiglu)
{
    if (out == GEMM_OUT_F32)
        return launch<kind<TYPE, GEMM_OUT_F32, false, GEMM_FP8_GROUP>>;
    return swiglu ? launch<kind<TYPE, SAME, true, GEMM_FP8_GROUP>>
                  : launch<kind<TYPE, SAME, false, GEMM_FP8_GROUP>>;
}

} // namespace

cudaError_t gemm_launch(const struct gemm_args *g, int dtype, enum gemm_out_type out, bool swiglu,
                        uint32_t blocks, cudaStream_t stream)
{
    uint32_t group = out == GEMM_OUT_FP8 ? g->out_group : g->row_group;
    bool of_64 = dtype == EPA_FP8_E4M3 && out == GEMM_OUT_FP8 && g->row_group == 64;
    launcher *of = of_64 ? (group == 64 ? find_fp8_of_64<64>(swiglu) : find_fp8_of_64<128>(swiglu))
                   : dtype == EPA_BF16 ? find16<EPA_DEV_BF16, GEMM_OUT_BF16>(out, swiglu)
                   : dtype == EPA_F16  ? find16<EPA_DEV_F16, GEMM_OUT_F16>(out, swiglu)
                   : g->more != 0      ? find_fp8_groups<GEMM_MORE>(group, out, swiglu)
                                       : find_fp8_groups<0>(group, out, swiglu);

    return of(g, blocks, stream);
}

cudaError_t gemm_pack(char *to, const void *weights, const struct gemm_packing *p, uint32_t experts,
                      cudaStream_t stream)
{
    uint64_t pieces = gemm_packed_bytes(p, experts) / 16;

    pack<<<1024, 256, 0, stream>>>(to, (const char *)weights, *p, pieces);
    return cudaGetLastError();
}
