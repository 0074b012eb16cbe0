/* Combine where expert outputs are pushed: a warp takes what experts answered to a row, adds it up
 * and quantises it where it has to, and stores it as lines at the row's rank.
 *
 * In 16 bits each lane has the channels of its words of the lines from beginning to end; in
 * FP8 it quantises a chunk of 16 and gives it to the lane that stores it. */
#ifndef LL_V2_PUSH_CUH
#define LL_V2_PUSH_CUH

#include "ll_v2_device.cuh"
#include "ll_v2_pull.cuh"

/* ---- expert outputs that are pushed, in 16 bits: each lane has the channels of its words ---- */

enum { PUSH_GROUPS = 4, CHANNELS = 4 }; /* fours of lines of a share; channels of a word */

static __device__ __forceinline__ bool has_word(const struct part &p, uint32_t word)
{
    return word * CHANNELS < p.channels;
}

/* The codes of a word's channels, and their scale. */
static __device__ __forceinline__ uint64_t load_code_word(const struct ll_args &a,
                                                          const char *row, uint32_t channel)
{
    uint32_t codes = __ldcg(reinterpret_cast<const uint32_t *>(row + channel));
    uint32_t group = channel >> (31 - __clz(a.group)); /* a power of 2 */
    uint32_t scale = __ldcg(reinterpret_cast<const uint32_t *>(row + a.scales_at) + group);

    return (uint64_t)scale << 32 | codes;
}

/* The same of codes. */
static __device__ __forceinline__ void load_code_words(const struct ll_args &a,
                                                       const struct part &p,
                                                       const char *row, struct dev_words *v)
{
#pragma unroll
    for (int g = 0; g < PUSH_GROUPS; g++) {
        uint32_t at = dev_word_at(g), channel = p.first + at * CHANNELS;

        v[g].w[0] = v[g].w[1] = 0;
        if (has_word(p, at))
            v[g].w[0] = load_code_word(a, row, channel);
        if (!dev_ends_packet() && has_word(p, at + 1))
            v[g].w[1] = load_code_word(a, row, channel + CHANNELS);
    }
}

/* This lane's words of a row of expert outputs: 0 where it has none. */
static __device__ __forceinline__ void load_words(const struct part &p, const char *row,
                                                  struct dev_words *v)
{
    const char *from = row + 2 * p.first;

#pragma unroll
    for (int g = 0; g < PUSH_GROUPS; g++) {
        uint32_t at = dev_word_at(g);

        v[g].w[0] = v[g].w[1] = 0;
        if (has_word(p, at))
            v[g].w[0] = __ldcg(reinterpret_cast<const unsigned long long *>(from + 8 * at));
        if (!dev_ends_packet() && has_word(p, at + 1))
            v[g].w[1] =
                __ldcg(reinterpret_cast<const unsigned long long *>(from + 8 * at + 8));
    }
}

struct word_sum {
    float v[PUSH_GROUPS][2 * CHANNELS];
};

template <int FROM, bool F16>
static __device__ __forceinline__ void unpack_words(struct dev_words v, float factor,
                                                    float *value)
{
    if (FROM == LL_FROM_CODES) {
        dev_unpack_fp8((uint32_t)v.w[0], __uint_as_float((uint32_t)(v.w[0] >> 32)), value);
        dev_unpack_fp8((uint32_t)v.w[1], __uint_as_float((uint32_t)(v.w[1] >> 32)),
                       value + 4);
    } else {
        dev_unpack<F16>(make_uint4((uint32_t)v.w[0], (uint32_t)(v.w[0] >> 32),
                                   (uint32_t)v.w[1], (uint32_t)(v.w[1] >> 32)),
                        value);
    }
    make_output<FROM, F16>(factor, value);
}

template <int FROM, bool F16>
static __device__ __forceinline__ void add_words(const struct dev_words *v, float factor,
                                                 float weight, struct word_sum *s)
{
#pragma unroll
    for (int g = 0; g < PUSH_GROUPS; g++) {
        float value[8];

        unpack_words<FROM, F16>(v[g], factor, value);
        add8(value, weight, s->v[g]);
    }
}

template <bool F16>
static __device__ __forceinline__ void round_words(const struct word_sum &s,
                                                   struct dev_words *v)
{
#pragma unroll
    for (int g = 0; g < PUSH_GROUPS; g++) {
        uint4 packed = dev_pack<F16>(s.v[g]);

        v[g].w[0] = (uint64_t)packed.y << 32 | packed.x;
        v[g].w[1] = (uint64_t)packed.w << 32 | packed.z;
    }
}

/* The rows of n lanes, two on their way at a time. */
template <bool F16>
static __device__ __forceinline__ struct word_sum
add_word_rows(const struct part &p, uint32_t n, const char *from, float by)
{
    struct word_sum s = {};

    for (uint32_t i = 0; i < n; i += 2) {
        struct dev_words one[PUSH_GROUPS], two[PUSH_GROUPS];
        float weight = __shfl_sync(DEV_ALL, by, i), other = __shfl_sync(DEV_ALL, by, i + 1);
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

static __device__ __forceinline__ void
push_words(const struct part &p, const struct dev_words *v, char *to, uint64_t epoch)
{
    uint32_t packets = dev_packets_of(2 * p.channels);

#pragma unroll
    for (int g = 0; g < PUSH_GROUPS; g++)
        if (dev_has_packet(g, packets))
            dev_packet128_store(to, g, v[g], epoch);
}

/* ---- expert outputs that are pushed, in FP8: quantised as a token is, and put into lines ---- */

template <bool F16, bool FP8>
static __device__ __forceinline__ struct sweeps<FP8> rounded(const struct sum<FP8> &s) {
    struct sweeps<FP8> row;

#pragma unroll
    for (int i = 0; i < ll_width<FP8>::SHARE_SWEEPS; i++)
#pragma unroll
        for (int h = 0; h < ll_width<FP8>::HALVES; h++)
            row.v[i][h] = dev_pack<F16>(s.v[i] + 8 * h);
    return row;
}

/* Of chunk `chunk`: lanes have those of the first sweep, then of the second, in which none
 * of the first four lines' are. */
template <int GROUP>
static __device__ __forceinline__ uint32_t from_chunk(uint32_t first, uint32_t second,
                                                      uint32_t chunk)
{
    uint32_t low = __shfl_sync(DEV_ALL, first, chunk % DEV_WARP);

    if (GROUP == 0)
        return low;
    uint32_t high = __shfl_sync(DEV_ALL, second, chunk % DEV_WARP);

    return chunk < DEV_WARP ? low : high;
}

/* This lane's words of the GROUP-th four lines, out of `n` chunks. */
template <int GROUP>
static __device__ __forceinline__ struct dev_words
words_of_codes(const struct ll_args &a, uint32_t n, const uint4 *q, const uint32_t *scale)
{
    uint32_t line = GROUP * DEV_PACKETS + dev_lane() / 8, slot = dev_lane() % 8;
    uint32_t chunks = ll_chunks_of(a.group), at = line * chunks + slot, s[4];
    uint32_t first = chunks < LL_MOST_CHUNKS && slot == 7 ? 4 : 0;
    uint4 codes = {
        from_chunk<GROUP>(q[0].x, q[1].x, at), from_chunk<GROUP>(q[0].y, q[1].y, at),
        from_chunk<GROUP>(q[0].z, q[1].z, at), from_chunk<GROUP>(q[0].w, q[1].w, at)};

    for (uint32_t i = 0; i < 4; i++) {
        s[i] = 0;
        if (i < 2 || chunks < LL_MOST_CHUNKS)
            s[i] = from_chunk<GROUP>(scale[0], scale[1],
                                     ll_scale_chunk(a.group, line, first + i, n));
    }
    if (slot >= chunks)
        codes = make_uint4(s[0], s[1], s[2], s[3]);
    return {{(uint64_t)codes.y << 32 | codes.x, (uint64_t)codes.w << 32 | codes.z}};
}

template <bool F16>
static __device__ __forceinline__ void
push_codes(const struct ll_args &a, const struct part &p, const struct sweeps<true> &row,
           char *to, uint64_t epoch)
{
    enum { SWEEPS = ll_width<true>::SHARE_SWEEPS };
    uint32_t n = p.channels / LL_CHUNK, packets = ll_code_packets(p.channels, a.group);
    uint32_t scale[SWEEPS];
    uint4 q[SWEEPS];

#pragma unroll
    for (int i = 0; i < SWEEPS; i++) {
        float by;

        q[i] = dev_quantise16<F16>(row.v[i][0], row.v[i][1], a.group / LL_CHUNK, &by);
        scale[i] = __float_as_uint(by);
    }
    struct dev_words first = words_of_codes<0>(a, n, q, scale);

    if (dev_has_packet(0, packets))
        dev_packet128_store(to, 0, first, epoch);
    if (packets <= DEV_PACKETS)
        return;
    struct dev_words second = words_of_codes<1>(a, n, q, scale);

    if (dev_has_packet(1, packets))
        dev_packet128_store(to, 1, second, epoch);
}

/* ---- pushing ---- */

/* Where a share of an expert output arrives. */
static __device__ __forceinline__ uint64_t output_at(const struct ll_args &a,
                                                     uint32_t token, uint32_t place,
                                                     uint32_t share)
{
    return a.outputs + ((uint64_t)token * a.places + place) * a.sent_bytes +
           (uint64_t)share * a.share_bytes;
}

/* One warp: a part of the answers to a row, added up in the order of `from`'s lanes where
 * there are several, to the row's rank. */
template <bool F16, bool FP8>
static __device__ __forceinline__ void push_rows(const struct ll_args &a, uint32_t share,
                                                 uint32_t n, const char *from, float by,
                                                 char *to, uint64_t epoch)
{
    struct part p = part_at(a, share);

    if constexpr (FP8) {
        struct sweeps<true> row;

        if (n == 1 && by == 1.0f)
            load_row<LL_FROM_Y, true>(a, p, dev_from_lane(from, 0), &row);
        else
            row = rounded<F16, true>(add_up<LL_FROM_Y, F16, true, true>(
                a, p, (uint32_t)((1ull << n) - 1), {from, 1.0f, by}, 0));
        push_codes<F16>(a, p, row, to, epoch);
    } else {
        struct dev_words v[PUSH_GROUPS];

        if (n == 1 && by == 1.0f)
            load_words(p, dev_from_lane(from, 0), v);
        else
            round_words<F16>(add_word_rows<F16>(p, n, from, by), v);
        push_words(p, v, to, epoch);
    }
}

/* Fused: of the expert that a share, or the entry in use of that number, is of. */
static __device__ __forceinline__ float factor_of(const struct ll_args &a, size_t i)
{
    return __ldg(a.factor + a.v.rank * a.local + __ldcg(a.chosen + i));
}

/* Fused, one warp: a part of a row that came, to its rank, as one expert's answer. */
template <int FROM, bool F16>
static __device__ __forceinline__ void push_output(const struct ll_args &a, uint32_t share,
                                                   const char *row, float factor, char *to,
                                                   uint64_t epoch)
{
    struct part p = part_at(a, share);
    struct dev_words v[PUSH_GROUPS];
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

/* The same as the sum of what n experts here answer, a lane's with its factor and weight. */
template <int FROM, bool F16>
static __device__ __forceinline__ void push_sum(const struct ll_args &a, uint32_t share,
                                                uint32_t n, const char *row, float factor,
                                                float by, char *to, uint64_t epoch)
{
    struct part p = part_at(a, share);
    struct dev_words v[PUSH_GROUPS];
    struct word_sum s = {};

    if (FROM == LL_FROM_CODES)
        load_code_words(a, p, row, v);
    else
        load_words(p, row, v);
    for (uint32_t i = 0; i < n; i++)
        add_words<FROM, F16>(v, __shfl_sync(DEV_ALL, factor, i),
                             __shfl_sync(DEV_ALL, by, i), &s);
    round_words<F16>(s, v);
    push_words(p, v, to, epoch);
}

/* A share of what a received token's experts here have answered. */
template <int MODE, int FROM, bool F16, bool FP8>
static __device__ __forceinline__ void push_slot(const struct ll_args &a, uint32_t source,
                                                 uint32_t token, uint32_t share,
                                                 uint64_t epoch)
{
    uint32_t slot = ll_slot(a.max_tokens, source, token);
    uint32_t wanted = __ldcg(a.wanted + slot), n = MODE == LL_DEDUP ? __popc(wanted) : 1;
    const char *y = static_cast<const char *>(a.y),
               *from = y + (uint64_t)slot * a.output_bytes;
    char *to = a.v.peer_heap[source] + output_at(a, token, a.v.rank, share);
    float by = 1.0f, factor = 1.0f;

    if (wanted == 0)
        return;
    if (MODE == LL_DEDUP && dev_lane() < n) {
        size_t at = (size_t)slot * a.topk + dev_lane();
        uint2 s = __ldcg(reinterpret_cast<const uint2 *>(a.share) + at);

        from = y + (uint64_t)s.x * a.output_bytes;
        by = __uint_as_float(s.y);
        if (FROM != LL_FROM_Y)
            factor = factor_of(a, at);
    }
    if constexpr (FROM != LL_FROM_Y) { /* the rows of its experts are the same */
        push_sum<FROM, F16>(a, share, n, dev_from_lane(from, 0), factor, by, to, epoch);
        return;
    }
    /* A lone answer counts with its weight, too: rounding the product is part of the
     * sum. */
    if (MODE == LL_DEDUP)
        by = __shfl_sync(DEV_ALL, by, dev_lane() < n ? dev_lane() : 0);
    push_rows<F16, FP8>(a, share, n, from, by, to, epoch);
}

/* A share of what one expert has answered to the i-th row. */
template <int FROM, bool F16, bool FP8>
static __device__ __forceinline__ void push_entry(const struct ll_args &a, uint32_t i,
                                                  uint32_t share, uint64_t epoch)
{
    uint32_t entry = __ldcg(a.recv_row + i);
    uint4 meta = dev_load16(a.v.peer_heap[a.v.rank] + a.recv +
                            (uint64_t)entry * a.message_bytes + a.meta_at);
    char *to = a.v.peer_heap[meta.x] + output_at(a, meta.y, meta.w, share);
    const char *from = static_cast<const char *>(a.y) + (uint64_t)entry * a.output_bytes;

    if constexpr (FROM != LL_FROM_Y)
        push_output<FROM, F16>(a, share, from, factor_of(a, i), to, epoch);
    else
        push_rows<F16, FP8>(a, share, 1, from, 1.0f, to, epoch);
}

#endif
