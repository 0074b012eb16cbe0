/* Combine where expert outputs are pushed, at the token's rank: a warp reads lines until all of a
 * token's expert outputs have come, and adds them up in order of their places, in the lanes that
 * their words come to. */
#ifndef LL_V2_TAKE_CUH
#define LL_V2_TAKE_CUH

#include "ll_v2_push.cuh"

/* One warp: lane l waits for `lines` lines of the answer at place l, `skip` bytes into the
 * share, if it is in `list`. */
static __device__ __forceinline__ bool
wait_outputs(const struct ll_args &a, const struct part &p, uint32_t token, uint32_t list,
             uint32_t skip, uint32_t packets, const struct outputs &of, bool direct,
             uint64_t epoch, struct epa_dev_poll *poll)
{
    uint32_t place = dev_lane();
    struct epa_dev_wait w = {LL_COMBINE, LL_DATA, direct ? of.expert / a.local : place,
                             token};
    const char *from = a.v.peer_heap[a.v.rank] + output_at(a, token, place, p.share) + skip;
    bool ok = (list >> place & 1) == 0 || dev_packet128_wait(a, from, packets, epoch, w, poll);

    return __all_sync(DEV_ALL, ok);
}

enum { TAKE = 2 }; /* expert outputs that a warp holds at a time */

/* A token's share in 16 bits: expert outputs of `list`'s places in order, weights by lane. False: one
 * has not come. */
template <bool F16>
static __device__ __forceinline__ bool
take_words(const struct ll_args &a, const struct part &p, uint32_t token, uint32_t list,
           float by, const struct outputs &of, bool direct, uint64_t epoch,
           struct word_sum *s)
{
    uint32_t packets = dev_packets_of(2 * p.channels);
    struct epa_dev_poll poll = {0, 0, 0};

    while (list != 0) {
        struct dev_words v[TAKE][PUSH_GROUPS];
        uint32_t left = list;
        bool all = true;

#pragma unroll
        for (int i = 0; i < TAKE; i++, left &= left - 1) {
            uint32_t place = left != 0 ? __ffs(left) - 1 : 0;
            const char *from =
                a.v.peer_heap[a.v.rank] + output_at(a, token, place, p.share);

            if (left != 0)
                all = dev_packets_load<PUSH_GROUPS>(from, packets, epoch, v[i]) && all;
        }
        if (!all) { /* left: the places after these */
            if (!wait_outputs(a, p, token, list ^ left, 0, packets, of, direct, epoch,
                              &poll))
                return false;
            continue;
        }
#pragma unroll
        for (int i = 0; i < TAKE; i++) {
            float weight = __shfl_sync(DEV_ALL, by, list != 0 ? __ffs(list) - 1 : 0);

            if (list != 0)
                add_words<LL_FROM_Y, F16>(v[i], 1.0f, weight, s);
            list &= list - 1;
        }
    }
    return true;
}

template <bool F16>
static __device__ __forceinline__ void store_words(const struct ll_args &a,
                                                   const struct part &p, uint32_t token,
                                                   const struct word_sum &s)
{
    char *to = static_cast<char *>(a.out) + 2 * ((size_t)token * a.hidden + p.first);
    struct dev_words v[PUSH_GROUPS];

    round_words<F16>(s, v);
#pragma unroll
    for (int g = 0; g < PUSH_GROUPS; g++) {
        uint32_t at = dev_word_at(g);

        if (has_word(p, at))
            *reinterpret_cast<uint64_t *>(to + 8 * at) = v[g].w[0];
        if (!dev_ends_packet() && has_word(p, at + 1))
            *reinterpret_cast<uint64_t *>(to + 8 * at + 8) = v[g].w[1];
    }
}

/* The same of FP8, four lines at a time: a lane has a chunk of each expert output. */
struct code_sum {
    float v[LL_CHUNK];
};

/* Where a warp is in a share: its four lines, and this lane's chunk of them. */
struct code_place {
    uint32_t packets, line, slot, scale; /* lines: of the four, that the share has */
    uint32_t channel;                  /* the chunk's first, in the share */
    bool has;
};

static __device__ __forceinline__ struct code_place
code_place_of(const struct ll_args &a, const struct part &p, uint32_t four)
{
    uint32_t all = ll_code_packets(p.channels, a.group), chunks = ll_chunks_of(a.group);
    uint32_t line = four * DEV_PACKETS + dev_lane() / 8, slot = dev_lane() % 8;
    uint32_t packets = four * DEV_PACKETS < all ? min(all - four * DEV_PACKETS, DEV_PACKETS) : 0;
    uint32_t channel = (line * chunks + slot) * LL_CHUNK;

    return {packets,   line,
            slot,    ll_scale_of(a.group, line, slot),
            channel, slot < chunks && channel < p.channels};
}

/* Scales are in the last lanes of the line; all lanes of the warp call. */
static __device__ __forceinline__ float
scale_of(const struct ll_args &a, const struct code_place &at, struct dev_words v)
{
    uint32_t last = dev_lane() | 7;

    if (ll_chunks_of(a.group) == LL_MOST_CHUNKS) {
        uint32_t first = __shfl_sync(DEV_ALL, (uint32_t)v.w[0], last);
        uint32_t second = __shfl_sync(DEV_ALL, (uint32_t)(v.w[0] >> 32), last);

        return __uint_as_float(at.scale == 0 ? first : second);
    }
    uint32_t from = at.scale < 4 ? last - 1 : last;
    uint64_t low = __shfl_sync(DEV_ALL, v.w[0], from),
             high = __shfl_sync(DEV_ALL, v.w[1], from);
    uint64_t pair = (at.scale & 2) != 0 ? high : low;

    return __uint_as_float((uint32_t)(pair >> (at.scale % 2 * 32)));
}

static __device__ __forceinline__ void add_codes(struct dev_words v, float scale,
                                                 float weight, struct code_sum *to)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float value[8];

        dev_unpack_fp8((uint32_t)v.w[h], scale, value);
        dev_unpack_fp8((uint32_t)(v.w[h] >> 32), scale, value + 4);
        add8(value, weight, to->v + 8 * h);
    }
}

enum { TAKE_CODES = 4 };

/* DIRECT: expert outputs are of experts, with weights by lane; else of ranks, and count once. */
template <bool DIRECT>
static __device__ __forceinline__ bool
take_codes(const struct ll_args &a, const struct part &p, const struct code_place &at,
           uint32_t token, uint32_t four, uint32_t list, float by, const struct outputs &of,
           uint64_t epoch, struct code_sum *to)
{
    uint32_t skip = four * DEV_PACKETS * DEV_PACKET;
    struct epa_dev_poll poll = {0, 0, 0};

    while (list != 0) {
        struct dev_words v[TAKE_CODES];
        uint32_t left = list;
        bool all = true;

#pragma unroll
        for (int i = 0; i < TAKE_CODES; i++, left &= left - 1) {
            uint32_t place = left != 0 ? __ffs(left) - 1 : 0;
            const char *from =
                a.v.peer_heap[a.v.rank] + output_at(a, token, place, p.share) + skip;

            v[i].w[0] = v[i].w[1] = ~0ull; /* no epoch that is waited for */
            if (left != 0 && dev_has_packet(0, at.packets))
                v[i] = dev_packet128_load(from, 0);
        }
#pragma unroll
        for (int i = 0; i < TAKE_CODES; i++)
            all = all && (!dev_ends_packet() || v[i].w[1] >= epoch);
        if (!__all_sync(DEV_ALL, all)) { /* left: the places after these */
            if (!wait_outputs(a, p, token, list ^ left, skip, at.packets, of, DIRECT, epoch,
                              &poll))
                return false;
            continue;
        }
#pragma unroll
        for (int i = 0; i < TAKE_CODES; i++) {
            float weight =
                DIRECT ? __shfl_sync(DEV_ALL, by, list != 0 ? __ffs(list) - 1 : 0) : 1.0f;
            float scale = scale_of(a, at, v[i]);

            if (list != 0)
                add_codes(v[i], scale, weight, to);
            list &= list - 1;
        }
    }
    return true;
}

template <bool F16>
static __device__ __forceinline__ void
store_codes(const struct ll_args &a, const struct part &p, const struct code_place &at,
            uint32_t token, const struct code_sum &sum)
{
    char *to =
        static_cast<char *>(a.out) + 2 * ((size_t)token * a.hidden + p.first + at.channel);

    if (!at.has)
        return;
    dev_store16(to, dev_pack<F16>(sum.v));
    dev_store16(to + 16, dev_pack<F16>(sum.v + 8));
}

#endif
