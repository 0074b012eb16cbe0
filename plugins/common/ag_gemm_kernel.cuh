/* AllGather and GEMM on GPUs: one persistent kernel from the main loops of gemm_cuda.cuh
 * (ag_gemm_cuda.c describes the protocol between ranks).
 *
 * Each multiprocessor has one block, whose warps have roles:
 *
 *   warp 0         one lane takes tiles, announces them to the other warps, and loads their weights
 *   warp 1         one lane waits until the rows of the tile have arrived, and loads them
 *   warp 2         FP8: waits for the same rows, and loads scales
 *   warp 3         moves a share of the rows (ag_gemm_move.cuh)
 *   warps 4 to 11  multiply, add the bias, store
 *
 * In blocks reserved for communication, warps 0 to 3 move rows, and the others are idle.
 *
 * Tiles have 128 rows, both of C and of a set, except at the ends of ranks. The rows of a rank form
 * a segment; segments follow the order `turn`. A segment is divided into panels of some tiles down.
 * Blocks finish a panel before the next one begins, with m fastest, so that its rows and some
 * columns of weights stay in L2. The orders swizzle and none fix the block of each tile. In the
 * order of arrival, blocks take tiles of the first panel whose rows have all arrived, and wait only
 * if no such panel exists.
 *
 * A cluster of two blocks computes two tiles, one below the other: each block loads one of the two
 * boxes of their weights into both blocks. The first block takes both tiles and sends the second
 * tile to the second block. If one tile of the pair has no rows, its block computes the other tile
 * again and does not store it.
 *
 * A tile that contains only this rank's own rows reads them at the caller's address.
 *
 * OUT_FP8: C is e4m3. A box of weights has the 128 columns of a scale, so the four lanes that hold a
 * row compute its scale. Tiles of few rows are not swapped then: the columns of a swapped tile are
 * spread over both warpgroups.
 *
 * Three files have the kernels, since they compile for minutes: ag_gemm_kernels.cu,
 * ag_gemm_out_fp8.cu and, with intervals for the profile, ag_gemm_profile.cu. */
#ifndef AG_GEMM_KERNEL_CUH
#define AG_GEMM_KERNEL_CUH

#include "gemm_epilogue.cuh"

#include "ag_gemm_device.h"
#include "ag_gemm_tiles.cuh"

extern __shared__ __align__(1024) uint32_t shared[]; /* struct shared_head */

namespace
{

enum { SMALL = GEMM_SMALL_ROWS };

/* Registers per thread, the minimum without spills: threads that take tiles or load scales need
 * more than threads that only load. */
template <epa_dev_type TYPE, int BOXES> struct registers {
    enum {
        LOAD = TYPE == EPA_DEV_E4M3 || BOXES == 1 ? 72 : 56,
        MATH = TYPE == EPA_DEV_E4M3 || BOXES == 1 ? 216 : 224
    };
    static_assert(128 * LOAD + 256 * MATH <= GEMM_REGISTERS, "registers of a block");
};

/* BOXES: boxes of weights in a tile. CLUSTER: number of blocks whose tiles lie below each other. */
template <int BOXES_, int CLUSTER_> struct shared_head {
    enum { BOXES = BOXES_, CLUSTER = CLUSTER_ };
    gemm_shared<BOXES == 2 ? 4 : 6, 1, BOXES, CLUSTER> ring;
    alignas(16) struct state state;
};

static_assert(sizeof(shared_head<1, 1>) <= 227 * 1024 && sizeof(shared_head<2, 2>) <= 227 * 1024,
              "shared memory of a block");
static_assert((int)AG_GEMM_THREADS == (int)GEMM_THREADS, "threads of a block");

/* ---- roles ---- */

/* Returns the next tile, for all threads except the one that takes tiles. */
EPA_DEV struct job known_job(struct state &s, struct gemm_at &at)
{
    struct job j;

    epa_dev_mbar_wait(&s.known[at.stage], at.phase);
    j = s.job[at.stage];
    epa_dev_mbar_arrive(&s.free[at.stage]); /* each thread releases its reads */
    if (++at.stage == RING) {
        at.stage = 0;
        at.phase ^= 1;
    }
    return j;
}

template <int BOXES> EPA_DEV uint32_t boxes_of(const struct ag_gemm_args &a, const struct job &j)
{
    return BOXES == 2 && j.column + GEMM_BOX < a.n ? 2 : 1;
}

/* Called by one lane. */
template <epa_dev_type TYPE, class HEAD>
EPA_DEV void take_tiles(const struct ag_gemm_args &a, HEAD &head, uint64_t call, uint32_t *taken)
{
    struct state &s = head.state;
    struct cursor &c = s.cursor; /* in shared memory to save registers */
    struct gemm_at at = {0, 0}, ring = {0, 0};
    struct job j;
    bool any;

    c = first_tile<HEAD::CLUSTER>(a, s, taken);
    do {
        any = next_job<HEAD::CLUSTER>(a, s, c, call, &j);
        if (AG_GEMM_PROFILE && any && c.waited) {
            note_tile(a, s, j, AG_GEMM_CHOOSE, c.waits_since, c.waits_for);
            c.waited = false;
        }
        epa_dev_mbar_wait(&s.free[ring.stage], ring.phase ^ 1);
        j.rows = any ? j.rows : 0;
        s.job[ring.stage] = j;
        epa_dev_mbar_arrive(&s.known[ring.stage]);
        if (++ring.stage == RING) {
            ring.stage = 0;
            ring.phase ^= 1;
        }
        if (any)
            gemm_load_weights<TYPE>(head.ring, at, &a.weights, j.column, j.column + GEMM_BOX,
                                    a.k_blocks, EPA_L2_NORMAL, boxes_of<HEAD::BOXES>(a, j));
    } while (any);
}

/* Called by one lane. */
template <epa_dev_type TYPE, bool OUT_FP8, class HEAD>
EPA_DEV void load_rows(const struct ag_gemm_args &a, HEAD &head, uint64_t call)
{
    struct state &s = head.state;
    struct gemm_at at = {0, 0}, ring = {0, 0};

    for (;;) {
        struct job j = known_job(s, ring);

        if (j.rows == 0)
            return;
        uint32_t begun = ag_gemm_now(), polled = wait_for_rows(a, s, SEER_ROWS, j, call);

        if (AG_GEMM_PROFILE && polled != EPA_DEVICE_RANKS)
            note_tile(a, s, j, AG_GEMM_AWAIT, begun, polled);
        gemm_load_rows<TYPE>(
            head.ring, at, j.own ? &a.own : &a.gathered, !OUT_FP8 && j.rows <= SMALL ? 3 : 4,
            j.own ? j.row - s.places.start[a.v.rank] : j.row, a.k_blocks, EPA_L2_NORMAL);
    }
}

/* Called by a warp. A box beyond C uses the scales of the first box: its sums are unused. */
template <class HEAD>
EPA_DEV void load_scales(const struct ag_gemm_args &a, HEAD &head, uint64_t call)
{
    struct state &s = head.state;
    const float *gathered = reinterpret_cast<const float *>(a.v.peer_heap[a.v.rank] + a.set_scales);
    struct gemm_at at = {0, 0}, ring = {0, 0};

    for (;;) {
        struct job j = known_job(s, ring);
        const float *box = a.b_scale + (size_t)(j.column / GEMM_BOX) * a.groups;

        if (j.rows == 0)
            return;
        if (epa_dev_lane() == 0)
            (void)wait_for_rows(a, s, SEER_SCALES, j, call);
        __syncwarp();
        struct gemm_scales of = {
            j.own ? a.a_scale + (size_t)(j.row - s.places.start[a.v.rank]) * a.groups
                  : gathered + (size_t)j.row * a.groups,
            a.groups,
            j.rows,
            {box, box + (boxes_of<HEAD::BOXES>(a, j) == 2 ? a.groups : 0)},
        };

        gemm_load_scales<GEMM_FP8_GROUP>(head.ring, at, of, a.k_blocks);
    }
}

/* ---- epilogues ---- */

template <bool F16> EPA_DEV void store_value(char *to, float v)
{
    *reinterpret_cast<uint16_t *>(to) = (uint16_t)epa_dev_pack2<F16>(v, 0.0f);
}

/* Stores the values that 16-byte stores cannot: rows of C that are not a multiple of 16 bytes,
 * columns beyond C, rows that are not contiguous. SWAPPED: rows and columns are exchanged. */
template <bool F16, bool SWAPPED, int N>
EPA_DEV void store_each(const struct ag_gemm_args &a, const struct ag_gemm_places &p,
                        const struct job &j, uint32_t first, const float (&v)[N])
{
    enum { ROWS = SWAPPED ? N / 2 : 2 }; /* rows per thread */
    const uint32_t column = first + (SWAPPED ? gemm_small_column(0) : gemm_column(0));
    const int32_t left = (int32_t)(a.n - column);

#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int at = SWAPPED ? r / 2 * 4 + r % 2 : 2 * r; /* index of the first value in row r */
        uint32_t c_row = c_row_of(a, p, j, SWAPPED ? gemm_small_row(at) : gemm_row(at));
        char *to = a.c + ((size_t)c_row * a.n + column) * 2;

        if (c_row == UINT32_MAX)
            continue;
#pragma unroll
        for (int k = 0; k < N / ROWS; k++) {
            const int i = SWAPPED ? at + 2 * k : at + k / 2 * 4 + k % 2;
            const int on = SWAPPED ? 8 * k : k / 2 * 8 + k % 2; /* column offset */

            if (on < left)
                store_value<F16>(to + on * 2, v[i]);
        }
    }
}

/* Stores 16 codes of a row of C, in one store if rows of C are multiples of 16 bytes. */
EPA_DEV void store_codes(const struct ag_gemm_args &a, uint32_t c_row, uint32_t column, uint4 codes)
{
    const uint32_t word[4] = {codes.x, codes.y, codes.z, codes.w};
    char *to = a.c + (size_t)c_row * a.n + column;

    if (a.wide) {
        if (column < a.n)
            epa_dev_store16(to, codes);
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < 16; i++)
        if (column + i < a.n)
            to[i] = (char)(word[i / 4] >> i % 4 * 8);
}

/* Quantises and stores a box like gemm_quantise(), also at the ends of rows of C and in rows that
 * are not contiguous. Values beyond C are 0 or not finite, so they do not change the scale. One
 * code serves all boxes, and each store finds its row again: two codes, or rows in registers, would
 * need more registers than available. */
EPA_DEV void quantise_box(const struct ag_gemm_args &a, const struct ag_gemm_places &p,
                          const struct job &j, uint32_t first, float (&v)[64])
{
    const uint32_t q = epa_dev_lane() % 4;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        auto c_row = [&] { return c_row_of(a, p, j, gemm_row(2 * half)); };
        float amax = 0.0f, odd = 0.0f, scale, inverse, by;

#pragma unroll
        for (int i = 0; i < 32; i++) {
            float x = v[i / 2 * 4 + 2 * half + i % 2];

            amax = fmaxf(amax, fabsf(x));
            odd = __fmaf_rn(x, 0.0f, odd); /* NaN after an infinity or NaN */
        }
        if (__any_sync(EPA_DEV_ALL, odd != 0.0f)) {
            amax = 0.0f;
#pragma unroll
            for (int i = 0; i < 32; i++) {
                float x = v[i / 2 * 4 + 2 * half + i % 2];

                amax = gemm_finite(x) ? fmaxf(amax, fabsf(x)) : amax;
            }
        }
        amax = fmaxf(amax, __shfl_xor_sync(EPA_DEV_ALL, amax, 1));
        amax = fmaxf(amax, __shfl_xor_sync(EPA_DEV_ALL, amax, 2));
        scale = amax * (1.0f / 448.0f);
        scale = scale > 0.0f ? scale : 1.0f; /* also if the product underflows */
        if (q == 0 && c_row() != UINT32_MAX)
            a.c_scale[(size_t)c_row() * a.c_groups + first / GEMM_BOX] = scale;
        by = gemm_quotient_factor(scale);
        scale *= by;
        if (__any_sync(EPA_DEV_ALL, odd != 0.0f || by != 1.0f)) {
#pragma unroll
            for (int i = 0; i < 32; i++) {
                float &x = v[i / 2 * 4 + 2 * half + i % 2];

                x = isinf(x) ? copysignf(448.0f * scale, x) : x * by;
            }
        }
        inverse = __frcp_rn(scale);
#pragma unroll
        for (int c = 0; c < 16; c += 8) {
            uint32_t word[4];

#pragma unroll
            for (int i = 0; i < 4; i++) {
                int at = 4 * (c + 2 * i) + 2 * half;

                word[i] = gemm_fp8x2(v[at], v[at + 1], scale, inverse) |
                          gemm_fp8x2(v[at + 4], v[at + 5], scale, inverse) << 16;
            }
            gemm_quad_transpose(word);
            /* Each word holds two columns of an even group of 8 and two of the next group. */
            if (c_row() != UINT32_MAX)
                store_codes(a, c_row(), first + 8 * c + 16 * q,
                            make_uint4(__byte_perm(word[0], word[1], 0x5410),
                                       __byte_perm(word[2], word[3], 0x5410),
                                       __byte_perm(word[0], word[1], 0x7632),
                                       __byte_perm(word[2], word[3], 0x7632)));
        }
    }
}

template <bool F16, bool SWAPPED, bool OUT_FP8, class HEAD, int N>
EPA_DEV void store_tile(const struct ag_gemm_args &a, HEAD &head, const struct job &j,
                        const float (&sum)[2][N])
{
    const struct ag_gemm_places &p = head.state.places;
    const uint32_t boxes = j.spare ? 0 : boxes_of<HEAD::BOXES>(a, j);

#pragma unroll
    for (int b = 0; b < 2; b++) {
        uint32_t first = j.column + (uint32_t)b * GEMM_BOX;

        if ((uint32_t)b >= boxes)
            break;
        /* A copy, since ptxas would let each wgmma wait for the previous one with an update in
         * place (C7515). */
        float v[N];

#pragma unroll
        for (int i = 0; i < N; i++) {
            uint32_t column = first + (SWAPPED ? gemm_small_column(i) : gemm_column(i));

            v[i] = sum[b][i] + (a.bias != nullptr && column < a.n ? __ldg(a.bias + column) : 0.0f);
        }
        if constexpr (OUT_FP8) {
            quantise_box(a, p, j, first, v);
        } else if (a.wide && j.whole && first + GEMM_BOX <= a.n) {
            struct gemm_out to = {a.c + ((size_t)j.c_row * a.n + first) * 2, (size_t)a.n * 2,
                                  j.rows};

            if constexpr (SWAPPED)
                gemm_store_small<F16, false, 2 * N>(to, v);
            else
                gemm_store<F16, false>(to, v);
        } else {
            store_each<F16, SWAPPED>(a, p, j, first, v);
        }
    }
}

/* Records the tile that the math warps have stored, in their first thread. */
EPA_DEV void note_product(const struct ag_gemm_args &a, const struct state &s, const struct job &j)
{
    if (AG_GEMM_PROFILE && threadIdx.x == AG_GEMM_THREADS - GEMM_MATH_WARPS * EPA_DEV_WARP)
        note_tile(a, s, j, AG_GEMM_TILE, s.begun, UINT32_MAX);
}

template <epa_dev_type TYPE, bool OUT_FP8, class HEAD>
EPA_DEV void multiply(const struct ag_gemm_args &a, HEAD &head)
{
    struct state &s = head.state;
    enum { F16 = TYPE == EPA_DEV_F16 };
    struct gemm_at at = {0, 0}, ring = {0, 0};

    for (;;) {
        epa_dev_mbar_wait(&s.known[ring.stage], ring.phase);
        /* The rest of the job is read once the sums no longer occupy the registers; with OUT_FP8, by
         * the epilogue. */
        const struct job &known = s.job[ring.stage];

        if (known.rows == 0)
            return;
        if (AG_GEMM_PROFILE && threadIdx.x == AG_GEMM_THREADS - GEMM_MATH_WARPS * EPA_DEV_WARP)
            s.begun = ag_gemm_now();
        if (OUT_FP8 || known.rows > SMALL) {
            float sum[2][64];

            gemm_multiply<TYPE, GEMM_FP8_GROUP>(head.ring, at, a.k_blocks, sum,
                                                boxes_of<HEAD::BOXES>(a, known));
            if constexpr (OUT_FP8) {
                /* A copy of the job would need more registers than available. */
                store_tile<F16, false, true>(a, head, known, sum);
                note_product(a, s, known);
                (void)known_job(s, ring);
            } else {
                const struct job j = known_job(s, ring);

                store_tile<F16, false, false>(a, head, j, sum);
                note_product(a, s, j);
            }
        } else if constexpr (!OUT_FP8) {
            float sum[2][SMALL / 2];

            gemm_multiply_small<TYPE, GEMM_FP8_GROUP, SMALL>(head.ring, at, a.k_blocks, sum);
            const struct job j = known_job(s, ring);

            store_tile<F16, true, false>(a, head, j, sum);
            note_product(a, s, j);
        }
    }
}

/* Called by a warp. In a block that only moves (`alone`), four warps move, and their staging
 * buffers are the stages of the product's ring. */
template <class HEAD>
EPA_DEV void move(const struct ag_gemm_args &a, HEAD &head, uint64_t call, bool alone)
{
    struct state &s = head.state;
    const uint32_t warp = alone ? threadIdx.x / EPA_DEV_WARP : 0;
    struct ag_gemm_warp m = {alone ? blockIdx.x * MOVERS + warp : blockIdx.x,
                             alone ? a.comm_blocks * MOVERS : gridDim.x,
                             0,
                             0,
                             0,
                             alone ? head.ring.stage[warp] : s.staging,
                             s.staged[warp],
                             &s.last[warp]};

    ag_gemm_move_all(a, s.places, m, call);
    if (blockIdx.x != 0 || warp != 0)
        return;
    if (a.forwards && epa_dev_lane() == 0)
        ag_gemm_open_gates(a, s.places, call);
    __syncwarp();
    ag_gemm_wait_all(a, call);
}

/* Synchronizes all threads of the cluster. */
template <int CLUSTER> EPA_DEV void meet(void)
{
    if constexpr (CLUSTER == 1)
        __syncthreads();
    else
        epa_dev_cluster_sync();
}

/* Returns the number of calls that gathered, including this one, and of kernels before this one. */
template <epa_dev_type TYPE, class HEAD>
EPA_DEV struct ag_gemm_count begin(const struct ag_gemm_args &a, HEAD &head)
{
    struct state &s = head.state;
    struct ag_gemm_count count;

    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < MOVERS * AG_GEMM_DEPTH; i++)
            epa_dev_mbar_init(&s.staged[i / AG_GEMM_DEPTH][i % AG_GEMM_DEPTH], 1);
        for (uint32_t i = 0; i < MOVERS; i++)
            s.last[i].due = false;
        for (uint32_t i = 0; i < RING; i++) {
            epa_dev_mbar_init(&s.known[i], 1);
            /* threads that load rows, load scales and multiply */
            epa_dev_mbar_init(&s.free[i],
                              1 + ((TYPE == EPA_DEV_E4M3) + GEMM_MATH_WARPS) * EPA_DEV_WARP);
        }
        for (uint32_t i = 0; i < SENT && HEAD::CLUSTER > 1; i++)
            epa_dev_mbar_init(&s.tile_bar[i], 1);
    }
    gemm_begin<TYPE>(head.ring); /* its fence also covers the barriers above */
    if (threadIdx.x < EPA_DEV_WARP) {
        for (uint32_t i = threadIdx.x; i < SEERS * AG_GEMM_RANKS; i += EPA_DEV_WARP)
            s.seen[i / AG_GEMM_RANKS][i % AG_GEMM_RANKS] = 0;
    } else if (threadIdx.x == EPA_DEV_WARP) {
        epa_dev_map_prefetch(&a.weights);
        epa_dev_map_prefetch(&a.own.height[4]);
        epa_dev_map_prefetch(&a.gathered.height[4]);
    }
    epa_dev_next_kernel();
    epa_dev_after_kernel(); /* all reads and writes of global memory follow */
    count = {__ldcg(&a.count[blockIdx.x].calls) + a.moves, __ldcg(&a.count[blockIdx.x].kernels)};
    if (threadIdx.x < EPA_DEV_WARP) {
        ag_gemm_find_places(a, s.places);
        __syncwarp();
        find_segments(a, s);
    }
    if (AG_GEMM_PROFILE && threadIdx.x == 0)
        s.call = (uint32_t)count.calls;
    if (blockIdx.x == 0) /* clear the counters of the previous kernel */
        for (uint32_t i = threadIdx.x; i < a.panels; i += GEMM_THREADS)
            a.taken[1 - count.kernels % 2][i] = 0;
    meet<HEAD::CLUSTER>();
    return count;
}

template <epa_dev_type TYPE, int BOXES, int CLUSTER, bool OUT_FP8>
__global__ void __launch_bounds__(GEMM_THREADS, 1)
    ag_gemm(const __grid_constant__ struct ag_gemm_args a)
{
    auto &s = *reinterpret_cast<struct shared_head<BOXES, CLUSTER> *>(shared);
    const uint32_t warp = threadIdx.x / EPA_DEV_WARP;
    const bool alone = blockIdx.x < a.comm_blocks, multiplies = a.multiplies && !alone;
    const struct ag_gemm_count count = begin<TYPE>(a, s);
    const uint64_t call = count.calls;

    if (threadIdx.x < 128) {
        epa_dev_registers_less<registers<TYPE, BOXES>::LOAD>();
        if (a.moves && (alone || (warp == 3 && a.comm_blocks == 0)))
            move(a, s, call, alone);
        else if (multiplies && warp == 0 && epa_dev_lane() == 0)
            take_tiles<TYPE>(a, s, call, a.taken[count.kernels % 2]);
        else if (multiplies && warp == 1 && epa_dev_lane() == 0)
            load_rows<TYPE, OUT_FP8>(a, s, call);
        else if (multiplies && warp == 2 && TYPE == EPA_DEV_E4M3)
            load_scales(a, s, call);
    } else {
        epa_dev_registers_more<registers<TYPE, BOXES>::MATH>();
        if (multiplies)
            multiply<TYPE, OUT_FP8>(a, s);
    }
    meet<CLUSTER>();
    if (threadIdx.x == 0) {
        a.count[blockIdx.x] = {call, count.kernels + 1};
        if (blockIdx.x == 0 && a.moves)
            *a.next_call = call + 1;
    }
}

/* Returns the kernel for a number of columns of a tile and of blocks of a cluster. */
template <epa_dev_type TYPE, bool OUT_FP8>
const void *kernel_of(uint32_t tile_cols, uint32_t cluster)
{
    return tile_cols == GEMM_BOX ? (const void *)ag_gemm<TYPE, 1, 1, OUT_FP8>
           : cluster == 1        ? (const void *)ag_gemm<TYPE, 2, 1, OUT_FP8>
                                 : (const void *)ag_gemm<TYPE, 2, 2, OUT_FP8>;
}

template <bool OUT_FP8> const void *kernel_for(int dtype, uint32_t tile_cols, uint32_t cluster)
{
    return dtype == EPA_FP8_E4M3 ? kernel_of<EPA_DEV_E4M3, OUT_FP8>(tile_cols, cluster)
           : dtype == EPA_F16    ? kernel_of<EPA_DEV_F16, OUT_FP8>(tile_cols, cluster)
                                 : kernel_of<EPA_DEV_BF16, OUT_FP8>(tile_cols, cluster);
}

} // namespace

#endif
