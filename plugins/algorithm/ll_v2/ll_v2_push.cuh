/* Combine where answers are pushed: a warp takes what experts answered to a row, adds it up
 * and quantises it where it has to, and stores it as lines at the row's rank.
 *
 * In bf16 each lane has the channels of its words of the lines from beginning to end; in
 * FP8 it quantises a chunk of 16 and gives it to the lane that stores it. */
#ifndef LL_V2_PUSH_CUH
#define LL_V2_PUSH_CUH

#include "ll_v2_lines.cuh"
#include "ll_v2_pull.cuh"

/* ---- answers that are pushed, in bf16: each lane has the channels of its words ---- */

enum { PUSH_GROUPS = 4, CHANNELS = 4 }; /* fours of lines of a share; channels of a word */

static __device__ __forceinline__ bool has_word(const struct part &p, uint32_t word)
{
    return word * CHANNELS < p.channels;
}

/* This lane's words of a row of answers: 0 where it has none. */
static __device__ __forceinline__ void load_words(const struct part &p, const char *row,
                                                  struct ll_words *v)
{
    const char *from = row + 2 * p.first;

#pragma unroll
    for (int g = 0; g < PUSH_GROUPS; g++) {
        uint32_t at = ll_word_at(g);

        v[g].w[0] = v[g].w[1] = 0;
        if (has_word(p, at))
            v[g].w[0] = __ldcg(reinterpret_cast<const unsigned long long *>(from + 8 * at));
        if (!ll_ends_line() && has_word(p, at + 1))
            v[g].w[1] =
                __ldcg(reinterpret_cast<const unsigned long long *>(from + 8 * at + 8));
    }
}

struct word_sum {
    float v[PUSH_GROUPS][2 * CHANNELS];
};

static __device__ __forceinline__ void add_words(const struct ll_words *v, float weight,
                                                 struct word_sum *s)
{
#pragma unroll
    for (int g = 0; g < PUSH_GROUPS; g++) {
        float value[8];

        ll_unpack(make_uint4((uint32_t)v[g].w[0], (uint32_t)(v[g].w[0] >> 32),
                             (uint32_t)v[g].w[1], (uint32_t)(v[g].w[1] >> 32)),
                  value);
        add8(value, weight, s->v[g]);
    }
}

static __device__ __forceinline__ void round_words(const struct word_sum &s,
                                                   struct ll_words *v)
{
#pragma unroll
    for (int g = 0; g < PUSH_GROUPS; g++) {
        uint4 packed = ll_pack(s.v[g]);

        v[g].w[0] = (uint64_t)packed.y << 32 | packed.x;
        v[g].w[1] = (uint64_t)packed.w << 32 | packed.z;
    }
}

/* The rows of `list`'s lanes, two on their way at a time. */
static __device__ __forceinline__ struct word_sum
add_word_rows(const struct part &p, uint32_t n, const char *from, float by)
{
    struct word_sum s = {};

    for (uint32_t i = 0; i < n; i += 2) {
        struct ll_words one[PUSH_GROUPS], two[PUSH_GROUPS];
        float weight = __shfl_sync(LL_ALL, by, i), other = __shfl_sync(LL_ALL, by, i + 1);
        const char *second = from_lane(from, i + 1);

        load_words(p, from_lane(from, i), one);
        if (i + 1 < n)
            load_words(p, second, two);
        add_words(one, weight, &s);
        if (i + 1 < n)
            add_words(two, other, &s);
    }
    return s;
}

static __device__ __forceinline__ void
push_words(const struct part &p, const struct ll_words *v, char *to, uint64_t epoch)
{
    uint32_t lines = ll_lines_of(2 * p.channels);

#pragma unroll
    for (int g = 0; g < PUSH_GROUPS; g++)
        if (ll_has_line(g, lines))
            ll_line_store(to, g, v[g], epoch);
}

/* ---- answers that are pushed, in FP8: quantised as a token is, and put into lines ---- */

template <bool FP8>
static __device__ __forceinline__ struct sweeps<FP8> rounded(const struct sum<FP8> &s) {
    struct sweeps<FP8> row;

#pragma unroll
    for (int i = 0; i < ll_width<FP8>::SHARE_SWEEPS; i++)
#pragma unroll
        for (int h = 0; h < ll_width<FP8>::HALVES; h++)
            row.v[i][h] = ll_pack(s.v[i] + 8 * h);
    return row;
}

/* Of chunk `chunk`: lanes have those of the first sweep, then of the second, in which none
 * of the first four lines' are. */
template <int GROUP>
static __device__ __forceinline__ uint32_t from_chunk(uint32_t first, uint32_t second,
                                                      uint32_t chunk)
{
    uint32_t low = __shfl_sync(LL_ALL, first, chunk % LL_WARP);

    if (GROUP == 0)
        return low;
    uint32_t high = __shfl_sync(LL_ALL, second, chunk % LL_WARP);

    return chunk < LL_WARP ? low : high;
}

/* This lane's words of the GROUP-th four lines, out of `n` chunks. */
template <int GROUP>
static __device__ __forceinline__ struct ll_words
words_of_codes(const struct ll_args &a, uint32_t n, const uint4 *q, const uint32_t *scale)
{
    uint32_t line = GROUP * LL_LINES + ll_lane() / 8, slot = ll_lane() % 8;
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

static __device__ __forceinline__ void push_codes(const struct ll_args &a,
                                                  const struct part &p,
                                                  const struct sweeps<true> &row, char *to,
                                                  uint64_t epoch)
{
    enum { SWEEPS = ll_width<true>::SHARE_SWEEPS };
    uint32_t n = p.channels / LL_CHUNK, lines = ll_code_lines(p.channels, a.group);
    uint32_t scale[SWEEPS];
    uint4 q[SWEEPS];

#pragma unroll
    for (int i = 0; i < SWEEPS; i++) {
        float by;

        q[i] = ll_quantise16(row.v[i][0], row.v[i][1], a.group / LL_CHUNK, &by);
        scale[i] = __float_as_uint(by);
    }
    struct ll_words first = words_of_codes<0>(a, n, q, scale);

    if (ll_has_line(0, lines))
        ll_line_store(to, 0, first, epoch);
    if (lines <= LL_LINES)
        return;
    struct ll_words second = words_of_codes<1>(a, n, q, scale);

    if (ll_has_line(1, lines))
        ll_line_store(to, 1, second, epoch);
}

/* ---- pushing ---- */

/* Where a share of an answer arrives. */
static __device__ __forceinline__ uint64_t answer_at(const struct ll_args &a,
                                                     uint32_t token, uint32_t place,
                                                     uint32_t share)
{
    return a.answers + ((uint64_t)token * a.places + place) * a.sent_bytes +
           (uint64_t)share * a.share_bytes;
}

/* One warp: a part of the answers to a row, added up in the order of `from`'s lanes where
 * there are several, to the row's rank. */
template <bool FP8>
static __device__ __forceinline__ void push_rows(const struct ll_args &a, uint32_t share,
                                                 uint32_t n, const char *from, float by,
                                                 char *to, uint64_t epoch)
{
    struct part p = part_at(a, share);

    if constexpr (FP8) {
        struct sweeps<true> row;

        if (n == 1 && by == 1.0f)
            load_bf16<true>(p, from_lane(from, 0), &row);
        else
            row = rounded<true>(
                add_up<true, true>(p, (uint32_t)((1ull << n) - 1), from, by, 0));
        push_codes(a, p, row, to, epoch);
    } else {
        struct ll_words v[PUSH_GROUPS];

        if (n == 1 && by == 1.0f)
            load_words(p, from_lane(from, 0), v);
        else
            round_words(add_word_rows(p, n, from, by), v);
        push_words(p, v, to, epoch);
    }
}

/* A share of what a received token's experts here have answered. */
template <int MODE, bool FP8>
static __device__ __forceinline__ void push_slot(const struct ll_args &a, uint32_t source,
                                                 uint32_t token, uint32_t share,
                                                 uint64_t epoch)
{
    uint32_t slot = ll_slot(a.max_tokens, source, token);
    uint32_t wanted = __ldcg(a.wanted + slot), n = MODE == LL_ONCE ? __popc(wanted) : 1;
    const char *y = static_cast<const char *>(a.y),
               *from = y + (uint64_t)slot * a.answer_bytes;
    char *to = a.v.peer_heap[source] + answer_at(a, token, a.v.rank, share);
    float by = 1.0f;

    if (wanted == 0)
        return;
    if (MODE == LL_ONCE && ll_lane() < n) {
        uint2 s = __ldcg(reinterpret_cast<const uint2 *>(a.share) + (size_t)slot * a.topk +
                         ll_lane());

        from = y + (uint64_t)s.x * a.answer_bytes;
        by = __uint_as_float(s.y);
    }
    /* A lone answer counts with its weight, too: rounding the product is part of the
     * sum. */
    if (MODE == LL_ONCE)
        by = __shfl_sync(LL_ALL, by, ll_lane() < n ? ll_lane() : 0);
    push_rows<FP8>(a, share, n, from, by, to, epoch);
}

/* A share of what one expert has answered to the i-th row. */
template <bool FP8>
static __device__ __forceinline__ void push_entry(const struct ll_args &a, uint32_t i,
                                                  uint32_t share, uint64_t epoch)
{
    uint32_t entry = __ldcg(a.recv_row + i);
    uint4 meta = ll_load16(a.v.peer_heap[a.v.rank] + a.recv +
                           (uint64_t)entry * a.message_bytes + a.meta_at);
    char *to = a.v.peer_heap[meta.x] + answer_at(a, meta.y, meta.w, share);

    push_rows<FP8>(a, share, 1,
                   static_cast<const char *>(a.y) + (uint64_t)entry * a.answer_bytes, 1.0f,
                   to, epoch);
}

#endif
