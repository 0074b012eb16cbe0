/* Parts of rows in dispatch: read from x, quantised, and stored into messages.
 *
 * A warp has a part of a token in its registers, 16 bytes of what crosses in a lane and
 * sweep, so that each of its stores is made of whole packets; its scales are brought to
 * neighbouring lanes for the same reason. */
#ifndef LL_V2_ROWS_CUH
#define LL_V2_ROWS_CUH

#include "ll_v2_device.cuh"

/* Whether a token is quantised on its way. */
static __device__ constexpr bool quantises(int in)
{
    return in == LL_IN_QUANTISE || in == LL_IN_QUANTISE_F16;
}

/* A part of a token on its way: what a lane stores of it, 16 bytes at a time. */
template <int IN> struct load {
    typedef ll_width<IN != LL_IN_PLAIN> width;
    uint4 v[width::UNIT_SWEEPS];
    float scale[width::UNIT_SWEEPS];
};

struct part {
    uint32_t token, unit, first, channels; /* first: channel */
};

static __device__ __forceinline__ struct part part_at(const struct ll_args &a,
                                                      uint32_t token, uint32_t unit)
{
    uint32_t first = unit * a.unit_channels;

    return {token, unit, first, min(a.unit_channels, a.hidden - first)};
}

/* The same as it is read. */
template <int IN> struct raw {
    enum { SWEEPS = load<IN>::width::UNIT_SWEEPS, HALVES = quantises(IN) ? 2 : 1 };
    uint4 v[SWEEPS][HALVES];
    float scale; /* LL_IN_FP8: of group `lane` of the part */
};

/* Sets out to read it: what stands between this and the first use is for free. */
template <int IN>
static __device__ __forceinline__ void read_part(const struct ll_args &a,
                                                 const struct part &p, struct raw<IN> *to)
{
    enum {
        HALVES = raw<IN>::HALVES,
        SWEEP = load<IN>::width::SWEEP,
        LANE = load<IN>::width::LANE
    };
    size_t row = ((size_t)p.token * a.hidden + p.first) * (IN == LL_IN_FP8 ? 1 : 2);
    const char *x = static_cast<const char *>(a.x) + row + dev_lane() * 16 * HALVES;

#pragma unroll
    for (int i = 0; i < raw<IN>::SWEEPS; i++)
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            to->v[i][h] = make_uint4(0, 0, 0, 0);
            if (i * SWEEP + dev_lane() * LANE < p.channels)
                to->v[i][h] = __ldg(
                    reinterpret_cast<const uint4 *>(x + (i * DEV_WARP * HALVES + h) * 16));
        }
    to->scale = 0.0f;
    if (IN == LL_IN_FP8 && dev_lane() < p.channels / a.group)
        to->scale = __ldg(a.x_scale + (size_t)p.token * (a.hidden / a.group) +
                          p.first / a.group + dev_lane());
}

template <int IN>
static __device__ __forceinline__ void
quantise_part(const struct ll_args &a, const struct raw<IN> &from, struct load<IN> *l)
{
#pragma unroll
    for (int i = 0; i < raw<IN>::SWEEPS; i++) {
        l->v[i] = from.v[i][0];
        if (quantises(IN))
            l->v[i] = dev_quantise16<IN == LL_IN_QUANTISE_F16>(
                from.v[i][0], from.v[i][raw<IN>::HALVES - 1],
                a.group / load<IN>::width::LANE, &l->scale[i]);
    }
}

/* The scales of a part, one a lane, so that they leave in one packet. Up to a warp of
 * them. */
template <int IN>
static __device__ __forceinline__ float
gather_scales(const struct ll_args &a, const struct raw<IN> &from, const struct load<IN> &l)
{
    enum { SWEEPS = load<IN>::width::UNIT_SWEEPS, LANE = load<IN>::width::LANE };
    uint32_t sweep = load<IN>::width::SWEEP / a.group;
    float mine = from.scale;

#pragma unroll
    for (int i = 0; i < (quantises(IN) ? SWEEPS : 0); i++) {
        uint32_t from = (dev_lane() - i * sweep) * (a.group / LANE) % DEV_WARP;
        float scale = __shfl_sync(DEV_ALL, l.scale[i], from);

        mine = dev_lane() / sweep == (uint32_t)i ? scale : mine;
    }
    return mine;
}

/* More scales than lanes: groups of less than 64 channels. */
template <int IN>
static __device__ __forceinline__ void
store_many_scales(const struct ll_args &a, const struct part &p, const struct load<IN> &l,
                  float *to)
{
    uint32_t lanes = a.group / load<IN>::width::LANE, groups = p.channels / a.group;
    size_t at = (size_t)p.token * (a.hidden / a.group) + p.first / a.group;

#pragma unroll
    for (int i = 0; i < load<IN>::width::UNIT_SWEEPS; i++) {
        uint32_t g = (i * DEV_WARP + dev_lane()) / lanes;

        if (dev_lane() % lanes == 0 && g < groups)
            to[g] = IN == LL_IN_FP8 ? __ldg(a.x_scale + at + g) : l.scale[i];
    }
}

/* Scales that are stored together, one a lane: of a part, or of it and the one before. */
struct scales {
    float mine;
    uint32_t first, n; /* group of lane 0; how many */
};

/* The part into a message; `message` may be at another rank. */
template <int IN>
static __device__ __forceinline__ void
store_part(const struct ll_args &a, const struct part &p, const struct load<IN> &l,
           const struct scales &scales, char *message)
{
    enum { SWEEP = load<IN>::width::SWEEP, LANE = load<IN>::width::LANE };
    char *token = message + p.first * (IN == LL_IN_PLAIN ? 2 : 1);

#pragma unroll
    for (int i = 0; i < load<IN>::width::UNIT_SWEEPS; i++)
        if (i * SWEEP + dev_lane() * LANE < p.channels)
            dev_store16(token + (i * DEV_WARP + dev_lane()) * 16, l.v[i]);
    if (IN == LL_IN_PLAIN)
        return;
    float *to = reinterpret_cast<float *>(message + a.scales_at);

    if (p.channels / a.group > DEV_WARP)
        store_many_scales<IN>(a, p, l, to + p.first / a.group);
    else if (dev_lane() < scales.n)
        to[scales.first + dev_lane()] = scales.mine;
}

/* Where a warp sends whole rows, the scales of two parts leave in one packet, with the
 * second. */
static __device__ __forceinline__ struct scales
join_scales(const struct ll_args &a, const struct part &p, float mine, float *carried)
{
    uint32_t each = a.unit_channels / a.group, n = p.channels / a.group;
    bool joins = a.row_signals == 1 && 2 * each <= DEV_WARP;

    if (joins && p.unit % 2 == 0 && p.unit + 1 < a.units) {
        *carried = mine;
        return {0.0f, 0, 0};
    }
    if (joins && p.unit % 2 == 1) {
        float second = __shfl_sync(DEV_ALL, mine, dev_lane() - each & (DEV_WARP - 1));

        return {dev_lane() < each ? *carried : second, p.first / a.group - each, each + n};
    }
    return {mine, p.first / a.group, n};
}

/* choice: of the token, that the row is for. */
static __device__ __forceinline__ void store_meta(const struct ll_args &a, uint32_t source,
                                                  uint32_t token, uint64_t epoch,
                                                  uint32_t choice, char *message)
{
    dev_store16(message + a.meta_at, make_uint4(source, token, (uint32_t)epoch, choice));
}

#endif
