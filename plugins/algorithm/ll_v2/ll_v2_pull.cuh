/* Combine where expert outputs are pulled: a warp loads the rows that answer a token, and adds
 * them up.
 *
 * It takes a share of a row, a batch of rows at a time, all of them on their way before the
 * first is added; and they are added in one order, whichever comes first. FROM: what the rows
 * are; F16: the type of expert outputs. */
#ifndef LL_V2_PULL_CUH
#define LL_V2_PULL_CUH

#include "ll_v2_device.cuh"

/* Bits of the ranks that have answers to a token, or of its choices; lane k has choice
 * k. */
struct outputs {
    uint32_t expert; /* of this lane's choice */
    float weight;
    uint32_t ranks, choices;
};

struct part {
    uint32_t share, first, channels;
};

static __device__ __forceinline__ struct part part_at(const struct ll_args &a,
                                                      uint32_t share)
{
    uint32_t first = share * a.share_channels;

    return {share, first, min(a.share_channels, a.hidden - first)};
}

static __device__ __forceinline__ struct outputs outputs_of(const struct ll_args &a,
                                                            uint32_t token)
{
    struct outputs of = {~0u, 0.0f, 0, 0};
    size_t choice = (size_t)token * a.topk + dev_lane();

    if (dev_lane() < a.topk) {
        of.expert = (uint32_t)__ldg(a.expert + choice);
        of.weight = __ldg(a.weight + choice);
    }
    of.choices = __ballot_sync(DEV_ALL, of.expert < a.experts);
    of.ranks =
        __reduce_or_sync(DEV_ALL, of.expert < a.experts ? 1u << of.expert / a.local : 0u);
    return of;
}

/* ---- expert outputs that are made of rows that came ---- */

static __device__ __forceinline__ uint4 load_codes(const struct ll_args &a, const char *row,
                                                   uint32_t channel)
{
    uint2 codes = __ldcg(reinterpret_cast<const uint2 *>(row + channel));
    uint32_t group = channel >> (31 - __clz(a.group)); /* a power of 2 */
    uint32_t scale = __ldcg(reinterpret_cast<const uint32_t *>(row + a.scales_at) + group);

    return make_uint4(codes.x, codes.y, scale, 0);
}

/* The answer to eight channels: times the expert's factor, rounded, then to its type. */
template <int FROM, bool F16>
static __device__ __forceinline__ void make_output(float factor, float *value)
{
    if constexpr (FROM != LL_FROM_Y) {
#pragma unroll
        for (int j = 0; j < 8; j++)
            value[j] = __fmul_rn(value[j], factor);
        dev_unpack<F16>(dev_pack<F16>(value), value);
    }
}

template <int FROM, bool F16>
static __device__ __forceinline__ void unpack_output(uint4 raw, float factor, float *value)
{
    if (FROM == LL_FROM_CODES) {
        dev_unpack_fp8(raw.x, __uint_as_float(raw.z), value);
        dev_unpack_fp8(raw.y, __uint_as_float(raw.z), value + 4);
    } else {
        dev_unpack<F16>(raw, value);
    }
    make_output<FROM, F16>(factor, value);
}

/* ---- sums ---- */

/* What a lane holds of a row, and of the sum, 16 bytes of what crosses at a time: FP8 says
 * which that is. Rows of experts have 16 bits a channel even then: two halves of 16
 * bytes. */
template <bool FP8> struct sweeps {
    uint4 v[ll_width<FP8>::SHARE_SWEEPS][ll_width<FP8>::HALVES];
};

template <bool FP8> struct sum {
    float v[ll_width<FP8>::SHARE_SWEEPS][ll_width<FP8>::LANE];
};

template <bool FP8>
static __device__ __forceinline__ bool takes(const struct part &p, int sweep)
{
    return sweep * ll_width<FP8>::SWEEP + dev_lane() * ll_width<FP8>::LANE < p.channels;
}

/* Channel of this lane in that sweep. */
template <bool FP8>
static __device__ __forceinline__ uint32_t channel(const struct part &p, int sweep)
{
    return p.first + sweep * ll_width<FP8>::SWEEP + dev_lane() * ll_width<FP8>::LANE;
}

/* What a lane takes of a row that an expert output is made of; of codes eight, and their scale. */
template <int FROM, bool FP8>
static __device__ __forceinline__ void load_row(const struct ll_args &a,
                                                const struct part &p, const char *row,
                                                struct sweeps<FP8> *to)
{
#pragma unroll
    for (int i = 0; i < ll_width<FP8>::SHARE_SWEEPS; i++)
#pragma unroll
        for (int h = 0; h < ll_width<FP8>::HALVES; h++) {
            to->v[i][h] = make_uint4(0, 0, 0, 0);
            if (takes<FP8>(p, i) && FROM == LL_FROM_CODES)
                to->v[i][h] = load_codes(a, row, channel<FP8>(p, i) + 8 * h);
            else if (takes<FP8>(p, i))
                to->v[i][h] = dev_load16(row + 2 * channel<FP8>(p, i) + 16 * h);
        }
}

static __device__ __forceinline__ void add8(const float *value, float weight, float *to)
{
#pragma unroll
    for (int j = 0; j < 8; j++)
        to[j] = __fmaf_rn(weight, value[j], to[j]);
}

/* sum = fma(weight, answer, sum) */
template <int FROM, bool F16, bool FP8>
static __device__ __forceinline__ void add(const struct sweeps<FP8> &row, float factor,
                                           float weight, struct sum<FP8> *s)
{
#pragma unroll
    for (int i = 0; i < ll_width<FP8>::SHARE_SWEEPS; i++)
#pragma unroll
        for (int h = 0; h < ll_width<FP8>::HALVES; h++) {
            float value[8];

            unpack_output<FROM, F16>(row.v[i][h], factor, value);
            add8(value, weight, s->v[i] + 8 * h);
        }
}

template <bool F16, bool FP8>
static __device__ __forceinline__ void store_out(const struct ll_args &a,
                                                 const struct part &p, uint32_t token,
                                                 const struct sum<FP8> &s)
{
    char *to = static_cast<char *>(a.out) + 2 * (size_t)token * a.hidden;

#pragma unroll
    for (int i = 0; i < ll_width<FP8>::SHARE_SWEEPS; i++)
#pragma unroll
        for (int h = 0; h < ll_width<FP8>::HALVES; h++)
            if (takes<FP8>(p, i))
                dev_store16(to + 2 * channel<FP8>(p, i) + 16 * h,
                            dev_pack<F16>(s.v[i] + 8 * h));
}

/* Of a lane: a row, the factor of its expert, and what the answer counts. */
struct term {
    const char *from;
    float factor, by;
};

/* Where the answers to a token are that it pulls, or the rows that they are made of: *out is
 * of this lane's. Returns which lanes have one; they are added in order. */
template <int MODE, int FROM>
static __device__ __forceinline__ uint32_t list_outputs(const struct ll_args &a,
                                                        uint32_t token,
                                                        const struct outputs &of,
                                                        struct term *out)
{
    uint32_t lane = dev_lane(), place = ~0u;

    *out = {NULL, 1.0f, MODE == LL_DIRECT ? of.weight : 1.0f};
    if (MODE == LL_DIRECT && of.expert < a.experts)
        place = __ldcg(a.place + (size_t)token * a.topk + lane);
    if (MODE == LL_DIRECT && place != ~0u)
        out->from = a.v.peer_heap[of.expert / a.local] + a.y_space +
                    (uint64_t)place * a.output_bytes;
    if (FROM != LL_FROM_Y && place != ~0u)
        out->factor = __ldg(a.factor + of.expert);
    if (MODE != LL_DIRECT && lane < a.v.size)
        out->from = a.v.peer_heap[lane] + a.y_space +
                    (uint64_t)ll_slot(a.max_tokens, a.v.rank, token) * a.output_bytes;
    return MODE == LL_DIRECT ? __ballot_sync(DEV_ALL, place != ~0u) : of.ranks;
}

/* Which bit is the one with `before` others below it; any if there is none. One warp. */
static __device__ __forceinline__ uint32_t bit_at(uint32_t bits, uint32_t before)
{
    uint32_t lower = __popc(bits & ((1u << dev_lane()) - 1));

    return (uint32_t)__ffs(
               __ballot_sync(DEV_ALL, (bits >> dev_lane() & 1) != 0 && lower == before)) -
           1u;
}

enum { BATCH = 4 }; /* rows that a warp has on their way */

/* Rows of a batch, and what each counts. */
template <bool FP8> struct batch {
    struct sweeps<FP8> row[BATCH];
    float factor[BATCH], weight[BATCH];
};

/* Adds the rows of a batch in order; the one that comes first was loaded as number TURN. */
template <int FROM, bool F16, bool FP8, int TURN>
static __device__ __forceinline__ void add_batch(const struct batch<FP8> &b, uint32_t n,
                                                 struct sum<FP8> *s)
{
#pragma unroll
    for (int i = 0; i < BATCH; i++)
        if (i < (int)n)
            add<FROM, F16, FP8>(b.row[(i + TURN) % BATCH], b.factor[(i + TURN) % BATCH],
                                b.weight[(i + TURN) % BATCH], s);
}

/* A token's part: all rows of a batch are on their way before the first is added. Warps
 * begin with different rows (by `turn`), or all would ask the same rank first. WEIGHED:
 * each counts `by` its lane, else 1. */
template <int FROM, bool F16, bool FP8, bool WEIGHED>
static __device__ __forceinline__ struct sum<FP8>
add_up(const struct ll_args &a, const struct part &p, uint32_t list, const struct term &t,
       uint32_t turn) {
    struct sum<FP8> s = {
    };

    while (list != 0) {
        struct batch<FP8> b;
        uint32_t n = min(__popc(list), BATCH), left = list;

#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            uint32_t pos = (i + BATCH - turn % BATCH) % BATCH;
            uint32_t lane = bit_at(list, pos);
            const char *at = dev_from_lane(t.from, lane);

            b.weight[i] = WEIGHED ? __shfl_sync(DEV_ALL, t.by, lane) : 1.0f;
            b.factor[i] = FROM != LL_FROM_Y ? __shfl_sync(DEV_ALL, t.factor, lane) : 1.0f;
            if (pos < n)
                load_row<FROM, FP8>(a, p, at, &b.row[i]);
        }
        for (uint32_t i = 0; i < n; i++)
            left &= left - 1;
        list = left;
        switch (turn % BATCH) {
        case 0:
            add_batch<FROM, F16, FP8, 0>(b, n, &s);
            break;
        case 1:
            add_batch<FROM, F16, FP8, 1>(b, n, &s);
            break;
        case 2:
            add_batch<FROM, F16, FP8, 2>(b, n, &s);
            break;
        default:
            add_batch<FROM, F16, FP8, 3>(b, n, &s);
            break;
        }
    }
    return s;
}

#endif
