/* Dispatch on GPUs. The first blocks sort the choices, send each rank its splits, and store tokens
 * in the rank's slots, quantised during the copy; these blocks never wait. The other blocks, and
 * the first ones after their sends, wait for the splits of all ranks and then copy arriving rows so
 * that the rows of each expert are contiguous.
 *
 * Splits and rows are packets with the number of the call, and need neither a fence nor a signal.
 * Every rank waits for the splits of all ranks, even of ranks without rows for it. Therefore the
 * next call may store without a handshake.
 *
 * Warps assemble the payload of packets in shared memory: a lane that quantises holds 16 bytes of
 * channels, but a lane that stores a packet holds single words. */
#include "../../common/algo_cuda.cuh"
#include "ll_v1_dispatch.h"

/* Shared memory of the block: tables by expert, then a payload buffer for each warp. */
extern __shared__ __align__(16) uint32_t shared[];

EPA_DEV uint64_t *payload_of(const struct v1_args &a)
{
    return reinterpret_cast<uint64_t *>(reinterpret_cast<char *>(shared) + a.payloads +
                                        threadIdx.x / EPA_DEV_WARP * a.payload);
}

/* ---- sorting ----
 *
 * Each sending block sorts on its own and only the part it needs: it counts all choices once and
 * forms the prefix sums. For its own tokens it then knows the number of preceding choices of each
 * expert. So no block waits for another block. */

/* Tables by expert in shared memory. */
struct v1_sorted {
    uint32_t *first;  /* [experts + 1]: start of the expert's rows */
    uint32_t *before; /* choices of the expert by tokens before the current chunk */
    uint32_t *bits;   /* bit mask of the chunk's tokens that choose the expert */
};

/* Counts the choices of tokens `begin` to `end`. All loads of a batch are issued before their first
 * use. */
EPA_DEV void v1_count(const struct v1_args &a, uint32_t begin, uint32_t end, uint32_t *count)
{
    enum { BATCH = 8 };

    for (uint32_t i = begin * a.c.topk + threadIdx.x; i < end * a.c.topk;
         i += BATCH * DEVICE_THREADS) {
        uint32_t expert[BATCH];

#pragma unroll
        for (uint32_t j = 0; j < BATCH; j++) {
            uint32_t at = i + j * DEVICE_THREADS;

            expert[j] = at < end * a.c.topk ? (uint32_t)__ldg(a.c.expert + at) : ~0u;
        }
#pragma unroll
        for (uint32_t j = 0; j < BATCH; j++)
            if (expert[j] < a.c.experts)
                atomicAdd(&count[expert[j]], 1u);
    }
}

/* Computes the start of each expert's rows. Returns false if a rank would get more rows than
 * fit. */
static __device__ bool v1_sort(const struct v1_args &a, const struct v1_sorted &s)
{
    uint32_t carry = 0;
    bool fits = true;

    for (uint32_t e = threadIdx.x; e <= a.c.experts; e += DEVICE_THREADS)
        s.first[e] = 0;
    for (uint32_t e = threadIdx.x; e < a.c.experts; e += DEVICE_THREADS)
        s.before[e] = s.bits[e] = 0;
    __syncthreads();
    v1_count(a, 0, a.c.tokens, s.first);
    __syncthreads();
    for (uint32_t at = 0; at < a.c.experts; at += DEVICE_THREADS) {
        uint32_t e = at + threadIdx.x, total;
        uint32_t rows = dev_scan(e < a.c.experts ? s.first[e] : 0, &total);

        if (e < a.c.experts)
            s.first[e] = carry + rows;
        carry += total;
    }
    if (threadIdx.x == 0)
        s.first[a.c.experts] = carry;
    __syncthreads();
    if (threadIdx.x < a.c.v.size) {
        struct epa_dev_wait w = {V1_DISPATCH, V1_NO_ROOM, threadIdx.x, 0};
        uint32_t rows = s.first[(threadIdx.x + 1) * a.c.local] - s.first[threadIdx.x * a.c.local];

        fits = rows <= a.max_m;
        if (!fits)
            epa_dev_fault(a.c.v, EPA_ERR_CONFIG, w, rows, a.max_m, 0);
    }
    return __syncthreads_and(fits);
}

EPA_DEV uint64_t v1_split(const struct v1_args &a, uint64_t call, uint32_t source, uint32_t expert)
{
    return a.splits[call % V1_POSITIONS] +
           ((uint64_t)source * a.c.local + expert) * sizeof(struct v1_packet);
}

/* Sends this block's share of the splits, one rank at a time. */
EPA_DEV void v1_send_splits(const struct v1_args &a, const struct v1_sorted &s, uint64_t call)
{
    for (uint32_t i = blockIdx.x; i < a.c.v.size; i += a.senders) {
        uint32_t peer = (a.c.v.rank + 1 + i) % a.c.v.size;

        for (uint32_t j = threadIdx.x; j < a.c.local; j += DEVICE_THREADS) {
            const uint32_t *first = s.first + peer * a.c.local + j;

            epa_dev_packet16_store(a.c.v.peer_heap[peer] + v1_split(a, call, a.c.v.rank, j),
                                   first[1] - first[0], first[0], call);
        }
    }
}

/* Makes the `n` tokens from `begin` the current chunk. `counted`: number of tokens that `before`
 * covers. Called by all threads of the block. */
EPA_DEV void v1_take_chunk(const struct v1_args &a, const struct v1_sorted &s, uint32_t counted,
                           uint32_t begin, uint32_t n)
{
    v1_count(a, counted, begin, s.before);
    for (uint32_t i = threadIdx.x; i < n * a.c.topk; i += DEVICE_THREADS) {
        uint32_t expert = (uint32_t)__ldg(a.c.expert + (size_t)begin * a.c.topk + i);

        if (expert < a.c.experts)
            atomicOr(&s.bits[expert], 1u << i / a.c.topk);
    }
    __syncthreads();
}

/* Clears the bit masks of the finished chunk. */
EPA_DEV void v1_leave_chunk(const struct v1_args &a, const struct v1_sorted &s)
{
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < a.c.experts; e += DEVICE_THREADS)
        s.bits[e] = 0;
    __syncthreads();
}

/* ---- parts of rows ---- */

template <int IN> using v1_width = dev_width<IN, IN == DEVICE_PLAIN ? V1_UNIT_DTYPE : V1_UNIT_FP8>;

struct v1_part : dev_part {
    uint32_t scales; /* number of scales */
    struct v1_payload at;
};

template <int IN>
EPA_DEV struct v1_part v1_part_at(const struct v1_args &a, uint32_t token, uint32_t unit)
{
    struct dev_part p = dev_part_at(token, unit, a.unit_channels, a.c.hidden);
    uint32_t scales = IN == DEVICE_PLAIN ? 0 : p.channels / a.c.group;

    return {p, scales, v1_payload_of(p.channels * v1_width<IN>::BYTES, scales)};
}

/* Groups of four packets in a part; FP8 with scale groups of 16 channels needs the most. */
static __device__ constexpr int v1_groups(int in)
{
    return in == DEVICE_PLAIN ? 4 : 3;
}

/* ---- sending ---- */

/* Quantises a part if required, and writes it as a payload. Called by one warp. */
template <int IN>
EPA_DEV void v1_make_payload(const struct v1_args &a, const struct v1_part &p,
                             const struct dev_raw<v1_width<IN>> &raw, char *payload)
{
    typedef v1_width<IN> width;
    float *scales = reinterpret_cast<float *>(payload + p.at.scales);
    uint32_t lanes = IN == DEVICE_PLAIN ? 1 : a.c.group / width::LANE;

#pragma unroll
    for (int i = 0; i < width::SWEEPS; i++) {
        float scale = 0.0f;
        uint4 v = dev_sweep_of<width>(raw, i, a.c.group, &scale);
        uint32_t at = i * EPA_DEV_WARP + epa_dev_lane();

        if (dev_takes<width>(p, i))
            *reinterpret_cast<uint4 *>(payload + at * 16) = v;
        if (width::QUANTISES && dev_takes<width>(p, i) && epa_dev_lane() % lanes == 0)
            scales[at / lanes] = scale;
    }
    if (IN == DEVICE_FP8)
        for (uint32_t g = epa_dev_lane(); g < p.scales; g += EPA_DEV_WARP)
            scales[g] = __ldg(a.c.x_scale + (size_t)p.token * (a.c.hidden / a.c.group) +
                              p.first / a.c.group + g);
    if (epa_dev_lane() == 0)
        *reinterpret_cast<uint32_t *>(payload + p.at.token) = p.token;
}

/* Stores the index of the lane's choice in a.place, and returns the address of the part at the
 * choice's rank; NULL: dropped. `bit`: the token's index in the chunk. */
EPA_DEV char *v1_slot(const struct v1_args &a, const struct v1_sorted &s, const struct v1_part &p,
                      uint32_t bit, uint64_t call)
{
    size_t choice = (size_t)p.token * a.c.topk + epa_dev_lane();
    uint32_t expert = epa_dev_lane() < a.c.topk ? (uint32_t)__ldg(a.c.expert + choice) : ~0u;
    uint32_t place = ~0u, within, rank, row;
    char *to = NULL;

    if (expert < a.c.experts) {
        within = s.before[expert] + __popc(s.bits[expert] & ((1u << bit) - 1));
        rank = expert / a.c.local;
        row = a.c.v.rank * a.max_m + s.first[expert] + within - s.first[rank * a.c.local];
        place = a.pull != 0 ? within : s.first[expert] + within;
        to = a.c.v.peer_heap[rank] + a.arrival[call % V1_POSITIONS] +
             ((uint64_t)row * a.units + p.unit) * a.unit_bytes;
    }
    if (p.unit == 0 && epa_dev_lane() < a.c.topk)
        a.place[choice] = place;
    return to;
}

/* Sends a part of a token from x to the slots of all its choices. Called by one warp. */
template <int IN>
EPA_DEV void v1_send_part(const struct v1_args &a, const struct v1_sorted &s,
                          const struct v1_part &p, uint32_t bit, uint64_t call, uint64_t *payload)
{
    enum { GROUPS = v1_groups(IN) };
    uint32_t packets = epa_packets_of(p.at.bytes);
    struct dev_raw<v1_width<IN>> raw;
    struct epa_dev_words v[GROUPS];
    char *to;

    dev_read_part<v1_width<IN>>(a.c, p, &raw);
    __syncwarp(); /* all lanes have read the previous payload */
    v1_make_payload<IN>(a, p, raw, reinterpret_cast<char *>(payload));
    to = v1_slot(a, s, p, bit, call);
    __syncwarp();
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
        if (epa_dev_has_packet(g, packets))
            v[g] = epa_dev_words_of(payload, g);
    for (uint32_t i = 0; i < a.c.topk; i++) {
        char *slot = dev_from_lane(to, (i + p.token) % a.c.topk);

        if (slot != NULL)
            epa_dev_packets_store<GROUPS>(slot, packets, v, call);
    }
}

/* Sends chunk by chunk, each with the whole block. A block takes chunks in ascending order, so that
 * its counts continue from the previous chunk. */
template <int IN>
EPA_DEV void send_chunks(const struct v1_args &a, const struct v1_sorted &s, uint64_t call)
{
    __shared__ uint32_t next;
    uint32_t chunks = (a.c.tokens + a.chunk - 1) / a.chunk, counted = 0, chunk = blockIdx.x;

    while (chunk < chunks) {
        uint32_t begin = chunk * a.chunk, n = min(a.chunk, a.c.tokens - begin);

        if (threadIdx.x == 0)
            next = a.senders + dev_ask(a.c, DEV_SENDING, call, a.senders, chunks);
        v1_take_chunk(a, s, counted, begin, n);
        counted = begin;
        for (uint32_t u = threadIdx.x / EPA_DEV_WARP; u < n * a.units; u += DEVICE_WARPS)
            v1_send_part<IN>(a, s, v1_part_at<IN>(a, begin + u / a.units, u % a.units), u / a.units,
                             call, payload_of(a));
        chunk = chunks > a.senders ? next : chunks;
        v1_leave_chunk(a, s);
    }
}

template <int IN, bool PROFILE> EPA_DEV bool send(const struct v1_args &a, uint64_t call)
{
    struct v1_sorted s = {shared, shared + a.c.experts + 1, shared + 2 * a.c.experts + 1};

    uint32_t begun = dev_begun<PROFILE>();

    if (!v1_sort(a, s))
        return false;
    v1_send_splits(a, s, call);
    uint32_t sorted = dev_begun<PROFILE>();
    send_chunks<IN>(a, s, call);
    dev_ended<PROFILE>(a.c, call, V1_QUANTISE_AND_SEND, sorted);
    if (threadIdx.x < EPA_DEV_WARP) /* one warp records the times of the block */
        dev_had_ended<PROFILE>(a.c, call, V1_SORT, begun, sorted);
    return true;
}

/* ---- receiving ---- */

/* Received splits in shared memory. A cell is the rows of a source for a local expert. Cells have
 * the order of entries: by expert, then source. */
struct v1_cells {
    uint32_t n;      /* number of cells: [local][size] */
    uint32_t *entry; /* index of the cell's first entry */
    uint32_t *place; /* index of its first row in the source's sorted order */
    uint32_t *start; /* [size]: start of the source's slice, in the same order */
};

/* Returns the source of an entry and its index in the source's sorted order. */
EPA_DEV struct v1_back v1_back_of(const struct v1_args &a, const struct v1_cells &c, uint32_t entry)
{
    uint32_t cell = device_cell_of(c.entry, c.n, entry);

    return {cell % a.c.v.size, c.place[cell] + entry - c.entry[cell]};
}

/* Copies a part from the payload in shared memory to the row of its entry. */
template <int IN>
EPA_DEV void v1_copy_payload(const struct v1_args &a, const struct v1_part &p, uint32_t entry,
                             const struct v1_back &back, const char *payload)
{
    char *row =
        dev_own(a.c.v, a.recv + (uint64_t)entry * a.row_bytes) + p.first * v1_width<IN>::BYTES;
    float *to =
        reinterpret_cast<float *>(dev_own(a.c.v, a.recv_scales + (uint64_t)entry * a.scales_bytes));
    const float *scales = reinterpret_cast<const float *>(payload + p.at.scales);

#pragma unroll
    for (int i = 0; i < v1_width<IN>::SWEEPS; i++) {
        uint32_t at = (i * EPA_DEV_WARP + epa_dev_lane()) * 16;

        if (dev_takes<v1_width<IN>>(p, i))
            epa_dev_store16(row + at, *reinterpret_cast<const uint4 *>(payload + at));
    }
    for (uint32_t g = epa_dev_lane(); g < p.scales; g += EPA_DEV_WARP)
        to[p.first / a.c.group + g] = scales[g];
    if (p.unit != 0 || epa_dev_lane() != 0)
        return;
    struct epa_origin *origin =
        reinterpret_cast<struct epa_origin *>(dev_own(a.c.v, a.origin)) + entry;

    *origin = {back.source, *reinterpret_cast<const uint32_t *>(payload + p.at.token)};
    if (a.pull == 0)
        a.back[entry] = back;
}

/* Times of a warp for its parts: start of the first wait, first arrival, last arrival. */
struct v1_since {
    uint32_t wait, work, came;
};

/* Copies a part of an entry's row from its slot. Returns false if the part did not arrive. Called
 * by one warp. */
template <int IN, bool PROFILE>
EPA_DEV bool v1_receive_part(const struct v1_args &a, const struct v1_cells &c, uint32_t entry,
                             uint32_t unit, uint64_t call, struct v1_since *since,
                             uint64_t *payload)
{
    enum { GROUPS = v1_groups(IN) };
    struct v1_part p = v1_part_at<IN>(a, 0, unit);
    struct v1_back back = v1_back_of(a, c, entry);
    uint32_t packets = epa_packets_of(p.at.bytes), row = back.place - c.start[back.source];
    struct epa_dev_wait w = {V1_DISPATCH, V1_WAIT_ROW, back.source, row};
    const char *from = dev_own(
        a.c.v, a.arrival[call % V1_POSITIONS] +
                   ((uint64_t)(back.source * a.max_m + row) * a.units + unit) * a.unit_bytes);
    struct epa_dev_words v[GROUPS];

    if (!epa_dev_packets_read<GROUPS>(a.c, from, packets, call, w, v))
        return false;
    if (PROFILE && epa_dev_lane() == 0) { /* lane 0 records the times */
        since->came = dev_begun<PROFILE>();
        since->work = since->work == 0 ? since->came : since->work;
    }
    epa_dev_words_keep<GROUPS>(v, packets, payload);
    v1_copy_payload<IN>(a, p, entry, back, reinterpret_cast<const char *>(payload));
    return true;
}

/* Waits for the split of an expert. Returns false after a time-out. Called by one thread. */
EPA_DEV bool wait_split(const struct v1_args &a, uint32_t source, uint32_t expert, uint64_t call,
                        uint32_t *rows, uint32_t *begin)
{
    const char *from = dev_own(a.c.v, v1_split(a, call, source, expert));
    struct epa_dev_wait w = {V1_DISPATCH, V1_WAIT_SPLITS, source, 0};
    uint2 split;
    bool received = epa_dev_packet16_wait(a.c, from, call, w, &split);

    *rows = split.x;
    *begin = split.y;
    return received;
}

/* Fills in the cells and counts the entries. Returns false if splits are missing. */
static __device__ bool find_cells(const struct v1_args &a, uint64_t call, const struct v1_cells &c,
                                  uint32_t *total)
{
    bool ok = true;

    *total = 0;
    for (uint32_t at = 0; at < c.n; at += DEVICE_THREADS) {
        uint32_t i = at + threadIdx.x, rows = 0, begin = 0, all, before;

        if (i < c.n)
            ok = ok && wait_split(a, i % a.c.v.size, i / a.c.v.size, call, &rows, &begin);
        before = dev_scan(rows, &all);
        if (i < c.n) {
            c.entry[i] = *total + before;
            c.place[i] = begin;
        }
        if (i < a.c.v.size) /* from the split of the first local expert */
            c.start[i] = begin;
        *total += all;
    }
    return __syncthreads_and(ok);
}

/* Publishes the views for experts and, if expert outputs are pulled, the starts for their sources.
 * Called by one block. */
EPA_DEV void publish_views(const struct v1_args &a, const struct v1_cells &c, uint32_t total)
{
    if (threadIdx.x == 0)
        *a.c.rows = total;
    for (uint32_t e = threadIdx.x; e < a.c.local; e += DEVICE_THREADS) {
        uint32_t begin = c.entry[e * a.c.v.size];

        a.c.recv_start[e] = begin;
        a.c.recv_count[e] = (e + 1 < a.c.local ? c.entry[(e + 1) * a.c.v.size] : total) - begin;
    }
    /* A signal of a later kernel makes these stores visible. */
    for (uint32_t i = threadIdx.x; i < c.n && a.pull != 0; i += DEVICE_THREADS)
        epa_dev_store(reinterpret_cast<uint32_t *>(a.c.v.peer_heap[i % a.c.v.size] + a.starts) +
                          a.c.v.rank * a.c.local + i / a.c.v.size,
                      c.entry[i]);
}

/* Receives rows. Called by all blocks; `block`: index of this block. */
template <int IN, bool PROFILE>
EPA_DEV void receive(const struct v1_args &a, uint64_t call, uint32_t block)
{
    struct v1_cells c = {a.c.experts, shared, shared + a.c.experts, shared + 2 * a.c.experts};
    uint32_t warps = gridDim.x * DEVICE_WARPS, total, all;
    struct v1_since since = {};

    if (!find_cells(a, call, c, &total))
        return;
    if (block == 0)
        publish_views(a, c, total);
    all = total * a.units;
    since.wait = dev_begun<PROFILE>();
    for (uint32_t u = dev_warp_of(block, gridDim.x), asked; u < all;
         u = dev_next(asked, warps, all)) {
        asked = dev_ask(a.c, DEV_RECEIVING, call, warps, all);
        if (!v1_receive_part<IN, PROFILE>(a, c, u / a.units, u % a.units, call, &since,
                                          payload_of(a)))
            return;
    }
    if (since.work == 0)
        return;
    dev_had_ended<PROFILE>(a.c, call, V1_WAIT, since.wait, since.came);
    dev_ended<PROFILE>(a.c, call, V1_POSTPROCESS, since.work);
}

namespace
{

template <int IN, bool PROFILE>
__global__ void __launch_bounds__(DEVICE_THREADS, 4)
    dispatch(const __grid_constant__ struct v1_args a)
{
    bool receives = (a.halves & V1_RECEIVE) != 0, ok = true;
    uint64_t call = dev_begin(a.c, false, true);

    if (blockIdx.x < a.senders)
        ok = send<IN, PROFILE>(a, call);
    __syncthreads(); /* receive() reuses the shared memory of send() */
    if (ok && receives)
        receive<IN, PROFILE>(a, call, (blockIdx.x + gridDim.x - a.senders) % gridDim.x);
    dev_end(a.c, call, receives);
}

} // namespace

#define KERNELS(in) \
    { \
        (const void *)dispatch<in, false>, (const void *)dispatch<in, true> \
    }

const void *v1_dispatch_kernel(enum device_input in, bool profile)
{
    static const void *const kernel[DEVICE_INPUTS][2] = {
        KERNELS(DEVICE_PLAIN), KERNELS(DEVICE_QUANTISE), KERNELS(DEVICE_QUANTISE_F16),
        KERNELS(DEVICE_FP8)};

    return kernel[in][profile];
}
