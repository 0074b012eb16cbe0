/* For kernels: what those of several algorithms share. How calls are counted; work divided into
 * units that one warp does from beginning to end, so that warps of one block do not wait for
 * each other; sums over a block, and of rows; and when warps did what. */
#ifndef ALGO_CUDA_CUH
#define ALGO_CUDA_CUH

#include <epa2a/packets.cuh>

#include "algo_cuda.h"

EPA_DEV char *dev_own(const epa_device_view &v, uint64_t offset)
{
    return v.peer_heap[v.rank] + offset;
}

/* The pointer that another lane has. */
template <typename T> EPA_DEV T *dev_from_lane(T *p, uint32_t lane)
{
    return reinterpret_cast<T *>(
        __shfl_sync(EPA_DEV_ALL, reinterpret_cast<unsigned long long>(p), lane));
}

/* ---- calls ---- */

/* Until the kernel before has ended, and what it wrote can be read (`waits`); then the next may
 * be set up. Returns the number of this call, one more than have ended. `early`: the kernel
 * before does not count calls of this kind, so that the number can be read while it runs. */
EPA_DEV uint64_t dev_begin(const struct device_args &c, bool early, bool waits)
{
    uint64_t ended = 0;

    if (early)
        ended = __ldcg(c.calls + blockIdx.x);
    if (waits)
        epa_dev_after_kernel();
    epa_dev_next_kernel();
    if (!early)
        ended = __ldcg(c.calls + blockIdx.x);
    /* Of the call before, which has ended. */
    if (blockIdx.x == 0 && threadIdx.x < DEVICE_COUNTERS)
        c.taken[ended % 2][threadIdx.x] = 0;
    return ended + 1;
}

/* Counts the call, for this block and for those that the next may have beyond these. `last`: the
 * first half of a call leaves that to the second. */
EPA_DEV void dev_end(const struct device_args &c, uint64_t call, bool last)
{
    __syncthreads(); /* all of the block have read it */
    if (threadIdx.x == 0 && last)
        for (uint32_t i = blockIdx.x; i < c.most_blocks; i += gridDim.x)
            c.calls[i] = call;
}

/* ---- signals ---- */

/* One thread for each rank, whose signal `first` + this rank gets the value: all that the block,
 * or the kernel before, has stored comes before it. Pairs with dev_wait_all(). */
EPA_DEV void dev_signal_all(const struct device_args &c, uint32_t first, uint64_t value)
{
    if (threadIdx.x < c.v.size)
        epa_dev_signal(c.v, c.signal + first + c.v.rank, value, threadIdx.x);
}

/* One thread for each source; true in all threads of the block if all have signalled. */
EPA_DEV bool dev_wait_all(const struct device_args &c, uint32_t first, uint64_t value,
                          uint32_t what)
{
    bool ok = true;

    if (threadIdx.x < c.v.size) {
        struct epa_dev_wait w = {c.stage, what, threadIdx.x, 0};

        ok = epa_dev_wait_for(c.v, c.signal + first + threadIdx.x, value, c.timeout_ns, w);
    }
    return __syncthreads_and(ok);
}

/* ---- units ---- */

enum { DEV_SENDING, DEV_RECEIVING }; /* what is counted */

/* Each block's first warp before any block's second, as few units are to be on many
 * multiprocessors. */
EPA_DEV uint32_t dev_warp_of(uint32_t block, uint32_t blocks)
{
    return block + threadIdx.x / EPA_DEV_WARP * blocks;
}

/* Work beyond the first unit of each of `workers` warps or blocks is taken as they are free:
 * links do not serve multiprocessors alike. Who works asks for the next unit before the one
 * at hand, as the reply takes a while. One warp, whose lane 0 gets it; `which`: of the two
 * things that a kernel counts. */
EPA_DEV uint32_t dev_ask(const struct device_args &c, uint32_t which, uint64_t call,
                         uint32_t workers, uint32_t all)
{
    uint32_t unit = 0;

    /* Of additions the compiler would make one for all lanes that may be there, and wait for
     * it at once to hand out their numbers; of this not. */
    if (all > workers && epa_dev_lane() == 0)
        unit = atomicInc(&c.taken[call % 2][which], INT32_MAX);
    return unit;
}

/* The unit that lane 0 asked for, or what is beyond all. */
EPA_DEV uint32_t dev_next(uint32_t asked, uint32_t workers, uint32_t all)
{
    return all <= workers ? all : workers + __shfl_sync(EPA_DEV_ALL, asked, 0);
}

/* ---- sums over a block ---- */

EPA_DEV uint32_t dev_warps(void)
{
    return blockDim.x / EPA_DEV_WARP;
}

/* The sum of the values of the threads before this one, in a block of so many warps; *total is
 * that of all. */
static __device__ __forceinline__ uint32_t dev_scan_of(uint32_t warps, uint32_t value,
                                                       uint32_t *total)
{
    __shared__ uint32_t warp_sum[DEVICE_MOST_WARPS];
    uint32_t warp = threadIdx.x / EPA_DEV_WARP, sum = value, before = 0;

    for (uint32_t step = 1; step < EPA_DEV_WARP; step *= 2) {
        uint32_t other = __shfl_up_sync(EPA_DEV_ALL, sum, step);

        sum += epa_dev_lane() >= step ? other : 0;
    }
    __syncthreads(); /* who called before has read the sums */
    if (epa_dev_lane() == EPA_DEV_WARP - 1)
        warp_sum[warp] = sum;
    __syncthreads();
    *total = 0;
    for (uint32_t i = 0; i < warps; i++) {
        before += i < warp ? warp_sum[i] : 0;
        *total += warp_sum[i];
    }
    return before + sum - value;
}

EPA_DEV uint32_t dev_scan(uint32_t value, uint32_t *total)
{
    return dev_scan_of(DEVICE_WARPS, value, total);
}

/* ---- parts of rows ---- */

/* A part that one warp takes: its channels from `first` on. */
struct dev_part {
    uint32_t token, unit, first, channels;
};

EPA_DEV struct dev_part dev_part_at(uint32_t token, uint32_t unit, uint32_t most, uint32_t hidden)
{
    return {token, unit, unit * most, min(most, hidden - unit * most)};
}

/* How a warp takes a part of at most CHANNELS: 16 bytes a lane of what crosses at a time, since
 * links carry half as much in packets of less. */
template <int IN, int CHANNELS> struct dev_width {
    enum {
        INPUT = IN,
        QUANTISES = IN == DEVICE_QUANTISE || IN == DEVICE_QUANTISE_F16,
        BYTES = IN == DEVICE_PLAIN ? 2 : 1, /* of a channel that crosses */
        LANE = 16 / BYTES,                  /* channels */
        SWEEP = LANE * EPA_DEV_WARP,
        SWEEPS = (CHANNELS + SWEEP - 1) / SWEEP,
        HALVES = QUANTISES ? 2 : 1 /* 16 bytes that are read for 16 */
    };
};

template <typename W> EPA_DEV bool dev_takes(const struct dev_part &p, int sweep)
{
    return sweep * W::SWEEP + epa_dev_lane() * W::LANE < p.channels;
}

/* A part as it is read: all loads leave before the first is used. */
template <typename W> struct dev_raw {
    uint4 v[W::SWEEPS][W::HALVES];
};

template <typename W>
EPA_DEV void dev_read_part(const struct device_args &c, const struct dev_part &p,
                           struct dev_raw<W> *to)
{
    size_t row =
        ((size_t)p.token * c.hidden + p.first) * ((int)W::INPUT == (int)DEVICE_FP8 ? 1 : 2);
    const char *x = static_cast<const char *>(c.x) + row + epa_dev_lane() * 16 * W::HALVES;

#pragma unroll
    for (int i = 0; i < W::SWEEPS; i++)
#pragma unroll
        for (int h = 0; h < W::HALVES; h++) {
            to->v[i][h] = make_uint4(0, 0, 0, 0);
            if (dev_takes<W>(p, i))
                to->v[i][h] = __ldg(
                    reinterpret_cast<const uint4 *>(x + (i * EPA_DEV_WARP * W::HALVES + h) * 16));
        }
}

/* A sweep of it as it crosses; *scale: of this lane's group, where it is quantised here. */
template <typename W>
EPA_DEV uint4 dev_sweep_of(const struct dev_raw<W> &raw, int sweep, uint32_t group, float *scale)
{
    if (!W::QUANTISES)
        return raw.v[sweep][0];
    return epa_dev_quantise16<(int)W::INPUT == (int)DEVICE_QUANTISE_F16>(
        raw.v[sweep][0], raw.v[sweep][W::HALVES - 1], group / W::LANE, scale);
}

/* ---- sums of rows ---- */

/* Of a token: lane k has choice k. */
struct dev_choices {
    uint32_t expert;
    float weight;
    uint32_t list; /* which lanes have one that was not dropped, as bits */
};

EPA_DEV struct dev_choices dev_choices_of(const struct device_args &c, uint32_t token)
{
    struct dev_choices of = {~0u, 0.0f, 0};
    size_t choice = (size_t)token * c.topk + epa_dev_lane();

    if (epa_dev_lane() < c.topk) {
        of.expert = (uint32_t)__ldg(c.expert + choice);
        of.weight = __ldg(c.weight + choice);
    }
    of.list = __ballot_sync(EPA_DEV_ALL, of.expert < c.experts);
    return of;
}

EPA_DEV void dev_add8(const float *value, float weight, float *to)
{
#pragma unroll
    for (int j = 0; j < 8; j++)
        to[j] = __fmaf_rn(weight, value[j], to[j]);
}

/* Rows in 16 bits travel in packets too. Each lane has the channels of its words of them from
 * beginning to end, four in a word, so nothing changes lanes. */
enum { DEV_CHANNELS = 4 };

/* This lane's words of a row of `n`, from memory: 0 where it has none. */
template <int GROUPS>
EPA_DEV void dev_words_load(const char *row, uint32_t n, struct epa_dev_words *v)
{
    const unsigned long long *from = reinterpret_cast<const unsigned long long *>(row);

#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        uint32_t at = epa_dev_word_at(g);

        v[g].w[0] = v[g].w[1] = 0;
        if (at < n)
            v[g].w[0] = __ldcg(from + at);
        if (!epa_dev_ends_packet() && at + 1 < n)
            v[g].w[1] = __ldcg(from + at + 1);
    }
}

template <int GROUPS>
EPA_DEV void dev_words_store(char *row, uint32_t n, const struct epa_dev_words *v)
{
    uint64_t *to = reinterpret_cast<uint64_t *>(row);

#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        uint32_t at = epa_dev_word_at(g);

        if (at < n)
            to[at] = v[g].w[0];
        if (!epa_dev_ends_packet() && at + 1 < n)
            to[at + 1] = v[g].w[1];
    }
}

template <bool F16> EPA_DEV void dev_unpack_words(struct epa_dev_words v, float *value)
{
    epa_dev_unpack<F16>(make_uint4((uint32_t)v.w[0], (uint32_t)(v.w[0] >> 32), (uint32_t)v.w[1],
                                   (uint32_t)(v.w[1] >> 32)),
                        value);
}

template <bool F16> EPA_DEV struct epa_dev_words dev_pack_words(const float *value)
{
    uint4 packed = epa_dev_pack<F16>(value);

    return {{(uint64_t)packed.y << 32 | packed.x, (uint64_t)packed.w << 32 | packed.z}};
}

/* ---- profile ----
 *
 * When a phase began is kept in a register, and one store notes it as it ends: to read the clock
 * costs nothing that can be measured, and stamps that wait in shared memory for the end of their
 * kernel delay that. */

/* The time now, modulo 2^32 ns. */
template <bool PROFILE> EPA_DEV uint32_t dev_begun(void)
{
    return PROFILE ? (uint32_t)epa_dev_time() : 0;
}

EPA_DEV void dev_stamp(const struct device_args &c, uint64_t call, uint32_t phase, uint64_t end,
                       uint32_t begun)
{
    uint32_t warp = blockIdx.x * c.warps + threadIdx.x / EPA_DEV_WARP;
    struct device_stamp *stamp = &c.stamps[warp].phase[c.stage * DEVICE_PHASES + phase];

    if (epa_dev_lane() == 0)
        *reinterpret_cast<uint4 *>(stamp) =
            make_uint4((uint32_t)end, (uint32_t)(end >> 32), (uint32_t)end - begun, (uint32_t)call);
}

/* All lanes: a phase of this warp that began at `begun` ends, or has got as far as this. */
template <bool PROFILE>
EPA_DEV void dev_ended(const struct device_args &c, uint64_t call, uint32_t phase, uint32_t begun)
{
    if (PROFILE)
        dev_stamp(c, call, phase, epa_dev_time(), begun);
}

/* The same of a phase that has ended at `end`, and is noted with a later one. */
template <bool PROFILE>
EPA_DEV void dev_had_ended(const struct device_args &c, uint64_t call, uint32_t phase,
                           uint32_t begun, uint32_t end)
{
    if (!PROFILE)
        return;
    uint64_t now = epa_dev_time();

    dev_stamp(c, call, phase, now - ((uint32_t)now - end), begun);
}

/* One thread: token `token` has left, or come from `peer`, and note `at` is for it. */
template <bool PROFILE>
EPA_DEV void dev_note(const struct device_args &c, uint64_t call, uint32_t at, uint32_t begun,
                      uint32_t peer, uint32_t token)
{
    if (!PROFILE)
        return;
    uint32_t warp = blockIdx.x * c.warps + threadIdx.x / EPA_DEV_WARP;
    uint64_t now = epa_dev_time();
    uint4 *to = reinterpret_cast<uint4 *>(c.note + at);

    to[0] = make_uint4((uint32_t)now, (uint32_t)(now >> 32), (uint32_t)now - begun, (uint32_t)call);
    to[1] = make_uint4(warp, c.stage, peer, token);
}

/* Since when a warp that waits for each unit of a loop, and then works on it, has done so first. */
struct dev_since {
    uint32_t wait, work;
    bool works;
};

template <bool PROFILE>
EPA_DEV void dev_waited(const struct device_args &c, uint64_t call, uint32_t phase,
                        struct dev_since *since)
{
    dev_ended<PROFILE>(c, call, phase, since->wait);
    if (PROFILE && !since->works)
        since->work = dev_begun<PROFILE>();
    since->works = true;
}

#endif
