/* Parts of rows in dispatch: read from x, quantised, made a string in shared memory, stored
 * as lines at all who get them; and out of lines, to the row that experts read.
 *
 * A string is put together in shared memory because lanes that quantise have 16 bytes of
 * channels each, while of a line each lane has words. */
#ifndef LL_V1_ROWS_CUH
#define LL_V1_ROWS_CUH

#include "ll_v1_device.cuh"
#include "ll_v1_sort.cuh"

/* A lane reads and stores 16 bytes of what crosses at a time. */
template <int IN> struct v1_width {
    enum {
        BYTES = IN == V1_IN_DTYPE ? 2 : 1, /* of a channel that crosses */
        LANE = 16 / BYTES,                 /* channels */
        SWEEP = LANE * DEV_WARP,
        CHANNELS = IN == V1_IN_DTYPE ? V1_UNIT_DTYPE : V1_UNIT_FP8,
        SWEEPS = (CHANNELS + SWEEP - 1) / SWEEP,
        HALVES = IN == V1_IN_QUANTISE ? 2 : 1, /* 16 bytes that are read for 16 */
        /* Fours of lines. In FP8 groups of 16 channels are the most to hold. */
        GROUPS = IN == V1_IN_DTYPE ? 4 : 3
    };
};

struct v1_part {
    uint32_t token, unit, first, channels; /* first: channel */
    uint32_t scales;                       /* that it has */
    struct v1_payload at;
};

template <int IN>
static __device__ __forceinline__ struct v1_part v1_part_at(const struct v1_args &a,
                                                            uint32_t token, uint32_t unit)
{
    uint32_t first = unit * a.unit_channels;
    uint32_t channels = min(a.unit_channels, a.hidden - first);
    uint32_t scales = IN == V1_IN_DTYPE ? 0 : channels / a.group;

    return {token,    unit,   first,
            channels, scales, v1_payload_of(channels * v1_width<IN>::BYTES, scales)};
}

template <int IN>
static __device__ __forceinline__ bool v1_takes(const struct v1_part &p, int sweep)
{
    return sweep * v1_width<IN>::SWEEP + dev_lane() * v1_width<IN>::LANE < p.channels;
}

/* ---- sending ---- */

/* A part as it is read: all loads leave before the first is used. */
template <int IN> struct v1_raw {
    uint4 v[v1_width<IN>::SWEEPS][v1_width<IN>::HALVES];
};

template <int IN>
static __device__ __forceinline__ void
v1_read_part(const struct v1_args &a, const struct v1_part &p, struct v1_raw<IN> *to)
{
    enum { HALVES = v1_width<IN>::HALVES };
    size_t row = ((size_t)p.token * a.hidden + p.first) * (IN == V1_IN_FP8 ? 1 : 2);
    const char *x = static_cast<const char *>(a.x) + row + dev_lane() * 16 * HALVES;

#pragma unroll
    for (int i = 0; i < v1_width<IN>::SWEEPS; i++)
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            to->v[i][h] = make_uint4(0, 0, 0, 0);
            if (v1_takes<IN>(p, i))
                to->v[i][h] = __ldg(
                    reinterpret_cast<const uint4 *>(x + (i * DEV_WARP * HALVES + h) * 16));
        }
}

/* Quantises a part where it has to, and makes it a string. One warp. */
template <int IN, bool F16>
static __device__ __forceinline__ void
v1_make_payload(const struct v1_args &a, const struct v1_part &p,
               const struct v1_raw<IN> &raw, char *payload)
{
    float *scales = reinterpret_cast<float *>(payload + p.at.scales);
    uint32_t lanes = IN == V1_IN_DTYPE ? 1 : a.group / v1_width<IN>::LANE;

#pragma unroll
    for (int i = 0; i < v1_width<IN>::SWEEPS; i++) {
        uint4 v = raw.v[i][0];
        float scale = 0.0f;

        if (IN == V1_IN_QUANTISE)
            v = dev_quantise16<F16>(v, raw.v[i][v1_width<IN>::HALVES - 1], lanes, &scale);
        if (v1_takes<IN>(p, i))
            *reinterpret_cast<uint4 *>(payload + (i * DEV_WARP + dev_lane()) * 16) = v;
        if (IN == V1_IN_QUANTISE && v1_takes<IN>(p, i) && dev_lane() % lanes == 0)
            scales[(i * DEV_WARP + dev_lane()) / lanes] = scale;
    }
    if (IN == V1_IN_FP8)
        for (uint32_t g = dev_lane(); g < p.scales; g += DEV_WARP)
            scales[g] = __ldg(a.x_scale + (size_t)p.token * (a.hidden / a.group) +
                              p.first / a.group + g);
    if (dev_lane() == 0)
        *reinterpret_cast<uint32_t *>(payload + p.at.token) = p.token;
}

/* Where the lane's choice of the chunk's token number `bit` stands, and the part at its rank;
 * NULL: it was dropped. */
static __device__ __forceinline__ char *v1_slot(const struct v1_args &a,
                                                 const struct v1_sorted &s,
                                                 const struct v1_part &p, uint32_t bit,
                                                 uint64_t call)
{
    size_t choice = (size_t)p.token * a.topk + dev_lane();
    uint32_t expert = dev_lane() < a.topk ? (uint32_t)__ldg(a.expert + choice) : ~0u;
    uint32_t place = ~0u, within, rank, row;
    char *to = NULL;

    if (expert < a.experts) {
        within = s.before[expert] + __popc(s.bits[expert] & ((1u << bit) - 1));
        rank = expert / a.local;
        row = a.v.rank * a.max_m + s.first[expert] + within - s.first[rank * a.local];
        place = a.pull != 0 ? within : s.first[expert] + within;
        to = a.v.peer_heap[rank] + a.arrival[call % V1_POSITIONS] +
             ((uint64_t)row * a.units + p.unit) * a.unit_bytes;
    }
    if (p.unit == 0 && dev_lane() < a.topk)
        a.place[choice] = place;
    return to;
}

/* One warp: a part of a token from x to the slots of all its choices. */
template <int IN, bool F16>
static __device__ __forceinline__ void
v1_send_part(const struct v1_args &a, const struct v1_sorted &s, const struct v1_part &p,
             uint32_t bit, uint64_t call, uint64_t *payload)
{
    enum { GROUPS = v1_width<IN>::GROUPS };
    uint32_t packets = dev_packets_of(p.at.bytes);
    struct v1_raw<IN> raw;
    struct dev_words v[GROUPS];
    char *to;

    v1_read_part<IN>(a, p, &raw);
    __syncwarp(); /* the string before this one has been read */
    v1_make_payload<IN, F16>(a, p, raw, reinterpret_cast<char *>(payload));
    to = v1_slot(a, s, p, bit, call);
    __syncwarp();
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
        if (dev_has_packet(g, packets))
            v[g] = dev_words_of(payload, g);
    for (uint32_t i = 0; i < a.topk; i++) {
        char *slot = dev_from_lane(to, (i + p.token) % a.topk);

        if (slot != NULL)
            dev_packets_store<GROUPS>(slot, packets, v, call);
    }
}

/* ---- receiving ---- */

/* Splits as they came, in shared memory. A cell is the rows of a source for an expert here;
 * they are in the order of entries: by expert, then source. */
struct v1_cells {
    uint32_t n;      /* [local][size] */
    uint32_t *entry; /* its first */
    uint32_t *place; /* where its source has them, as sorted */
    uint32_t *start; /* [size] where the source's slice begins, the same way */
};

/* Of an entry: whose row it is and where that stands as its source sorted it. */
static __device__ __forceinline__ struct v1_back
v1_back_of(const struct v1_args &a, const struct v1_cells &c, uint32_t entry)
{
    uint32_t cell = v1_cell_of(c.entry, c.n, entry);

    return {cell % a.v.size, c.place[cell] + entry - c.entry[cell]};
}

/* A part that stands as a string in shared memory, to the row of its entry. */
template <int IN>
static __device__ __forceinline__ void
v1_copy_payload(const struct v1_args &a, const struct v1_part &p, uint32_t entry,
               const struct v1_back &back, const char *payload)
{
    char *row = dev_own(a.v, a.recv + (uint64_t)entry * a.row_bytes) +
                p.first * v1_width<IN>::BYTES;
    float *to = reinterpret_cast<float *>(
        dev_own(a.v, a.recv_scales + (uint64_t)entry * a.scales_bytes));
    const float *scales = reinterpret_cast<const float *>(payload + p.at.scales);

#pragma unroll
    for (int i = 0; i < v1_width<IN>::SWEEPS; i++) {
        uint32_t at = (i * DEV_WARP + dev_lane()) * 16;

        if (v1_takes<IN>(p, i))
            dev_store16(row + at, *reinterpret_cast<const uint4 *>(payload + at));
    }
    for (uint32_t g = dev_lane(); g < p.scales; g += DEV_WARP)
        to[p.first / a.group + g] = scales[g];
    if (p.unit != 0 || dev_lane() != 0)
        return;
    struct epa_origin *origin =
        reinterpret_cast<struct epa_origin *>(dev_own(a.v, a.origin)) + entry;

    *origin = {back.source, *reinterpret_cast<const uint32_t *>(payload + p.at.token)};
    if (a.pull == 0)
        a.back[entry] = back;
}

/* One warp: a part of the row of an entry, from its slot. False: it has not come. */
template <int IN, bool PROFILE>
static __device__ __forceinline__ bool
v1_receive_part(const struct v1_args &a, const struct v1_cells &c, uint32_t entry,
                uint32_t unit, uint64_t call, uint64_t *payload)
{
    enum { GROUPS = v1_width<IN>::GROUPS };
    struct v1_part p = v1_part_at<IN>(a, 0, unit);
    struct v1_back back = v1_back_of(a, c, entry);
    uint32_t packets = dev_packets_of(p.at.bytes), row = back.place - c.start[back.source];
    struct epa_dev_wait w = {V1_DISPATCH, V1_WAIT_ROW, back.source, row};
    const char *from = dev_own(
        a.v, a.arrival[call % V1_POSITIONS] +
                 ((uint64_t)(back.source * a.max_m + row) * a.units + unit) * a.unit_bytes);
    struct dev_words v[GROUPS];

    dev_stamp<PROFILE, V1_WARPS>(a.stamps, V1_WAIT, false);
    if (!dev_packets_read<GROUPS>(a, from, packets, call, w, v))
        return false;
    dev_stamp<PROFILE, V1_WARPS>(a.stamps, V1_WAIT, true);
    dev_stamp<PROFILE, V1_WARPS>(a.stamps, V1_POSTPROCESS, false);
    __syncwarp(); /* the string before this one has been read */
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        uint32_t at = dev_word_at(g);

        if (!dev_has_packet(g, packets))
            continue;
        payload[at] = v[g].w[0];
        if (!dev_ends_packet())
            payload[at + 1] = v[g].w[1];
    }
    __syncwarp();
    v1_copy_payload<IN>(a, p, entry, back, reinterpret_cast<const char *>(payload));
    dev_stamp<PROFILE, V1_WARPS>(a.stamps, V1_POSTPROCESS, true);
    return true;
}

#endif
