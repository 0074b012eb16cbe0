/* Combine where answers are pushed, at the token's rank: a warp reads lines until all of a
 * token's answers have come, and adds them up in order of their places, in the lanes that
 * their words come to. */
#ifndef LL_V2_TAKE_CUH
#define LL_V2_TAKE_CUH

#include "ll_v2_push.cuh"

/* One warp: lane l waits for the answer at place l, if it is in `list`. */
static __device__ __forceinline__ bool
wait_answers(const struct ll_args &a, const struct part &p, uint32_t token, uint32_t list,
             uint32_t lines, const struct answers &of, bool direct, uint64_t epoch,
             struct epa_dev_patience *patience)
{
    uint32_t place = ll_lane();
    struct epa_dev_wait w = {LL_COMBINE, LL_DATA, direct ? of.expert / a.local : place,
                             token};
    const char *from = a.v.peer_heap[a.v.rank] + answer_at(a, token, place, p.share);
    bool ok = (list >> place & 1) == 0 || ll_line_wait(a, from, lines, epoch, w, patience);

    return __all_sync(LL_ALL, ok);
}

enum { TAKE = 2 }; /* answers that a warp holds at a time */

/* A token's share in bf16: answers of `list`'s places in order, weights by lane. False: one
 * has not come. */
static __device__ __forceinline__ bool take_words(const struct ll_args &a,
                                                  const struct part &p, uint32_t token,
                                                  uint32_t list, float by,
                                                  const struct answers &of, bool direct,
                                                  uint64_t epoch, struct word_sum *s)
{
    uint32_t lines = ll_lines_of(2 * p.channels);
    struct epa_dev_patience patience = {0, 0, 0};

    while (list != 0) {
        struct ll_words v[TAKE][PUSH_GROUPS];
        uint32_t left = list;
        bool all = true;

#pragma unroll
        for (int i = 0; i < TAKE; i++, left &= left - 1) {
            uint32_t place = left != 0 ? __ffs(left) - 1 : 0;
            const char *from =
                a.v.peer_heap[a.v.rank] + answer_at(a, token, place, p.share);

            if (left != 0)
                all = ll_lines_load<PUSH_GROUPS>(from, lines, epoch, v[i]) && all;
        }
        if (!all) { /* left: the places after these */
            if (!wait_answers(a, p, token, list ^ left, lines, of, direct, epoch,
                              &patience))
                return false;
            continue;
        }
#pragma unroll
        for (int i = 0; i < TAKE; i++) {
            float weight = __shfl_sync(LL_ALL, by, list != 0 ? __ffs(list) - 1 : 0);

            if (list != 0)
                add_words(v[i], weight, s);
            list &= list - 1;
        }
    }
    return true;
}

static __device__ __forceinline__ void store_words(const struct ll_args &a,
                                                   const struct part &p, uint32_t token,
                                                   const struct word_sum &s)
{
    char *to = static_cast<char *>(a.out) + 2 * ((size_t)token * a.hidden + p.first);
    struct ll_words v[PUSH_GROUPS];

    round_words(s, v);
#pragma unroll
    for (int g = 0; g < PUSH_GROUPS; g++) {
        uint32_t at = ll_word_at(g);

        if (has_word(p, at))
            *reinterpret_cast<uint64_t *>(to + 8 * at) = v[g].w[0];
        if (!ll_ends_line() && has_word(p, at + 1))
            *reinterpret_cast<uint64_t *>(to + 8 * at + 8) = v[g].w[1];
    }
}

/* The same of FP8: a word has eight channels of one group, and scales come first. */
struct code_sum {
    float v[FP8_GROUPS][2][8];
};

static __device__ __forceinline__ void add_codes(const struct ll_args &a,
                                                 const struct ll_string &s,
                                                 const struct ll_words *v, float weight,
                                                 struct code_sum *to)
{
#pragma unroll
    for (int g = 0; g < FP8_GROUPS; g++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t at = (ll_word_at(g) + h) * 8;
            uint32_t group = at >= s.token && at < s.bytes ? (at - s.token) / a.group : 0;
            uint64_t pair = ll_word(v[0], group / 2), word = v[g].w[h];
            float value[8];

            ll_unpack_fp8((uint32_t)word, (uint32_t)(word >> 32),
                          __uint_as_float((uint32_t)(pair >> (group % 2 * 32))), value);
            add8(value, weight, to->v[g][h]);
        }
}

static __device__ __forceinline__ bool take_codes(const struct ll_args &a,
                                                  const struct part &p, uint32_t token,
                                                  uint32_t list, float by,
                                                  const struct answers &of, bool direct,
                                                  uint64_t epoch, struct code_sum *to)
{
    struct ll_string s = string_of(a, p);
    uint32_t lines = ll_lines_of(s.bytes);
    struct epa_dev_patience patience = {0, 0, 0};

    /* One by one: those that come first are added while others are on their way. */
    for (; list != 0; list &= list - 1) {
        uint32_t place = __ffs(list) - 1;
        const char *from = a.v.peer_heap[a.v.rank] + answer_at(a, token, place, p.share);
        struct ll_words v[FP8_GROUPS];

        while (!ll_lines_load<FP8_GROUPS>(from, lines, epoch, v))
            if (!wait_answers(a, p, token, 1u << place, lines, of, direct, epoch,
                              &patience))
                return false;
        add_codes(a, s, v, __shfl_sync(LL_ALL, by, place), to);
    }
    return true;
}

static __device__ __forceinline__ void store_codes(const struct ll_args &a,
                                                   const struct part &p, uint32_t token,
                                                   const struct code_sum &sum)
{
    struct ll_string s = string_of(a, p);
    char *to = static_cast<char *>(a.out) + 2 * ((size_t)token * a.hidden + p.first);

#pragma unroll
    for (int g = 0; g < FP8_GROUPS; g++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t at = (ll_word_at(g) + h) * 8;

            if (at >= s.token && at < s.bytes && !(h == 1 && ll_ends_line()))
                ll_store16(to + 2 * (at - s.token), ll_pack(sum.v[g][h]));
        }
}

#endif
