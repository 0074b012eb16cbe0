/* Of the kernel of fused: what is not multiplied. How many rows go where, dispatch, and combine. */
#ifndef FUSED_TOKENS_CUH
#define FUSED_TOKENS_CUH

#include <epa2a/device.cuh>
#include <epa2a/sm90.cuh>

#include "../../common/algo_cuda.cuh"
#include "fused_device.h"

/* What a block knows of a call, in its shared memory. */
struct fused_tables {
    uint32_t *send_row; /* [experts] where my next row of an expert begins at its rank */
    uint32_t *list_at;  /* [experts] my choices that stand in the list before */
    uint32_t *rows;     /* [local] */
    uint32_t *block_at; /* [local + 1] blocks of rows before my expert */
    uint32_t *unit_at;  /* [units + 1] blocks before a unit; it is of one expert */
    uint32_t *scalars;
};

enum { FUSED_UNITS, FUSED_LAG, FUSED_ITEMS, FUSED_CHOICES, FUSED_SCALARS };

EPA_DEV struct fused_tables fused_tables_at(const struct fused_args &a, char *at)
{
    struct fused_tables t;

    t.scalars = reinterpret_cast<uint32_t *>(at);
    t.send_row = t.scalars + FUSED_SCALARS;
    t.list_at = t.send_row + a.c.experts;
    t.rows = t.list_at + a.c.experts;
    t.block_at = t.rows + a.c.local;
    t.unit_at = t.block_at + a.c.local + 1;
    return t;
}

EPA_DEV uint32_t *fused_sent(const struct fused_args &a)
{
    return a.state + FUSED_COUNTERS;
}

EPA_DEV uint32_t *fused_acts(const struct fused_args &a)
{
    return fused_sent(a) + a.c.experts;
}

EPA_DEV uint32_t *fused_outputs(const struct fused_args &a)
{
    return fused_acts(a) + a.blocks;
}

EPA_DEV bool fused_failed(const struct fused_args &a)
{
    return *(volatile uint32_t *)&a.c.v.fault->claimed != 0;
}

/* Notes when a warp begins and ends a phase: the first beginning and the last end. One lane. */
EPA_DEV void fused_stamp(const struct fused_args &a, enum fused_phase phase, bool ends)
{
    uint32_t warp = threadIdx.x / EPA_DEV_WARP;

    if (a.c.stamps == NULL || epa_dev_lane() != 0 || warp >= DEVICE_WARPS)
        return;
    a.c.stamps[blockIdx.x * DEVICE_WARPS + warp].at[phase][ends] = epa_dev_time();
}

/* Until a counter of this GPU, or one that peers add to, is at least `wanted`. One thread. */
EPA_DEV bool fused_wait_count(const struct fused_args &a, const uint32_t *word, uint32_t wanted,
                              struct epa_dev_wait w)
{
    struct epa_dev_poll poll = {};
    uint32_t seen;

    while ((seen = epa_dev_load_acquire32(word)) < wanted)
        if (epa_dev_poll_expired(a.c.v, &poll, a.c.timeout_ns, w, seen, wanted))
            return false;
    return true;
}

EPA_DEV bool fused_wait_epoch(const struct fused_args &a, const uint64_t *word, uint64_t wanted,
                              struct epa_dev_wait w, uint64_t *seen)
{
    struct epa_dev_poll poll = {};

    while ((*seen = epa_dev_load_acquire(word)) < wanted)
        if (epa_dev_poll_expired(a.c.v, &poll, a.c.timeout_ns, w, *seen, wanted))
            return false;
    return true;
}

/* ---- counts ---- */

EPA_DEV uint32_t fused_count_words(const struct fused_args &a)
{
    return a.c.experts + a.c.v.size;
}

EPA_DEV void fused_clear(uint32_t *words, uint32_t n)
{
    for (uint32_t i = threadIdx.x; i < n; i += FUSED_THREADS)
        words[i] = 0;
}

/* The first block: begins the call with its counters at 0, and sends all ranks how many rows
 * each expert gets of this one, and how many tokens each rank. `count` in shared memory. */
static __device__ __noinline__ void fused_publish(const struct fused_args &a, uint64_t call,
                                                  uint32_t *count)
{
    uint32_t words = fused_count_words(a);

    fused_clear(count, words);
    fused_clear(a.state, FUSED_COUNTERS + a.c.experts + 2 * a.blocks);
    fused_clear(reinterpret_cast<uint32_t *>(dev_own(a.c.v, a.arrived)), a.blocks);
    __syncthreads();
    for (uint32_t t = threadIdx.x; t < a.c.tokens; t += FUSED_THREADS) {
        uint32_t ranks = 0;

        for (uint32_t k = 0; k < a.c.topk; k++) {
            uint32_t e = (uint32_t)__ldg(a.c.expert + (size_t)t * a.c.topk + k);

            if (e >= a.c.experts)
                continue;
            atomicAdd(&count[e], 1u);
            ranks |= 1u << e / a.c.local;
        }
        for (; ranks != 0; ranks &= ranks - 1)
            atomicAdd(&count[a.c.experts + __ffs(ranks) - 1], 1u);
    }
    __syncthreads();
    /* What the block has cleared is so before a rank that reads these can add to it. */
    epa_dev_fence();
    for (uint32_t i = threadIdx.x; i < words * a.c.v.size; i += FUSED_THREADS)
        epa_dev_store_pair(a.c.v.peer_heap[i / words] + a.counts[call % 2] +
                               ((uint64_t)a.c.v.rank * words + i % words) * 16,
                           count[i % words], call);
}

EPA_DEV bool fused_read_count(const struct fused_args &a, uint64_t call, uint32_t source,
                              uint32_t word, uint32_t *out)
{
    const char *from =
        dev_own(a.c.v, a.counts[call % 2]) + ((uint64_t)source * fused_count_words(a) + word) * 16;
    struct epa_dev_wait w = {0, FUSED_WAIT_COUNTS, source, word};
    struct epa_dev_poll poll = {};
    uint64_t value, seen;

    for (;;) {
        epa_dev_load_pair(from, &value, &seen);
        if (seen >= call)
            break;
        if (epa_dev_poll_expired(a.c.v, &poll, a.c.timeout_ns, w, seen, call))
            return false;
    }
    *out = (uint32_t)value;
    return true;
}

/* The sum of the values of lower lanes; *total: of all. */
EPA_DEV uint32_t fused_scan(uint32_t value, uint32_t *total)
{
    uint32_t sum = value;

    for (uint32_t step = 1; step < EPA_DEV_WARP; step *= 2) {
        uint32_t other = __shfl_up_sync(EPA_DEV_ALL, sum, step);

        sum += epa_dev_lane() >= step ? other : 0;
    }
    *total = __shfl_sync(EPA_DEV_ALL, sum, EPA_DEV_WARP - 1);
    return sum - value;
}

/* One warp: where rows of a rank's experts begin, `total` of each; experts begin at a block. */
template <uint32_t ROWS>
EPA_DEV bool fused_place_rank(const struct fused_args &a, uint32_t rank, const uint32_t *total,
                              const struct fused_tables &t)
{
    uint32_t base = 0, sum;

    for (uint32_t i = epa_dev_lane(); i - epa_dev_lane() < a.c.local; i += EPA_DEV_WARP) {
        bool has = i < a.c.local;
        uint32_t e = rank * a.c.local + i, n = has ? total[e] : 0;
        uint32_t at = base + fused_scan((n + ROWS - 1) / ROWS, &sum);

        if (has)
            t.send_row[e] += at * ROWS;
        if (has && rank == a.c.v.rank) {
            t.block_at[i] = at;
            t.rows[i] = n;
        }
        base += sum;
    }
    if (rank == a.c.v.rank && epa_dev_lane() == 0)
        t.block_at[a.c.local] = base;
    if (base <= a.blocks)
        return true;
    if (epa_dev_lane() == 0)
        epa_dev_fault(a.c.v, EPA_ERR_CONFIG, {0, FUSED_WAIT_ROOM, rank, 0}, base * ROWS,
                      a.blocks * ROWS, 0);
    return false;
}

/* One warp: blocks that read the same weights, a few at a time. */
EPA_DEV void fused_place_units(const struct fused_args &a, const struct fused_tables &t)
{
    uint32_t units = 0, sum, low = 1, high;

    for (uint32_t i = epa_dev_lane(); i - epa_dev_lane() < a.c.local; i += EPA_DEV_WARP) {
        bool has = i < a.c.local;
        uint32_t n = has ? t.block_at[i + 1] - t.block_at[i] : 0;
        uint32_t n_units = (n + a.unit_blocks - 1) / a.unit_blocks;
        uint32_t at = units + fused_scan(n_units, &sum);

        for (uint32_t u = 0; u < n_units; u++)
            t.unit_at[at + u] = t.block_at[i] + u * a.unit_blocks;
        units += sum;
    }
    if (epa_dev_lane() == 0)
        t.unit_at[units] = t.block_at[a.c.local];
    __syncwarp();
    /* As many units as it takes to be that many tiles ahead. */
    for (high = units; low < high;) {
        uint32_t middle = (low + high) / 2;

        if (t.unit_at[middle] * a.up_tiles >= a.lag_tiles)
            high = middle;
        else
            low = middle + 1;
    }
    if (epa_dev_lane() == 0) {
        t.scalars[FUSED_UNITS] = units;
        t.scalars[FUSED_LAG] = low;
    }
}

/* One warp: the list has expert 0 of each rank, from this one on, then expert 1 of each... */
EPA_DEV void fused_place_list(const struct fused_args &a, const uint32_t *own,
                              const struct fused_tables &t)
{
    uint32_t base = 0, sum;

    for (uint32_t i = epa_dev_lane(); i - epa_dev_lane() < a.c.experts; i += EPA_DEV_WARP) {
        bool has = i < a.c.experts;
        uint32_t rank = (a.c.v.rank + i % a.c.v.size) % a.c.v.size;
        uint32_t e = rank * a.c.local + i / a.c.v.size, at;

        at = base + fused_scan(has ? own[e] : 0, &sum);
        if (has)
            t.list_at[e] = at;
        base += sum;
    }
    if (epa_dev_lane() == 0)
        t.scalars[FUSED_CHOICES] = base;
}

/* All of the block; `scratch` in shared memory: twice the words of experts. */
template <uint32_t ROWS>
static __device__ __noinline__ bool fused_prepare(const struct fused_args &a, uint64_t call,
                                                  uint32_t *scratch, const struct fused_tables &t)
{
    uint32_t *total = scratch, *own = scratch + a.c.experts, warp = threadIdx.x / EPA_DEV_WARP;
    bool ok = true;

    for (uint32_t e = threadIdx.x; e < a.c.experts && ok; e += FUSED_THREADS) {
        uint32_t sum = 0, n = 0;

        for (uint32_t r = 0; r < a.c.v.size && ok; r++) {
            ok = fused_read_count(a, call, r, e, &n);
            if (r == a.c.v.rank) {
                t.send_row[e] = sum;
                own[e] = n;
            }
            sum += n;
        }
        total[e] = sum;
    }
    if (threadIdx.x == FUSED_THREADS - 1) {
        uint32_t sum = 0, n = 0;

        for (uint32_t r = 0; r < a.c.v.size && ok; r++) {
            ok = fused_read_count(a, call, r, a.c.experts + a.c.v.rank, &n);
            sum += n;
        }
        t.scalars[FUSED_ITEMS] = sum;
    }
    if (!__syncthreads_and(ok))
        return false;
    for (uint32_t r = warp; r < a.c.v.size; r += FUSED_THREADS / EPA_DEV_WARP)
        ok = fused_place_rank<ROWS>(a, r, total, t) && ok;
    if (warp == FUSED_THREADS / EPA_DEV_WARP - 1)
        fused_place_list(a, own, t);
    if (!__syncthreads_and(ok))
        return false;
    if (warp == 0)
        fused_place_units(a, t);
    __syncthreads();
    return true;
}

/* ---- dispatch ---- */

/* A warp that sends tokens: which of all, and how many there are; `staged`: shared memory. */
struct fused_mover {
    uint32_t index, of;
    float *staged;
};

/* A lane's choice of a token, and where its row goes. */
struct fused_choice {
    uint32_t expert, row;
    bool sent;
    char *to;
};

/* Channels `begin` to `end`, multiples of 128, of the row of x to the lanes' places, those in
 * `lanes`. One warp. */
template <int IN, int SWEEPS>
EPA_DEV void fused_store_row(const struct fused_args &a, uint32_t token, uint32_t begin,
                             uint32_t end, uint32_t lanes, char *to, float *staged)
{
    enum {
        QUANTISES = IN == DEVICE_QUANTISE || IN == DEVICE_QUANTISE_F16,
        HALVES = QUANTISES ? 2 : 1
    };
    constexpr uint32_t BYTES = IN == DEVICE_PLAIN ? 2 : 1; /* of a channel that cross */
    uint32_t groups = a.c.hidden / FUSED_HALF, lane = epa_dev_lane(), bytes = end * BYTES;
    const char *x = static_cast<const char *>(a.c.x) + (size_t)token * a.c.hidden * BYTES * HALVES;

    for (uint32_t from = begin * BYTES; from < bytes; from += SWEEPS * 512) {
        uint4 v[SWEEPS][HALVES];

#pragma unroll
        for (int s = 0; s < SWEEPS; s++)
#pragma unroll
            for (int h = 0; h < HALVES; h++) {
                /* Those beyond load what nobody uses: loads do not wait for each other so. */
                uint32_t at = min(from + s * 512 + lane * 16, bytes - 16);

                v[s][h] = __ldg(reinterpret_cast<const uint4 *>(x + at * HALVES + h * 16));
            }
#pragma unroll
        for (int s = 0; s < SWEEPS; s++) {
            uint32_t at = from + s * 512 + lane * 16;

            if (from + s * 512 >= bytes)
                break;
            if (QUANTISES) {
                float scale;

                v[s][0] = epa_dev_quantise16<IN == DEVICE_QUANTISE_F16>(v[s][0], v[s][HALVES - 1],
                                                                        FUSED_HALF / 16, &scale);
                if (lane % 8 == 0 && at < bytes)
                    staged[at / FUSED_HALF] = scale;
            }
            for (uint32_t left = lanes; left != 0; left &= left - 1) {
                char *row = dev_from_lane(to, __ffs(left) - 1);

                if (at < bytes)
                    epa_dev_store16(row + at, v[s][0]);
            }
        }
    }
    if (IN == DEVICE_PLAIN)
        return;
    __syncwarp();
    for (uint32_t left = lanes; left != 0; left &= left - 1) {
        char *row = dev_from_lane(to, __ffs(left) - 1) + a.scales_at;

        for (uint32_t g = begin / FUSED_HALF + lane; g < end / FUSED_HALF; g += EPA_DEV_WARP)
            reinterpret_cast<float *>(row)[g] =
                IN == DEVICE_FP8 ? __ldg(a.c.x_scale + (size_t)token * groups + g) : staged[g];
    }
    __syncwarp();
}

/* The choices of a token, one a lane; `wanted`: which of them are to be sent. */
EPA_DEV struct fused_choice fused_choice_of(const struct fused_args &a, uint32_t token,
                                            uint32_t wanted, struct fused_meta *meta)
{
    struct fused_choice c = {~0u, 0, false, NULL};
    uint32_t rank, here = 0, before = 0, lane = epa_dev_lane();
    size_t at = (size_t)token * a.c.topk + lane;

    if (lane < a.c.topk) {
        c.expert = (uint32_t)__ldg(a.c.expert + at);
        meta->weight = __ldg(a.c.weight + at);
    }
    c.sent = c.expert < a.c.experts;
    rank = c.sent ? c.expert / a.c.local : ~0u;
    for (uint32_t k = 0; k < a.c.topk; k++) {
        bool same = __shfl_sync(EPA_DEV_ALL, rank, k) == rank;

        here += same;
        before += same && k < lane;
    }
    c.sent = c.sent && (wanted >> lane & 1) != 0;
    meta->slot = a.c.v.rank * a.c.max_tokens + token;
    meta->choice = before | here << 16;
    return c;
}

EPA_DEV char *fused_row_at(const struct fused_args &a, uint32_t expert, uint32_t row)
{
    return a.c.v.peer_heap[expert / a.c.local] + a.recv + (uint64_t)row * a.message_bytes;
}

EPA_DEV void fused_store_meta(const struct fused_args &a, char *row, const struct fused_meta &meta)
{
    epa_dev_store16(row + a.meta_at,
                    make_uint4(meta.slot, meta.choice, __float_as_uint(meta.weight), 0));
}

/* A row as it is sent. One warp. */
EPA_DEV void fused_copy_row(const char *from, char *to, uint32_t bytes)
{
    enum { SWEEPS = 8 };

    for (uint32_t at = epa_dev_lane() * 16; at < bytes; at += SWEEPS * 512) {
        uint4 v[SWEEPS];

#pragma unroll
        for (int s = 0; s < SWEEPS; s++)
            v[s] = epa_dev_load16(from + min(at + s * 512, bytes - 16));
#pragma unroll
        for (int s = 0; s < SWEEPS; s++)
            if (at + s * 512 < bytes)
                epa_dev_store16(to + at + s * 512, v[s]);
    }
}

/* A row has been sent to `expert`, which the block that it is in counts. After a __syncwarp() of
 * those that stored it. */
template <uint32_t ROWS>
EPA_DEV void fused_arrive(const struct fused_args &a, uint32_t expert, uint32_t row)
{
    uint32_t *arrived =
        reinterpret_cast<uint32_t *>(a.c.v.peer_heap[expert / a.c.local] + a.arrived);

    epa_dev_add_release32(arrived + row / ROWS, 1);
}

/* Few tokens: each is read once, and goes to all of its experts. */
template <int IN, uint32_t ROWS>
EPA_DEV void fused_dispatch(const struct fused_args &a, const struct fused_tables &t,
                            const struct fused_mover &m)
{
    for (uint32_t token = m.index; token < a.c.tokens; token += m.of) {
        struct fused_meta meta = {};
        struct fused_choice c = fused_choice_of(a, token, ~0u, &meta);

        if (c.sent) {
            c.row = t.send_row[c.expert] + atomicAdd(fused_sent(a) + c.expert, 1u);
            c.to = fused_row_at(a, c.expert, c.row);
            fused_store_meta(a, c.to, meta);
        }
        fused_store_row<IN, 7>(a, token, 0, a.c.hidden, __ballot_sync(EPA_DEV_ALL, c.sent), c.to,
                               m.staged);
        __syncwarp();
        if (c.sent)
            fused_arrive<ROWS>(a, c.expert, c.row);
    }
}

/* Fewer tokens than blocks, or not many more: the warps that multiply, `warp` of them this one,
 * share a token. */
template <int IN, uint32_t ROWS>
EPA_DEV void fused_dispatch_spread(const struct fused_args &a, const struct fused_tables &t,
                                   uint32_t warp, uint32_t *rows, float *staged)
{
    uint32_t groups = a.c.hidden / FUSED_HALF;
    uint32_t own = (groups + FUSED_MATH_WARPS - 1) / FUSED_MATH_WARPS * FUSED_HALF;
    uint32_t begin = min(warp * own, a.c.hidden), end = min(begin + own, a.c.hidden);

    for (uint32_t token = blockIdx.x; token < a.c.tokens; token += gridDim.x) {
        struct fused_meta meta = {};
        struct fused_choice c = fused_choice_of(a, token, ~0u, &meta);

        if (c.sent && warp == 0)
            rows[epa_dev_lane()] = t.send_row[c.expert] + atomicAdd(fused_sent(a) + c.expert, 1u);
        epa_dev_named_sync(3, FUSED_MATH_WARPS * EPA_DEV_WARP);
        if (c.sent) {
            c.row = rows[epa_dev_lane()];
            c.to = fused_row_at(a, c.expert, c.row);
            if (warp == 0)
                fused_store_meta(a, c.to, meta);
        }
        if (begin < end)
            fused_store_row<IN, 2>(a, token, begin, end, __ballot_sync(EPA_DEV_ALL, c.sent), c.to,
                                   staged);
        __syncwarp();
        if (c.sent)
            fused_arrive<ROWS>(a, c.expert, c.row);
        epa_dev_named_sync(3, FUSED_MATH_WARPS * EPA_DEV_WARP); /* rows[] has been read */
    }
}

/* Many tokens are quantised before they are sent, each once. */
template <int IN>
EPA_DEV void fused_quantise(const struct fused_args &a, const struct fused_mover &m)
{
    for (uint32_t token = m.index; token < a.c.tokens; token += m.of)
        fused_store_row<IN, 4>(a, token, 0, a.c.hidden, 1,
                               a.quantised + (size_t)token * a.message_bytes, m.staged);
}

/* Then rows of the experts that are first, first. */
enum { FUSED_BATCH = 4 };

template <int IN, uint32_t ROWS>
EPA_DEV bool fused_dispatch_sorted(const struct fused_args &a, const struct fused_tables &t,
                                   const struct fused_mover &m)
{
    uint32_t all = a.c.tokens * a.c.topk, choices = t.scalars[FUSED_CHOICES];
    uint32_t lane = epa_dev_lane();
    bool ok = true;

    for (uint32_t i = m.index * EPA_DEV_WARP + lane; i < all; i += m.of * EPA_DEV_WARP) {
        uint32_t e = (uint32_t)__ldg(a.c.expert + i);

        if (e < a.c.experts)
            a.list[t.list_at[e] + atomicAdd(fused_sent(a) + e, 1u)] = i;
    }
    __syncwarp();
    if (lane == 0) {
        /* And the block has quantised its tokens. */
        epa_dev_add_release_gpu(a.state + FUSED_LISTED, 1);
        ok = fused_wait_count(a, a.state + FUSED_LISTED, m.of, {0, FUSED_WAIT_LIST, 0, 0});
    }
    if (!__shfl_sync(EPA_DEV_ALL, ok, 0))
        return false;
    for (uint32_t i = m.index * FUSED_BATCH; i < choices; i += m.of * FUSED_BATCH) {
        uint32_t expert = ~0u, row = 0; /* that this lane signals */

        for (uint32_t b = 0; b < FUSED_BATCH && i + b < choices; b++) {
            uint32_t choice = __ldcg(a.list + i + b), token = choice / a.c.topk;
            uint32_t who = choice % a.c.topk, e, at;
            struct fused_meta meta = {};
            struct fused_choice c = fused_choice_of(a, token, 1u << who, &meta);
            char *to;

            e = __shfl_sync(EPA_DEV_ALL, c.expert, who);
            at = t.send_row[e] + (i + b - t.list_at[e]);
            to = fused_row_at(a, e, at);
            if (lane == who)
                fused_store_meta(a, to, meta);
            if (lane == b) {
                expert = e;
                row = at;
            }
            if (IN == DEVICE_PLAIN)
                fused_copy_row(static_cast<const char *>(a.c.x) + (size_t)token * a.meta_at, to,
                               a.meta_at);
            else if (IN == DEVICE_FP8)
                fused_store_row<IN, 4>(a, token, 0, a.c.hidden, 1, to, m.staged);
            else
                fused_copy_row(a.quantised + (size_t)token * a.message_bytes, to, a.meta_at);
        }
        __syncwarp();
        if (expert != ~0u)
            fused_arrive<ROWS>(a, expert, row);
    }
    return true;
}

/* ---- combine ---- */

/* Rows of a block that are in use, and its expert. */
template <uint32_t ROWS>
EPA_DEV uint32_t fused_block_rows(const struct fused_args &a, const struct fused_tables &t,
                                  uint32_t block, uint32_t *expert)
{
    *expert = device_cell_of(t.block_at, a.c.local, block);
    return min(ROWS, t.rows[*expert] - (block - t.block_at[*expert]) * ROWS);
}

/* A block whose outputs are complete: a token that has all of its outputs here is queued. One
 * warp. */
template <uint32_t ROWS>
EPA_DEV void fused_complete(const struct fused_args &a, uint64_t call, uint32_t block,
                            uint32_t rows)
{
    enum { EACH = ROWS / EPA_DEV_WARP };
    const char *first = dev_own(a.c.v, a.recv + (uint64_t)block * ROWS * a.message_bytes);
    uint32_t slot[EACH], n[EACH], before[EACH];
    uint4 meta[EACH];

#pragma unroll
    for (int i = 0; i < EACH; i++) {
        uint32_t r = min(i * EPA_DEV_WARP + epa_dev_lane(), rows - 1);

        meta[i] = epa_dev_load16(first + (uint64_t)r * a.message_bytes + a.meta_at);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        uint32_t r = i * EPA_DEV_WARP + epa_dev_lane();

        slot[i] = meta[i].x;
        n[i] = meta[i].y >> 16;
        if (r < rows)
            a.place[(size_t)slot[i] * a.c.topk + (meta[i].y & 0xffff)] = {
                block * ROWS + r, __uint_as_float(meta[i].z)};
    }
    __threadfence();
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (i * EPA_DEV_WARP + epa_dev_lane() < rows)
            before[i] = atomicAdd(a.done + slot[i], 1u);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (i * EPA_DEV_WARP + epa_dev_lane() < rows && before[i] + 1 == n[i]) {
            a.done[slot[i]] = 0; /* for the next call */
            __threadfence();
            epa_dev_store_release(a.queue + atomicAdd(a.state + FUSED_COMPLETE, 1u),
                                  call << 32 | (uint64_t)n[i] << 26 | slot[i]);
        }
    __syncwarp();
}

/* Blocks that a warp watches until they are complete, one after the other. */
struct fused_watch {
    uint32_t block, step, blocks;
};

/* Has its next block become complete? One warp. */
template <uint32_t ROWS>
EPA_DEV void fused_look(const struct fused_args &a, uint64_t call, const struct fused_tables &t,
                        struct fused_watch *w)
{
    uint32_t seen = 0, expert;

    if (w->block >= w->blocks)
        return;
    if (epa_dev_lane() == 0)
        seen = epa_dev_load_acquire32(fused_outputs(a) + w->block);
    if (__shfl_sync(EPA_DEV_ALL, seen, 0) != 2 * a.down_tiles || fused_failed(a))
        return;
    fused_complete<ROWS>(a, call, w->block, fused_block_rows<ROWS>(a, t, w->block, &expert));
    w->block += w->step;
}

/* Until the i-th item of the queue is there; i past the last: until no block is watched. One warp. */
template <uint32_t ROWS>
EPA_DEV bool fused_wait_item(const struct fused_args &a, uint64_t call,
                             const struct fused_tables &t, struct fused_watch *w, uint32_t i,
                             uint64_t *item)
{
    bool last = i >= t.scalars[FUSED_ITEMS];
    struct epa_dev_poll poll = {};
    uint64_t seen = 0;

    for (;;) {
        bool done = last && w->block >= w->blocks, expired = false;

        if (epa_dev_lane() == 0 && !last) {
            seen = epa_dev_load_acquire(a.queue + i);
            done = seen >= call << 32;
        }
        if (__shfl_sync(EPA_DEV_ALL, done, 0))
            break;
        if (epa_dev_lane() == 0)
            expired = epa_dev_poll_expired(a.c.v, &poll, a.c.timeout_ns,
                                           {0, FUSED_WAIT_OUTPUTS, 0, i}, seen, call << 32);
        if (__shfl_sync(EPA_DEV_ALL, expired, 0))
            return false;
        fused_look<ROWS>(a, call, t, w);
    }
    *item = __shfl_sync(EPA_DEV_ALL, (unsigned long long)seen, 0);
    return true;
}

/* The next of what warps take in turn. One warp. */
EPA_DEV uint32_t fused_take(const struct fused_args &a, uint32_t counter)
{
    uint32_t i = 0;

    if (epa_dev_lane() == 0)
        i = atomicInc(a.state + counter, INT32_MAX);
    return __shfl_sync(EPA_DEV_ALL, i, 0);
}

/* Adds up parts of rows of 16 bits, `bytes` of them, one for each set bit of `lanes`, which has its
 * pointer and its weight, in their order. One warp. */
template <bool F16, int SWEEPS>
EPA_DEV void fused_reduce(uint32_t lanes, const char *row, float weight, char *to, uint32_t bytes)
{
    enum { MANY = 4 };
    uint32_t lane = epa_dev_lane();

    for (uint32_t from = 0; from < bytes; from += SWEEPS * 512) {
        float sum[SWEEPS][8] = {};

        for (uint32_t left = lanes; left != 0;) {
            uint4 v[SWEEPS][MANY];
            float w[MANY];
            uint32_t n = min((uint32_t)MANY, (uint32_t)__popc(left)), who = 0;

            /* All leave before the first is used; those beyond are loaded again, for nothing. */
#pragma unroll
            for (int i = 0; i < MANY; i++) {
                who = left != 0 ? __ffs(left) - 1 : who;
                const char *p = dev_from_lane(row, who);

                w[i] = __shfl_sync(EPA_DEV_ALL, weight, who);
#pragma unroll
                for (int s = 0; s < SWEEPS; s++)
                    v[s][i] = epa_dev_load16(p + min(from + s * 512 + lane * 16, bytes - 16));
                left &= left - 1;
            }
#pragma unroll
            for (int i = 0; i < MANY; i++) {
                if (i >= n)
                    break;
#pragma unroll
                for (int s = 0; s < SWEEPS; s++) {
                    float value[8];

                    epa_dev_unpack<F16>(v[s][i], value);
                    dev_add8(value, w[i], sum[s]);
                }
            }
        }
#pragma unroll
        for (int s = 0; s < SWEEPS; s++)
            if (from + s * 512 + lane * 16 < bytes)
                epa_dev_store16(to + from + s * 512 + lane * 16, epa_dev_pack<F16>(sum[s]));
    }
}

/* Bytes of a row before a part, and in it. */
EPA_DEV uint32_t fused_part_at(const struct fused_args &a, uint32_t part)
{
    return part * a.part_channels * 2;
}

EPA_DEV uint32_t fused_part_bytes(const struct fused_args &a, uint32_t part)
{
    return min(a.part_channels, a.c.hidden - part * a.part_channels) * 2;
}

EPA_DEV char *fused_partial(const struct fused_args &a, uint32_t owner, uint32_t token,
                            uint32_t source)
{
    return a.c.v.peer_heap[owner] + a.partial +
           ((uint64_t)token * a.c.v.size + source) * a.c.hidden * 2;
}

EPA_DEV uint64_t *fused_flag(const struct fused_args &a, uint32_t owner, uint32_t token,
                             uint32_t source, uint32_t part)
{
    return reinterpret_cast<uint64_t *>(a.c.v.peer_heap[owner] + a.flags) +
           ((uint64_t)token * a.c.v.size + source) * a.parts + part;
}

/* Tokens that are complete here, added up and sent to their rank. */
template <bool F16, int SWEEPS, uint32_t ROWS>
EPA_DEV bool fused_combine_send(const struct fused_args &a, uint64_t call,
                                const struct fused_tables &t, struct fused_watch *w)
{
    uint32_t items = t.scalars[FUSED_ITEMS], i;
    uint64_t item;

    while ((i = fused_take(a, FUSED_SENDING)) < items * a.parts) {
        uint32_t part = i % a.parts, n, slot, owner, token;
        struct fused_place place = {};

        if (!fused_wait_item<ROWS>(a, call, t, w, i / a.parts, &item))
            return false;
        n = (uint32_t)item >> 26;
        slot = (uint32_t)item & ((1u << 26) - 1);
        owner = slot / a.c.max_tokens;
        token = slot % a.c.max_tokens;
        if (epa_dev_lane() < n) {
            const uint2 *from =
                reinterpret_cast<const uint2 *>(a.place + (size_t)slot * a.c.topk) + epa_dev_lane();
            uint2 raw = __ldcg(from);

            place = {raw.x, __uint_as_float(raw.y)};
        }
        fused_reduce<F16, SWEEPS>(
            n == 32 ? ~0u : (1u << n) - 1,
            a.y + (uint64_t)place.row * a.c.hidden * 2 + fused_part_at(a, part), place.weight,
            fused_partial(a, owner, token, a.c.v.rank) + fused_part_at(a, part),
            fused_part_bytes(a, part));
        __syncwarp();
        if (epa_dev_lane() == 0)
            epa_dev_store_release(fused_flag(a, owner, token, a.c.v.rank, part), call);
    }
    return fused_wait_item<ROWS>(a, call, t, w, items, &item);
}

/* Own tokens: the sums of all ranks, which are added up. */
template <bool F16, int SWEEPS>
EPA_DEV bool fused_combine_receive(const struct fused_args &a, uint64_t call)
{
    uint32_t lane = epa_dev_lane(), token;

    while ((token = fused_take(a, FUSED_SUMMING)) < a.c.tokens * a.parts) {
        uint32_t rank = ~0u, ranks = 0, part = token % a.parts;
        uint64_t seen;
        bool ok = true;

        token /= a.parts;
        if (lane < a.c.topk) {
            uint32_t e = (uint32_t)__ldg(a.c.expert + (size_t)token * a.c.topk + lane);

            rank = e < a.c.experts ? e / a.c.local : ~0u;
        }
        for (uint32_t r = 0; r < a.c.v.size; r++)
            ranks |= __any_sync(EPA_DEV_ALL, rank == r) ? 1u << r : 0;
        if ((ranks >> lane & 1) != 0)
            ok = fused_wait_epoch(a, fused_flag(a, a.c.v.rank, token, lane, part), call,
                                  {0, FUSED_WAIT_PARTIAL, lane, token}, &seen);
        if (!__all_sync(EPA_DEV_ALL, ok))
            return false;
        __syncwarp();
        fused_reduce<F16, SWEEPS>(
            ranks, fused_partial(a, a.c.v.rank, token, lane) + fused_part_at(a, part), 1.0f,
            static_cast<char *>(a.c.out) + (size_t)token * a.c.hidden * 2 + fused_part_at(a, part),
            fused_part_bytes(a, part));
    }
    return true;
}

template <bool F16, int SWEEPS, uint32_t ROWS>
EPA_DEV void fused_combine(const struct fused_args &a, uint64_t call, const struct fused_tables &t,
                           struct fused_watch w)
{
    bool ok;

    fused_stamp(a, FUSED_PHASE_SEND, false);
    ok = fused_combine_send<F16, SWEEPS, ROWS>(a, call, t, &w);
    fused_stamp(a, FUSED_PHASE_SEND, true);
    fused_stamp(a, FUSED_PHASE_SUM, false);
    if (ok)
        (void)fused_combine_receive<F16, SWEEPS>(a, call);
    fused_stamp(a, FUSED_PHASE_SUM, true);
}

#endif
