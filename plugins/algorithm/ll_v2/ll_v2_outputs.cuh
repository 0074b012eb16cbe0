/* Combine on GPUs: transfer of expert outputs from the place where experts wrote them to sums, or
 * to the row's rank.
 *
 * Pulled: a warp takes a share of a row, and loads a batch of rows before it adds the first one.
 * The order of additions is fixed, independent of the order of arrival. FROM: the type of the
 * loaded rows; F16: the type of expert outputs.
 *
 * Pushed: a warp takes the expert outputs of a row, adds them up and quantises the sum if required,
 * and stores it as packets at the row's rank. In FP8, a lane quantises a chunk of 16 channels and
 * passes it to the lane that stores it. */
#ifndef LL_V2_OUTPUTS_CUH
#define LL_V2_OUTPUTS_CUH

#include "../../common/algo_cuda.cuh"
#include "ll_v2_device.h"

/* A lane stores 16 bytes at a time, 8 channels in bf16 or 16 in FP8: smaller packets halve the rate
 * of links. */
template <bool FP8> struct share_width {
    enum {
        LANE = FP8 ? 16 : 8, /* channels */
        SWEEP = LANE * EPA_DEV_WARP,
        HALVES = LANE / 8, /* 16 bytes of bf16 each */
        SHARE_CHANNELS = FP8 ? LL_CODE_PACKETS * LL_MOST_CHUNKS * LL_CHUNK : LL_SHARE_CHANNELS,
        SHARE_SWEEPS = (SHARE_CHANNELS + SWEEP - 1) / SWEEP
    };
};

/* The choices of a token, and the bit mask of ranks with expert outputs for it. */
struct outputs {
    struct dev_choices of;
    uint32_t ranks;
    uint32_t row; /* pulled with row_order: row of the token at the rank of this lane */
};

EPA_DEV struct dev_part share_at(const struct ll_args &a, uint32_t share)
{
    return dev_part_at(0, share, a.share_channels, a.c.hidden);
}

/* FINDS: computes the row of the token at each rank. */
template <bool FINDS> EPA_DEV struct outputs outputs_of(const struct ll_args &a, uint32_t token)
{
    struct outputs of = {dev_choices_of(a.c, token), 0, 0};

    if (FINDS && epa_dev_lane() < a.c.v.size) {
        size_t window = (size_t)epa_dev_lane() * a.windows + token / LL_WINDOW_TOKENS;
        uint2 sent = __ldcg(reinterpret_cast<const uint2 *>(a.order.sent) + window);

        of.row = __ldcg(a.order.base + epa_dev_lane()) + sent.y +
                 __popc(sent.x & ((1u << token % LL_WINDOW_TOKENS) - 1));
    }
    of.ranks = __reduce_or_sync(EPA_DEV_ALL,
                                of.of.expert < a.c.experts ? 1u << of.of.expert / a.c.local : 0u);
    return of;
}

/* ---- expert outputs computed from received rows ---- */

/* Loads the scale of a channel of a row, as bits. */
EPA_DEV uint32_t load_scale(const struct ll_args &a, const char *row, uint32_t channel)
{
    uint32_t group = channel >> (31 - __clz(a.c.group)); /* the group size is a power of 2 */

    return __ldcg(reinterpret_cast<const uint32_t *>(row + a.scales_at) + group);
}

EPA_DEV uint4 load_codes(const struct ll_args &a, const char *row, uint32_t channel)
{
    uint2 codes = __ldcg(reinterpret_cast<const uint2 *>(row + channel));

    return make_uint4(codes.x, codes.y, load_scale(a, row, channel), 0);
}

/* Computes an expert's output for eight channels: the product with the expert's factor, rounded to
 * the type of outputs. */
template <int FROM, bool F16> EPA_DEV void make_output(float factor, float *value)
{
    if constexpr (FROM != LL_FROM_Y) {
#pragma unroll
        for (int j = 0; j < 8; j++)
            value[j] = __fmul_rn(value[j], factor);
        epa_dev_unpack<F16>(epa_dev_pack<F16>(value), value);
    }
}

template <int FROM, bool F16> EPA_DEV void unpack_output(uint4 raw, float factor, float *value)
{
    if (FROM == LL_FROM_CODES) {
        epa_dev_unpack_fp8(raw.x, __uint_as_float(raw.z), value);
        epa_dev_unpack_fp8(raw.y, __uint_as_float(raw.z), value + 4);
    } else {
        epa_dev_unpack<F16>(raw, value);
    }
    make_output<FROM, F16>(factor, value);
}

/* ---- sums ---- */

/* A lane's part of a row and of the sum, in sweeps of 16 bytes in flight; FP8: their type. Rows of
 * experts always have 16 bits per channel, so a sweep in FP8 has two halves of 16 bytes. */
template <bool FP8> struct sweeps {
    uint4 v[share_width<FP8>::SHARE_SWEEPS][share_width<FP8>::HALVES];
};

template <bool FP8> struct sum {
    float v[share_width<FP8>::SHARE_SWEEPS][share_width<FP8>::LANE];
};

template <bool FP8> EPA_DEV bool takes(const struct dev_part &p, int sweep)
{
    return sweep * share_width<FP8>::SWEEP + epa_dev_lane() * share_width<FP8>::LANE < p.channels;
}

/* Returns the first channel of this lane in a sweep. */
template <bool FP8> EPA_DEV uint32_t channel(const struct dev_part &p, int sweep)
{
    return p.first + sweep * share_width<FP8>::SWEEP + epa_dev_lane() * share_width<FP8>::LANE;
}

/* Loads a lane's part of a row: 16 bytes, or eight FP8 codes and their scale. */
template <int FROM, bool FP8>
EPA_DEV void load_row(const struct ll_args &a, const struct dev_part &p, const char *row,
                      struct sweeps<FP8> *to)
{
#pragma unroll
    for (int i = 0; i < share_width<FP8>::SHARE_SWEEPS; i++)
#pragma unroll
        for (int h = 0; h < share_width<FP8>::HALVES; h++) {
            to->v[i][h] = make_uint4(0, 0, 0, 0);
            if (takes<FP8>(p, i) && FROM == LL_FROM_CODES)
                to->v[i][h] = load_codes(a, row, channel<FP8>(p, i) + 8 * h);
            else if (takes<FP8>(p, i))
                to->v[i][h] = epa_dev_load16(row + 2 * channel<FP8>(p, i) + 16 * h);
        }
}

/* sum = fma(weight, output, sum) */
template <int FROM, bool F16, bool FP8>
EPA_DEV void add(const struct sweeps<FP8> &row, float factor, float weight, struct sum<FP8> *s)
{
#pragma unroll
    for (int i = 0; i < share_width<FP8>::SHARE_SWEEPS; i++)
#pragma unroll
        for (int h = 0; h < share_width<FP8>::HALVES; h++) {
            float value[8];

            unpack_output<FROM, F16>(row.v[i][h], factor, value);
            dev_add8(value, weight, s->v[i] + 8 * h);
        }
}

template <bool F16, bool FP8>
EPA_DEV void store_out(const struct ll_args &a, const struct dev_part &p, uint32_t token,
                       const struct sum<FP8> &s)
{
    char *to = static_cast<char *>(a.c.out) + 2 * (size_t)token * a.c.hidden;

#pragma unroll
    for (int i = 0; i < share_width<FP8>::SHARE_SWEEPS; i++)
#pragma unroll
        for (int h = 0; h < share_width<FP8>::HALVES; h++)
            if (takes<FP8>(p, i))
                epa_dev_store16(to + 2 * channel<FP8>(p, i) + 16 * h,
                                epa_dev_pack<F16>(s.v[i] + 8 * h));
}

/* Term of a sum, per lane: a row, the factor of its expert, and its weight. */
struct term {
    const char *from;
    float factor, by;
};

/* Finds the expert outputs of a token to pull, or the rows from which to compute them; *out: the
 * term of this lane. Returns the bit mask of lanes with a term, whose order is the order of
 * additions. */
template <int MODE, int FROM>
EPA_DEV uint32_t list_outputs(const struct ll_args &a, uint32_t token, const struct outputs &of,
                              struct term *out)
{
    uint32_t lane = epa_dev_lane(), place = ~0u;

    *out = {NULL, 1.0f, MODE == LL_DIRECT ? of.of.weight : 1.0f};
    if (MODE == LL_DIRECT && of.of.expert < a.c.experts)
        place = __ldcg(a.place + (size_t)token * a.c.topk + lane);
    if (MODE == LL_DIRECT && place != ~0u)
        out->from = a.c.v.peer_heap[of.of.expert / a.c.local] + a.y_space +
                    (uint64_t)place * a.output_bytes;
    if (FROM != LL_FROM_Y && place != ~0u)
        out->factor = __ldg(a.c.factor + of.of.expert);
    if (MODE != LL_DIRECT && lane < a.c.v.size)
        out->from =
            a.c.v.peer_heap[lane] + a.y_space +
            (uint64_t)(MODE == LL_ORDERED ? of.row : ll_slot(a.c.max_tokens, a.c.v.rank, token)) *
                a.output_bytes;
    return MODE == LL_DIRECT ? __ballot_sync(EPA_DEV_ALL, place != ~0u) : of.ranks;
}

/* Returns the index of the bit with `before` set bits below it; undefined if none. Called by one
 * warp. */
EPA_DEV uint32_t bit_at(uint32_t bits, uint32_t before)
{
    uint32_t lower = __popc(bits & ((1u << epa_dev_lane()) - 1));

    return (uint32_t)__ffs(
               __ballot_sync(EPA_DEV_ALL, (bits >> epa_dev_lane() & 1) != 0 && lower == before)) -
           1u;
}

enum { BATCH = 4 }; /* number of rows that a warp loads at a time */

/* Rows of a batch, with their factors and weights. */
template <bool FP8> struct batch {
    struct sweeps<FP8> row[BATCH];
    float factor[BATCH], weight[BATCH];
};

/* Adds the rows of a batch in order; row[TURN] is the first. */
template <int FROM, bool F16, bool FP8, int TURN>
EPA_DEV void add_batch(const struct batch<FP8> &b, uint32_t n, struct sum<FP8> *s)
{
#pragma unroll
    for (int i = 0; i < BATCH; i++)
        if (i < (int)n)
            add<FROM, F16, FP8>(b.row[(i + TURN) % BATCH], b.factor[(i + TURN) % BATCH],
                                b.weight[(i + TURN) % BATCH], s);
}

/* Adds up a token's share. All rows of a batch are loaded before the first is added. Warps begin
 * with different rows (`turn`), since all would otherwise load from the same rank first. WEIGHED:
 * use the weights of terms; else 1. */
template <int FROM, bool F16, bool FP8, bool WEIGHED>
EPA_DEV struct sum<FP8> add_up(const struct ll_args &a, const struct dev_part &p, uint32_t list,
                               const struct term &t, uint32_t turn) {
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

            b.weight[i] = WEIGHED ? __shfl_sync(EPA_DEV_ALL, t.by, lane) : 1.0f;
            b.factor[i] = FROM != LL_FROM_Y ? __shfl_sync(EPA_DEV_ALL, t.factor, lane) : 1.0f;
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

/* ---- expert outputs pushed in 16 bits: a lane has the channels of its words ---- */

/* Number of groups of four packets in a share, and of channels of a group. */
enum {
    PUSH_GROUPS = 4,
    SHORT_CHANNELS = EPA_DEV_PACKETS * EPA_PACKET_WORDS * DEV_CHANNELS
};

/* Loads the codes of a word's channels, and their scale. */
EPA_DEV uint64_t load_code_word(const struct ll_args &a, const char *row, uint32_t channel)
{
    uint32_t codes = __ldcg(reinterpret_cast<const uint32_t *>(row + channel));

    return (uint64_t)load_scale(a, row, channel) << 32 | codes;
}

/* Loads this lane's words of a share of an FP8 row. */
EPA_DEV void load_code_words(const struct ll_args &a, const struct dev_part &p, const char *row,
                             struct epa_dev_words *v)
{
    uint32_t n = p.channels / DEV_CHANNELS;

#pragma unroll
    for (int g = 0; g < PUSH_GROUPS; g++) {
        uint32_t at = epa_dev_word_at(g), channel = p.first + at * DEV_CHANNELS;

        v[g].w[0] = v[g].w[1] = 0;
        if (at < n)
            v[g].w[0] = load_code_word(a, row, channel);
        if (!epa_dev_ends_packet() && at + 1 < n)
            v[g].w[1] = load_code_word(a, row, channel + DEV_CHANNELS);
    }
}

/* Loads this lane's words of a share of a row in 16 bits. */
EPA_DEV void load_words(const struct dev_part &p, const char *row, struct epa_dev_words *v)
{
    dev_words_load<PUSH_GROUPS>(row + 2 * p.first, p.channels / DEV_CHANNELS, v);
}

struct word_sum {
    float v[PUSH_GROUPS][2 * DEV_CHANNELS];
};

template <int FROM, bool F16>
EPA_DEV void unpack_words(struct epa_dev_words v, float factor, float *value)
{
    if (FROM == LL_FROM_CODES) {
        epa_dev_unpack_fp8((uint32_t)v.w[0], __uint_as_float((uint32_t)(v.w[0] >> 32)), value);
        epa_dev_unpack_fp8((uint32_t)v.w[1], __uint_as_float((uint32_t)(v.w[1] >> 32)), value + 4);
    } else {
        dev_unpack_words<F16>(v, value);
    }
    make_output<FROM, F16>(factor, value);
}

template <int FROM, bool F16>
EPA_DEV void add_words(const struct epa_dev_words *v, float factor, float weight,
                       struct word_sum *s)
{
#pragma unroll
    for (int g = 0; g < PUSH_GROUPS; g++) {
        float value[8];

        unpack_words<FROM, F16>(v[g], factor, value);
        dev_add8(value, weight, s->v[g]);
    }
}

template <bool F16> EPA_DEV void round_words(const struct word_sum &s, struct epa_dev_words *v)
{
#pragma unroll
    for (int g = 0; g < PUSH_GROUPS; g++)
        v[g] = dev_pack_words<F16>(s.v[g]);
}

/* Few tokens: adds up the rows of n lanes in shares of one group of packets, and loads eight at a
 * time. */
template <bool F16>
EPA_DEV struct word_sum add_short_rows(const struct dev_part &p, uint32_t n, const char *from,
                                       float by)
{
    enum { ROWS = 8 };
    struct word_sum s = {};

    for (uint32_t i = 0; i < n; i += ROWS) {
        struct epa_dev_words v[ROWS];

#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++) {
            const char *row = dev_from_lane(from, i + r);

            if (i + r < n)
                dev_words_load<1>(row + 2 * p.first, p.channels / DEV_CHANNELS, &v[r]);
        }
#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++) {
            float weight = __shfl_sync(EPA_DEV_ALL, by, i + r), value[8];

            if (i + r >= n)
                continue;
            dev_unpack_words<F16>(v[r], value);
            dev_add8(value, weight, s.v[0]);
        }
    }
    return s;
}

/* Adds up the rows of n lanes, and loads two at a time. */
template <bool F16>
EPA_DEV struct word_sum add_word_rows(const struct dev_part &p, uint32_t n, const char *from,
                                      float by)
{
    struct word_sum s = {};

    if (p.channels <= SHORT_CHANNELS)
        return add_short_rows<F16>(p, n, from, by);
    for (uint32_t i = 0; i < n; i += 2) {
        struct epa_dev_words one[PUSH_GROUPS], two[PUSH_GROUPS];
        float weight = __shfl_sync(EPA_DEV_ALL, by, i), other = __shfl_sync(EPA_DEV_ALL, by, i + 1);
        const char *second = dev_from_lane(from, i + 1);

        load_words(p, dev_from_lane(from, i), one);
        if (i + 1 < n)
            load_words(p, second, two);
        add_words<LL_FROM_Y, F16>(one, 1.0f, weight, &s);
        if (i + 1 < n)
            add_words<LL_FROM_Y, F16>(two, 1.0f, other, &s);
    }
    return s;
}

EPA_DEV void push_words(const struct dev_part &p, const struct epa_dev_words *v, char *to,
                        uint64_t epoch)
{
    epa_dev_packets_store<PUSH_GROUPS>(to, epa_packets_of(2 * p.channels), v, epoch);
}

/* ---- expert outputs pushed in FP8: quantised like a token, and packed in lines ---- */

template <bool F16, bool FP8> EPA_DEV struct sweeps<FP8> rounded(const struct sum<FP8> &s) {
    struct sweeps<FP8> row;

#pragma unroll
    for (int i = 0; i < share_width<FP8>::SHARE_SWEEPS; i++)
#pragma unroll
        for (int h = 0; h < share_width<FP8>::HALVES; h++)
            row.v[i][h] = epa_dev_pack<F16>(s.v[i] + 8 * h);
    return row;
}

/* Returns a value of chunk `chunk` from the lane that has it. Lanes have chunks of the first
 * sweep in `first` and of the second sweep in `second`. The first four lines need only the first
 * sweep. */
template <int GROUP>
EPA_DEV uint32_t from_chunk(uint32_t first, uint32_t second, uint32_t chunk)
{
    uint32_t low = __shfl_sync(EPA_DEV_ALL, first, chunk % EPA_DEV_WARP);

    if (GROUP == 0)
        return low;
    uint32_t high = __shfl_sync(EPA_DEV_ALL, second, chunk % EPA_DEV_WARP);

    return chunk < EPA_DEV_WARP ? low : high;
}

/* Returns this lane's words of the GROUP-th four lines, for `n` chunks. */
template <int GROUP>
EPA_DEV struct epa_dev_words words_of_codes(const struct ll_args &a, uint32_t n, const uint4 *q,
                                            const uint32_t *scale)
{
    uint32_t line = GROUP * EPA_DEV_PACKETS + epa_dev_lane() / 8, slot = epa_dev_lane() % 8;
    uint32_t chunks = ll_chunks_of(a.c.group), at = line * chunks + slot, s[4];
    uint32_t first = chunks < LL_MOST_CHUNKS && slot == 7 ? 4 : 0;
    uint4 codes = {from_chunk<GROUP>(q[0].x, q[1].x, at), from_chunk<GROUP>(q[0].y, q[1].y, at),
                   from_chunk<GROUP>(q[0].z, q[1].z, at), from_chunk<GROUP>(q[0].w, q[1].w, at)};

    for (uint32_t i = 0; i < 4; i++) {
        s[i] = 0;
        if (i < 2 || chunks < LL_MOST_CHUNKS)
            s[i] = from_chunk<GROUP>(scale[0], scale[1],
                                     ll_scale_chunk(a.c.group, line, first + i, n));
    }
    if (slot >= chunks)
        codes = make_uint4(s[0], s[1], s[2], s[3]);
    return {{(uint64_t)codes.y << 32 | codes.x, (uint64_t)codes.w << 32 | codes.z}};
}

template <bool F16>
EPA_DEV void push_codes(const struct ll_args &a, const struct dev_part &p,
                        const struct sweeps<true> &row, char *to, uint64_t epoch)
{
    enum { SWEEPS = share_width<true>::SHARE_SWEEPS };
    uint32_t n = p.channels / LL_CHUNK, packets = ll_code_packets(p.channels, a.c.group);
    uint32_t scale[SWEEPS];
    uint4 q[SWEEPS];

#pragma unroll
    for (int i = 0; i < SWEEPS; i++) {
        float by;

        q[i] = epa_dev_quantise16<F16>(row.v[i][0], row.v[i][1], a.c.group / LL_CHUNK, &by);
        scale[i] = __float_as_uint(by);
    }
    struct epa_dev_words first = words_of_codes<0>(a, n, q, scale);

    if (epa_dev_has_packet(0, packets))
        epa_dev_packet_store(to, 0, first, epoch);
    if (packets <= EPA_DEV_PACKETS)
        return;
    struct epa_dev_words second = words_of_codes<1>(a, n, q, scale);

    if (epa_dev_has_packet(1, packets))
        epa_dev_packet_store(to, 1, second, epoch);
}

/* ---- pushing ---- */

/* Returns the offset of a share of an expert output at the token's rank. */
EPA_DEV uint64_t output_at(const struct ll_args &a, uint32_t token, uint32_t place, uint32_t share)
{
    return a.outputs + ((uint64_t)token * a.places + place) * a.sent_bytes +
           (uint64_t)share * a.share_bytes;
}

/* Sends a share of a row to the row's rank: the sum of the outputs at `from` of n lanes, in the
 * order of lanes. Called by one warp. */
template <bool F16, bool FP8>
EPA_DEV void push_rows(const struct ll_args &a, uint32_t share, uint32_t n, const char *from,
                       float by, char *to, uint64_t epoch)
{
    struct dev_part p = share_at(a, share);

    if constexpr (FP8) {
        struct sweeps<true> row;

        if (n == 1 && by == 1.0f)
            load_row<LL_FROM_Y, true>(a, p, dev_from_lane(from, 0), &row);
        else
            row = rounded<F16, true>(add_up<LL_FROM_Y, F16, true, true>(
                a, p, (uint32_t)((1ull << n) - 1), {from, 1.0f, by}, 0));
        push_codes<F16>(a, p, row, to, epoch);
    } else {
        struct epa_dev_words v[PUSH_GROUPS];

        if (n == 1 && by == 1.0f)
            load_words(p, dev_from_lane(from, 0), v);
        else
            round_words<F16>(add_word_rows<F16>(p, n, from, by), v);
        push_words(p, v, to, epoch);
    }
}

/* fuse_expert: returns the factor of the expert of a share, or of the i-th entry in use. */
EPA_DEV float factor_of(const struct ll_args &a, size_t i)
{
    return __ldg(a.c.factor + a.c.v.rank * a.c.local + __ldcg(a.chosen + i));
}

/* fuse_expert: computes a share of an expert's output from a received row, and sends it to the
 * row's rank. Called by one warp. */
template <int FROM, bool F16>
EPA_DEV void push_output(const struct ll_args &a, uint32_t share, const char *row, float factor,
                         char *to, uint64_t epoch)
{
    struct dev_part p = share_at(a, share);
    struct epa_dev_words v[PUSH_GROUPS];
    struct word_sum s;

    if (FROM == LL_FROM_CODES)
        load_code_words(a, p, row, v);
    else
        load_words(p, row, v);
#pragma unroll
    for (int g = 0; g < PUSH_GROUPS; g++)
        unpack_words<FROM, F16>(v[g], factor, s.v[g]);
    round_words<F16>(s, v);
    push_words(p, v, to, epoch);
}

/* fuse_expert: does the same for the sum of the outputs of n local experts; a lane has the factor
 * and weight of an expert. */
template <int FROM, bool F16>
EPA_DEV void push_sum(const struct ll_args &a, uint32_t share, uint32_t n, const char *row,
                      float factor, float by, char *to, uint64_t epoch)
{
    struct dev_part p = share_at(a, share);
    struct epa_dev_words v[PUSH_GROUPS];
    struct word_sum s = {};

    if (FROM == LL_FROM_CODES)
        load_code_words(a, p, row, v);
    else
        load_words(p, row, v);
    for (uint32_t i = 0; i < n; i++)
        add_words<FROM, F16>(v, __shfl_sync(EPA_DEV_ALL, factor, i),
                             __shfl_sync(EPA_DEV_ALL, by, i), &s);
    round_words<F16>(s, v);
    push_words(p, v, to, epoch);
}

/* Sends a share of each output of a token's local experts to the row's rank. Lane i has the i-th
 * output, of the choice of the i-th bit of `wanted`. Called by one warp. */
template <bool F16, bool FP8>
EPA_DEV void push_choices(const struct ll_args &a, uint32_t source, uint32_t token, uint32_t share,
                          uint32_t wanted, const char *from, uint64_t epoch)
{
    struct dev_part p = share_at(a, share);
    char *peer = a.c.v.peer_heap[source];

    for (uint32_t i = 0; wanted != 0; i++) {
        const char *row = dev_from_lane(from, i);
        char *to = peer + output_at(a, token, __ffs(wanted) - 1, share);

        wanted &= wanted - 1;
        if constexpr (FP8) {
            push_rows<F16, true>(a, share, 1, row, 1.0f, to, epoch);
        } else {
            struct epa_dev_words one[PUSH_GROUPS], two[PUSH_GROUPS];
            const char *second = dev_from_lane(from, i + 1);

            load_words(p, row, one);
            if (wanted != 0) /* two rows in flight */
                load_words(p, second, two);
            push_words(p, one, to, epoch);
            if (wanted == 0)
                return;
            push_words(p, two, peer + output_at(a, token, __ffs(wanted) - 1, share), epoch);
            wanted &= wanted - 1;
            i++;
        }
    }
}

/* Sends a share of the outputs of a received token's local experts. */
template <int MODE, int FROM, bool F16, bool FP8>
EPA_DEV void push_slot(const struct ll_args &a, uint32_t source, uint32_t token, uint32_t share,
                       uint64_t epoch)
{
    uint32_t slot = ll_slot(a.c.max_tokens, source, token);
    constexpr bool SHARES = MODE == LL_DEDUP || MODE == LL_BY_CHOICE;
    uint32_t wanted = __ldcg(a.wanted + slot), n = SHARES ? __popc(wanted) : 1;
    uint32_t row = MODE == LL_ORDERED ? __ldcg(a.order.row + slot) : slot;
    const char *y = static_cast<const char *>(a.c.y), *from = y + (uint64_t)row * a.output_bytes;
    char *to = a.c.v.peer_heap[source] + output_at(a, token, a.c.v.rank, share);
    float by = 1.0f, factor = 1.0f;
    size_t at = (size_t)slot * a.c.topk + epa_dev_lane();
    uint2 s = {};

    /* Does not wait for `wanted` first. */
    if (SHARES && epa_dev_lane() < a.c.topk)
        s = __ldcg(reinterpret_cast<const uint2 *>(a.share) + at);
    if constexpr (MODE == LL_BY_RANK && FROM == LL_FROM_Y && !FP8) {
        struct epa_dev_words v[PUSH_GROUPS];
        struct dev_part p = share_at(a, share);

        if (a.tries != 0 || wanted != 0) /* few tokens: does not wait for `wanted` either */
            load_words(p, from, v);
        if (wanted != 0)
            push_words(p, v, to, epoch);
        return;
    }
    if (wanted == 0)
        return;
    if (SHARES && epa_dev_lane() < n) {
        from = y + (uint64_t)s.x * a.output_bytes;
        by = __uint_as_float(s.y);
        if (FROM != LL_FROM_Y)
            factor = factor_of(a, at);
    }
    if constexpr (MODE == LL_BY_CHOICE) {
        push_choices<F16, FP8>(a, source, token, share, wanted, from, epoch);
        return;
    }
    if constexpr (FROM != LL_FROM_Y) { /* all experts have the same row */
        push_sum<FROM, F16>(a, share, n, dev_from_lane(from, 0), factor, by, to, epoch);
        return;
    }
    /* A single expert output is weighted, too: the sum includes the rounding of the product. */
    if (MODE == LL_DEDUP)
        by = __shfl_sync(EPA_DEV_ALL, by, epa_dev_lane() < n ? epa_dev_lane() : 0);
    push_rows<F16, FP8>(a, share, n, from, by, to, epoch);
}

/* Sends a share of one expert's output for the i-th row. */
template <int FROM, bool F16, bool FP8>
EPA_DEV void push_entry(const struct ll_args &a, uint32_t i, uint32_t share, uint64_t epoch)
{
    uint32_t entry = __ldcg(a.recv_row + i);
    uint4 meta = epa_dev_load16(a.c.v.peer_heap[a.c.v.rank] + a.recv +
                                (uint64_t)entry * a.message_bytes + a.meta_at);
    char *to = a.c.v.peer_heap[meta.x] + output_at(a, meta.y, meta.w, share);
    const char *from = static_cast<const char *>(a.c.y) + (uint64_t)entry * a.output_bytes;

    if constexpr (FROM != LL_FROM_Y)
        push_output<FROM, F16>(a, share, from, factor_of(a, i), to, epoch);
    else
        push_rows<F16, FP8>(a, share, 1, from, 1.0f, to, epoch);
}

#endif
