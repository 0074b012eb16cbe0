/* Dispatch on GPUs, with a kernel per half. dispatch_send: blocks give each choice of their tokens
 * the next row of this rank's part of the receiver's buffer, and store the message there. With
 * flag_granularity: token the first blocks count for the receivers meanwhile; with
 * flag_granularity: rank the last block to finish publishes the counts. dispatch_recv: warps copy
 * arrived rows to rows by expert. With chunks, some blocks of dispatch_send already copy rows.
 *
 * The counts of all ranks determine the start of an expert's rows from each source. A row carries
 * its index among these rows, so each warp takes a part of a row without coordination. */
#include "token_flag_dispatch.h"
#include "token_flag_send.cuh"

/* Received rows, in shared memory of the block. */
struct tf_received {
    uint32_t rows[EPA_DEVICE_RANKS];                       /* number of rows of each source */
    uint32_t first[EPA_DEVICE_RANKS], n[EPA_DEVICE_RANKS]; /* range of rows to take in now */
};

/* ---- counts ---- */

/* Returns the index of the first note for counts, after the notes for tokens, rows and outputs. */
EPA_DEV uint32_t tf_notes_of_counts(const struct tf_args &a)
{
    return a.c.notes - a.c.v.size;
}

/* Waits for the number of rows of `source` for a local expert. Called by one thread. */
EPA_DEV bool tf_count(const struct tf_args &a, uint64_t epoch, uint32_t source, uint32_t expert,
                      uint32_t *out)
{
    const char *from = dev_own(a.c.v, tf_counts_of(a, epoch, source));
    const uint64_t *word = reinterpret_cast<const uint64_t *>(from) + expert;
    struct epa_dev_wait w = {a.c.stage, TF_WAIT_COUNTS, source, expert};
    struct epa_dev_poll poll = {};
    uint64_t seen;

    while ((seen = epa_dev_load_relaxed(word)) < tf_count_flag(epoch, 0))
        if (epa_dev_poll_expired(a.c.v, &poll, a.c.timeout_ns, w, seen, epoch))
            return false;
    *out = tf_rows_of_flag(seen);
    return true;
}

/* Computes base[expert][source], the first row of the source for the expert, base[all], the end of
 * all rows, and rows[source], the number of rows of the source. Returns false if counts are
 * missing. `notes`: this block records the arrival of each source's count for its first expert. */
template <bool PROFILE>
static __device__ bool tf_count_all(const struct tf_args &a, uint64_t epoch, uint32_t *base,
                                    uint32_t *rows, bool notes)
{
    uint32_t all = a.c.experts, total = 0; /* number of pairs (expert, source) */
    uint32_t begun = __shfl_sync(EPA_DEV_ALL, dev_begun<PROFILE>(), 0);
    bool ok = true;

    if (threadIdx.x < EPA_DEVICE_RANKS)
        rows[threadIdx.x] = 0;
    for (uint32_t at = 0; at < all; at += blockDim.x) {
        uint32_t i = at + threadIdx.x, count = 0, before, sum;

        if (i < all && ok)
            ok = tf_count(a, epoch, i % a.c.v.size, i / a.c.v.size, &count);
        if (notes && i < a.c.v.size)
            dev_note<PROFILE>(a.c, epoch, tf_notes_of_counts(a) + i, begun, i, UINT32_MAX);
        before = dev_scan_of(dev_warps(), count, &sum); /* also orders rows[] = 0 for all threads */
        if (i < all)
            base[i] = total + before;
        if (count != 0)
            atomicAdd(&rows[i % a.c.v.size], count);
        total += sum;
    }
    if (threadIdx.x == 0)
        base[all] = total;
    return __syncthreads_and(ok);
}

/* Publishes the views for experts and combine_send. Called by one block. */
EPA_DEV void tf_publish_views(const struct tf_args &a, const uint32_t *base, const uint32_t *rows)
{
    if (threadIdx.x < a.c.v.size)
        a.received[threadIdx.x] = rows[threadIdx.x];
    for (uint32_t e = threadIdx.x; e < a.c.local; e += blockDim.x) {
        a.c.recv_count[e] = base[(e + 1) * a.c.v.size] - base[e * a.c.v.size];
        a.c.recv_start[e] = base[e * a.c.v.size];
    }
    if (threadIdx.x == 0)
        *a.c.rows = base[a.c.experts];
}

/* ---- rows ---- */

struct tf_row {
    uint32_t source, row;
    uint32_t token, k, expert, entry;
};

/* Waits for the part and for the line with META. *meta is valid in lane TF_META_LANE of each eight
 * lanes. Called by one warp. */
EPA_DEV bool tf_await_part(const struct tf_args &a, const char *message, const struct tf_part &p,
                           uint64_t epoch, struct epa_dev_wait w, struct epa_dev_words *v,
                           struct epa_dev_words *meta)
{
    const char *from = message + p.unit * TF_UNIT_PACKETS * EPA_PACKET;
    const char *last = message + (a.packets - 1) * EPA_PACKET;
    uint64_t wanted = a.by_token ? epoch : 0; /* flag_granularity: rank: all rows have arrived */
    struct epa_dev_poll poll = {};

    for (;;) {
        bool received, ok = true;

        epa_dev_load_pair(last + epa_dev_lane() % 8 * 16, &meta->w[0], &meta->w[1]);
        received = epa_dev_packets_load<TF_FOURS>(from, p.packets, wanted, v);
        if (__all_sync(EPA_DEV_ALL, received && (!epa_dev_ends_packet() || meta->w[1] >= wanted)))
            return true;
        if (epa_dev_lane() < 2)
            ok = epa_dev_packet_wait(a.c, epa_dev_lane() == 0 ? from : last,
                                     epa_dev_lane() == 0 ? p.packets : 1, epoch, w, &poll);
        if (!__all_sync(EPA_DEV_ALL, ok))
            return false;
    }
}

/* Reads META and computes the row's entry. Returns false if META is invalid. Called by one warp. */
EPA_DEV bool tf_read_meta(const struct tf_args &a, const uint32_t *base, struct epa_dev_words meta,
                          struct tf_row *r)
{
    uint64_t first = __shfl_sync(EPA_DEV_ALL, meta.w[0], TF_META_LANE);
    uint64_t second = __shfl_sync(EPA_DEV_ALL, meta.w[1], TF_META_LANE);
    uint32_t cell;

    r->token = (uint32_t)first;
    r->k = (uint32_t)second % 65536;
    r->expert = (uint32_t)second >> 16;
    if (r->token >= a.c.max_tokens || r->k >= a.c.topk || r->expert >= a.c.local)
        return false;
    cell = r->expert * a.c.v.size + r->source;
    r->entry = base[cell] + (uint32_t)(first >> 32);
    return r->entry < base[cell + 1];
}

/* Copies a part through shared memory, so that lanes store 16 bytes each. Called by one warp. */
EPA_DEV void tf_copy_part(const struct tf_args &a, const struct tf_row &r, const struct tf_part &p,
                          uint64_t epoch, const struct epa_dev_words *v, uint64_t *payload)
{
    char *message = dev_own(a.c.v, a.grouped + (uint64_t)r.entry * a.message_bytes);
    const char *bytes = reinterpret_cast<const char *>(payload);
    uint32_t begin = p.unit * TF_UNIT_BYTES;
    uint32_t n = begin < a.content_bytes ? min(a.content_bytes - begin, TF_UNIT_BYTES) : 0;

    epa_dev_words_keep<TF_FOURS>(v, p.packets, payload);
#pragma unroll
    for (uint32_t at = epa_dev_lane() * 16; at < TF_UNIT_BYTES; at += EPA_DEV_WARP * 16)
        if (at + 16 <= n)
            epa_dev_store16(message + begin + at, *reinterpret_cast<const uint4 *>(bytes + at));
    if (n % 16 != 0 && epa_dev_lane() == 0)
        *reinterpret_cast<uint64_t *>(message + begin + n - 8) = payload[n / 8 - 1];
    if (p.unit == 0 && epa_dev_lane() == 0) {
        uint64_t *meta = reinterpret_cast<uint64_t *>(message + a.meta_at);

        meta[0] = (uint64_t)r.token << 32 | r.source;
        meta[1] = (uint64_t)r.row << 32 | r.expert << 16 | r.k;
        meta[2] = epoch;
        a.entry[(uint64_t)r.source * a.source_rows + r.row] = r.entry;
    }
}

/* Receives a part of a row. Returns false if the part did not arrive. Called by one warp. */
template <bool PROFILE>
EPA_DEV bool tf_receive_part(const struct tf_args &a, uint64_t epoch, const uint32_t *base,
                             uint32_t source, uint32_t row, uint32_t unit, struct dev_since *since,
                             uint64_t *payload)
{
    const char *message =
        dev_own(a.c.v, a.comm + ((uint64_t)source * a.source_rows + row) * a.wire_bytes);
    struct tf_part p = tf_part_at(a.packets, unit);
    struct epa_dev_wait w = {a.c.stage, TF_WAIT_ROW, source, row};
    struct tf_row r = {source, row, 0, 0, 0, 0};
    struct epa_dev_words v[TF_FOURS], meta;
    uint32_t begun = dev_begun<PROFILE>();

    if (!tf_await_part(a, message, p, epoch, w, v, &meta))
        return false;
    dev_waited<PROFILE>(a.c, epoch, TF_AWAITING, since);
    if (!tf_read_meta(a, base, meta, &r)) {
        w.what = TF_BAD_ROW;
        if (epa_dev_lane() == 0)
            epa_dev_fault(a.c.v, EPA_ERR_MISMATCH, w, r.token, r.expert, 0);
        return false;
    }
    if (unit == 0 && epa_dev_lane() == 0)
        dev_note<PROFILE>(a.c, epoch, a.c.max_tokens + source * a.source_rows + row, begun, source,
                          r.token);
    tf_copy_part(a, r, p, epoch, v, payload);
    dev_ended<PROFILE>(a.c, epoch, TF_RECEIVING, since->work);
    return true;
}

/* Maps index `u` to a part, in the expected order of arrival: each block of a sender has one token
 * in flight, and sends its last lines first. */
EPA_DEV void tf_part_to_come(const struct tf_args &a, uint32_t u, uint32_t rows, uint32_t units,
                             uint32_t *row, uint32_t *unit)
{
    uint32_t wave = a.c.most_blocks * a.c.topk, begun = u / (wave * units) * wave;
    uint32_t n = min(wave, rows - begun);

    u -= begun * units;
    *row = begun + u % n;
    *unit = units - 1 - u / n;
}

/* work_partition: flat: warps take parts of all rows in turn. */
template <bool PROFILE>
EPA_DEV void tf_receive_flat(const struct tf_args &a, uint64_t epoch, const uint32_t *base,
                             const struct tf_received *c, uint32_t block, uint32_t blocks,
                             uint64_t *payload)
{
    uint32_t units = tf_units_of(a.packets), warps = blocks * dev_warps(), all = 0;
    struct dev_since since = {dev_begun<PROFILE>(), 0, false};
    /* in dispatch_send, the work counters belong to tokens */
    bool asks = a.c.stage == TF_DISPATCH_RECV;

    for (uint32_t s = 0; s < a.c.v.size; s++)
        all += c->n[s] * units;
    for (uint32_t u = dev_warp_of(block, blocks), asked = 0; u < all;
         u = asks ? dev_next(asked, warps, all) : u + warps) {
        uint32_t source, row, unit;

        if (asks)
            asked = dev_ask(a.c, 0, epoch, warps, all);
        tf_part_to_come(a, u, all / units, units, &row, &unit);
        tf_row_at(a.c.v.size, a.c.v.rank, c->n, row, &source, &row);
        if (!tf_receive_part<PROFILE>(a, epoch, base, source, c->first[source] + row, unit, &since,
                                      payload))
            return;
    }
}

/* work_partition: by_source: each source has the same number of blocks. */
template <bool PROFILE>
EPA_DEV void tf_receive_by_source(const struct tf_args &a, uint64_t epoch, const uint32_t *base,
                                  const struct tf_received *c, uint32_t block, uint32_t blocks,
                                  uint64_t *payload)
{
    uint32_t units = tf_units_of(a.packets);
    struct dev_since since = {dev_begun<PROFILE>(), 0, false};

    for (uint32_t s = block % a.c.v.size; s < a.c.v.size; s += blocks) {
        uint32_t number = block / a.c.v.size,
                 of = s < blocks ? (blocks - s - 1) / a.c.v.size + 1 : 1;

        for (uint32_t u = dev_warp_of(number, of); u < c->n[s] * units; u += of * dev_warps())
            if (!tf_receive_part<PROFILE>(a, epoch, base, s, c->first[s] + u / units, u % units,
                                          &since, payload))
                return;
    }
}

/* Returns the number of rows that dispatch_send takes in, for a source with `rows` rows. */
EPA_DEV uint32_t early_rows(const struct tf_args &a, uint64_t epoch, uint32_t source, uint32_t rows)
{
    const uint64_t *word = a.c.v.peer_signal[a.c.v.rank] + tf_early_signal(a, epoch, source);

    return a.chunks > 1 && (a.far >> source & 1) != 0 ? tf_rows_of_flag(epa_dev_load_acquire(word))
                                                      : tf_early_rows(rows, a.chunks);
}

/* Waits for the counts and for all chunks but the last of ranks of other nodes. dispatch_recv does
 * not need this wait: it follows a kernel that waited for all their data. */
EPA_DEV bool wait_far(const struct tf_args &a, uint64_t epoch)
{
    bool ok = true;

    if (threadIdx.x < a.c.v.size && (a.far >> threadIdx.x & 1) != 0)
        ok =
            epa_dev_wait_for(a.c.v, tf_early_signal(a, epoch, threadIdx.x), tf_count_flag(epoch, 0),
                             a.c.timeout_ns, {a.c.stage, TF_WAIT_CHUNKS, threadIdx.x, 0});
    return __syncthreads_and(ok);
}

/* Receives rows as block `block` of `blocks`: the rows of all chunks but the last in dispatch_send,
 * the remaining rows in dispatch_recv. */
template <bool PROFILE>
EPA_DEV void tf_receive(const struct tf_args &a, uint64_t epoch, uint32_t block, uint32_t blocks,
                        uint32_t *base, char *payloads)
{
    __shared__ struct tf_received received;
    uint64_t *payload =
        reinterpret_cast<uint64_t *>(payloads) + threadIdx.x / EPA_DEV_WARP * (TF_UNIT_BYTES / 8);
    bool now = a.c.stage == TF_DISPATCH_SEND;
    bool ok = a.by_token ||
              dev_wait_all(a.c, epoch % 2 * a.c.v.size, tf_count_flag(epoch, 0), TF_WAIT_ROWS);

    if (now && a.far != 0)
        ok = wait_far(a, epoch);
    if (!ok || !tf_count_all<PROFILE>(a, epoch, base, received.rows, block == 0 && !now))
        return;
    if (block == 0 && !now)
        tf_publish_views(a, base, received.rows);
    if (threadIdx.x < a.c.v.size) {
        uint32_t rows = received.rows[threadIdx.x];
        uint32_t early = early_rows(a, epoch, threadIdx.x, rows);

        received.first[threadIdx.x] = now ? 0 : early;
        received.n[threadIdx.x] = now ? early : rows - early;
    }
    __syncthreads();
    if (a.flat)
        tf_receive_flat<PROFILE>(a, epoch, base, &received, block, blocks, payload);
    else
        tf_receive_by_source<PROFILE>(a, epoch, base, &received, block, blocks, payload);
}

/* ---- the kernels ---- */

/* Shared memory of the block: tables by expert, then a message, or a part of a message per warp. */
extern __shared__ __align__(16) uint32_t shared[];

EPA_DEV char *payload_of(const struct tf_args &a)
{
    return reinterpret_cast<char *>(shared) + a.payload;
}

/* counter_reset: inline: clears the counters of the sending half, which has ended. */
EPA_DEV void clear_counters(const struct tf_args &a)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i == 0)
        a.counters->arrived = 0;
    if (i < a.c.v.size)
        a.counters->sent[i] = 0;
    for (; i < a.c.experts; i += gridDim.x * blockDim.x)
        a.counters->chosen[i] = 0;
}

template <int IN, bool PROFILE> EPA_DEV void send(const struct tf_args &a, uint64_t epoch)
{
    /* Blocks that count get the last tokens. */
    uint32_t block = (blockIdx.x + a.senders - a.publishers) % a.senders;
    uint32_t begun = dev_begun<PROFILE>();

    if (blockIdx.x < a.publishers) {
        tf_publish(a, epoch, shared);
        dev_ended<PROFILE>(a.c, epoch, TF_COUNTING, begun);
        begun = dev_begun<PROFILE>();
    }
    tf_send<IN, PROFILE>(a, epoch, block, a.senders, shared, payload_of(a));
    if (!a.by_token)
        tf_signal_when_all_sent(a, epoch);
    dev_ended<PROFILE>(a.c, epoch, TF_SENDING, begun);
}

template <int IN, bool PROFILE>
static __global__ void __launch_bounds__(TF_THREADS, 2)
    dispatch_send(const __grid_constant__ struct tf_args a)
{
    uint64_t epoch = dev_begin(a.c, false, true);
    bool alone = gridDim.x == a.senders; /* no block only receives */

    if (blockIdx.x < a.senders)
        send<IN, PROFILE>(a, epoch);
    __syncthreads(); /* tf_receive() reuses the shared memory of send() */
    if (a.chunks > 1 && a.last && (alone || blockIdx.x >= a.senders))
        tf_receive<PROFILE>(a, epoch, alone ? blockIdx.x : blockIdx.x - a.senders,
                            alone ? gridDim.x : gridDim.x - a.senders, shared, payload_of(a));
}

/* May run beside dispatch_send, which allows its launch only after all earlier kernels have ended.
 * The words that peers store carry the epoch, so they need no other order. */
template <bool PROFILE>
static __global__ void __launch_bounds__(TF_THREADS, 2)
    dispatch_recv(const __grid_constant__ struct tf_args a)
{
    uint64_t epoch = dev_begin(a.c, false, false);

    tf_receive<PROFILE>(a, epoch, blockIdx.x, gridDim.x, shared, payload_of(a));
    epa_dev_after_kernel(); /* the end of this half implies the end of the sending half */
    dev_end(a.c, epoch, true);
    if (a.folded)
        clear_counters(a);
}

#define KERNELS(in) \
    { \
        (const void *)dispatch_send<in, false>, (const void *)dispatch_send<in, true> \
    }

const void *tf_dispatch_send_kernel(enum device_input in, bool profile)
{
    static const void *const kernel[DEVICE_INPUTS][2] = {
        KERNELS(DEVICE_PLAIN), KERNELS(DEVICE_QUANTISE), KERNELS(DEVICE_QUANTISE_F16),
        KERNELS(DEVICE_FP8)};

    return kernel[in][profile];
}

const void *tf_dispatch_recv_kernel(bool profile)
{
    return profile ? (const void *)dispatch_recv<true> : (const void *)dispatch_recv<false>;
}
