/* Parts of expert outputs in combine: pushed as lines, and added up at the token's rank from lines or
 * from where its experts' rank has them. Always in the order of choices, whichever comes
 * first.
 *
 * Of lines each lane has the channels of its words from beginning to end, so nothing changes
 * lanes. */
#ifndef LL_V1_OUTPUTS_CUH
#define LL_V1_OUTPUTS_CUH

#include "ll_v1_device.cuh"

/* Lane k has choice k of the token. */
struct v1_choices {
    uint32_t expert, place; /* place ~0: dropped */
    float weight;
    uint32_t list; /* which lanes have one, as bits */
};

struct v1_share {
    uint32_t first, channels; /* first: channel */
};

static __device__ __forceinline__ struct v1_share v1_share_at(const struct v1_args &a,
                                                              uint32_t share)
{
    uint32_t first = share * a.share_channels;

    return {first, min(a.share_channels, a.hidden - first)};
}

static __device__ __forceinline__ struct v1_choices v1_choices_of(const struct v1_args &a,
                                                                  uint32_t token)
{
    struct v1_choices of = {0, ~0u, 0.0f, 0};
    size_t choice = (size_t)token * a.topk + dev_lane();

    if (dev_lane() < a.topk) {
        of.expert = (uint32_t)__ldg(a.expert + choice);
        of.place = __ldcg(a.place + choice);
        of.weight = __ldg(a.weight + choice);
    }
    of.list = __ballot_sync(DEV_ALL, of.place != ~0u);
    return of;
}

/* Dropped choices, and those beyond top-k, have none. */
static __device__ __forceinline__ bool v1_has(const struct v1_choices &of, uint32_t choice)
{
    return (of.list >> choice & 1) != 0;
}

static __device__ __forceinline__ void v1_add8(const float *value, float weight, float *to)
{
#pragma unroll
    for (int j = 0; j < 8; j++)
        to[j] = __fmaf_rn(weight, value[j], to[j]);
}

/* ---- pushed ---- */

enum { V1_WORD = 4 }; /* channels */

/* One warp: lines from the `piece`-th sixteen on of what an expert answered to an entry, to
 * the entry's rank. */
static __device__ __forceinline__ void
v1_push_piece(const struct v1_args &a, uint32_t entry, uint32_t piece, uint64_t call)
{
    enum { GROUPS = V1_PIECE_PACKETS / DEV_PACKETS };
    uint32_t first = piece * V1_PIECE_PACKETS;
    uint32_t words = a.hidden / V1_WORD - first * DEV_PACKET_WORDS; /* that are left */
    uint2 back = __ldcg(reinterpret_cast<const uint2 *>(a.back) + entry);
    const unsigned long long *from =
        reinterpret_cast<const unsigned long long *>(static_cast<const char *>(a.y) +
                                                     (uint64_t)entry * a.output_bytes) +
        first * DEV_PACKET_WORDS;
    struct dev_words v[GROUPS];

#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        uint32_t at = dev_word_at(g);

        v[g].w[0] = v[g].w[1] = 0;
        if (at < words)
            v[g].w[0] = __ldcg(from + at);
        if (!dev_ends_packet() && at + 1 < words)
            v[g].w[1] = __ldcg(from + at + 1);
    }
    dev_packets_store<GROUPS>(a.v.peer_heap[back.x] + a.outputs[call % V1_POSITIONS] +
                                (uint64_t)back.y * a.sent_bytes + first * DEV_PACKET,
                            min(a.sent_bytes / DEV_PACKET - first, V1_PIECE_PACKETS), v, call);
}

/* One warp: lane k waits for the last line of choice k's answer, if it is in `list`. */
static __device__ __forceinline__ bool
v1_wait_outputs(const struct v1_args &a, const char *from, uint32_t packets, uint32_t list,
                uint32_t token, uint64_t call, struct epa_dev_poll *poll)
{
    bool ok = true;

    if ((list >> dev_lane() & 1) != 0) {
        uint32_t expert = (uint32_t)__ldg(a.expert + (size_t)token * a.topk + dev_lane());
        struct epa_dev_wait w = {V1_COMBINE, V1_WAIT_OUTPUT, expert / a.local, token};

        ok = dev_packet128_wait(a, from, packets, call, w, poll);
    }
    return __all_sync(DEV_ALL, ok);
}

enum { V1_TAKE = 4 }; /* expert outputs that a warp holds at a time */

/* The lane's channels of a share of a token's sum, which are those of its words; it has word
 * `at` and the next of those of the share. */
template <bool F16>
static __device__ __forceinline__ void v1_store_words(const struct v1_args &a,
                                                      const struct v1_share &s,
                                                      uint32_t token, const float *sum)
{
    char *to = static_cast<char *>(a.out) + 2 * ((size_t)token * a.hidden + s.first);
    uint32_t at = dev_word_at(0);
    uint64_t *word = reinterpret_cast<uint64_t *>(to) + at;
    uint4 packed = dev_pack<F16>(sum);

    if (at * V1_WORD < s.channels)
        word[0] = (uint64_t)packed.y << 32 | packed.x;
    if (!dev_ends_packet() && (at + 1) * V1_WORD < s.channels)
        word[1] = (uint64_t)packed.w << 32 | packed.z;
}

/* One warp: a share of a token's sum, out of four lines of each expert output. False: one has not
 * come. */
template <bool F16>
static __device__ __forceinline__ bool
v1_take_share(const struct v1_args &a, uint32_t token, uint32_t share,
              const struct v1_choices &of, uint64_t call)
{
    struct v1_share s = v1_share_at(a, share);
    uint32_t packets = dev_packets_of(2 * s.channels);
    struct epa_dev_poll poll = {0, 0, 0};
    float sum[2 * V1_WORD] = {};
    char *from =
        dev_own(a.v, a.outputs[call % V1_POSITIONS] + (uint64_t)of.place * a.sent_bytes +
                         share * DEV_PACKETS * DEV_PACKET);

    for (uint32_t k = 0; k < a.topk;) {
        struct dev_words v[V1_TAKE];
        bool all = true;

#pragma unroll
        for (int i = 0; i < V1_TAKE; i++) {
            char *at = dev_from_lane(from, k + i);

            v[i].w[0] = v[i].w[1] = ~0ull; /* no call that is waited for */
            if (v1_has(of, k + i) && dev_has_packet(0, packets))
                v[i] = dev_packet128_load(at, 0);
        }
#pragma unroll
        for (int i = 0; i < V1_TAKE; i++)
            all = all && (!dev_ends_packet() || v[i].w[1] >= call);
        if (!__all_sync(DEV_ALL, all)) {
            uint32_t list = of.list & ((1u << V1_TAKE) - 1) << k;

            if (!v1_wait_outputs(a, from, packets, list, token, call, &poll))
                return false;
            continue;
        }
#pragma unroll
        for (int i = 0; i < V1_TAKE; i++) {
            float weight = __shfl_sync(DEV_ALL, of.weight, k + i), value[2 * V1_WORD];

            dev_unpack<F16>(make_uint4((uint32_t)v[i].w[0], (uint32_t)(v[i].w[0] >> 32),
                                       (uint32_t)v[i].w[1], (uint32_t)(v[i].w[1] >> 32)),
                            value);
            if (v1_has(of, k + i))
                v1_add8(value, weight, sum);
        }
        k += V1_TAKE;
    }
    v1_store_words<F16>(a, s, token, sum);
    return true;
}

/* ---- pulled ---- */

enum { V1_BATCH = 4 }; /* expert outputs that a warp has on their way */

/* One warp: a share of a token's sum, 16 bytes a lane, from the ranks of its experts. */
template <bool F16>
static __device__ __forceinline__ void v1_pull_share(const struct v1_args &a,
                                                     uint32_t token, uint32_t share,
                                                     const struct v1_choices &of)
{
    struct v1_share s = v1_share_at(a, share);
    const uint32_t *starts = reinterpret_cast<const uint32_t *>(dev_own(a.v, a.starts));
    uint32_t at = 2 * s.first + 16 * dev_lane();
    bool has = dev_lane() * 8 < s.channels;
    char *from = NULL;
    float sum[8] = {};

    if (of.place != ~0u)
        from = a.v.peer_heap[of.expert / a.local] + a.y_space +
               (uint64_t)(__ldcg(starts + of.expert) + of.place) * a.output_bytes;
    for (uint32_t k = 0; k < a.topk; k += V1_BATCH) {
        uint4 row[V1_BATCH];

#pragma unroll
        for (int i = 0; i < V1_BATCH; i++) {
            const char *y = dev_from_lane(from, k + i);

            row[i] = make_uint4(0, 0, 0, 0);
            if (v1_has(of, k + i) && has)
                row[i] = dev_load16(y + at);
        }
#pragma unroll
        for (int i = 0; i < V1_BATCH; i++) {
            float weight = __shfl_sync(DEV_ALL, of.weight, k + i), value[8];

            dev_unpack<F16>(row[i], value);
            if (v1_has(of, k + i))
                v1_add8(value, weight, sum);
        }
    }
    if (has)
        dev_store16(static_cast<char *>(a.out) + 2 * (size_t)token * a.hidden + at,
                    dev_pack<F16>(sum));
}

#endif
