/* Device code that the kernels of several algorithms share: the count of calls, work units that one
 * warp processes alone so that the warps of a block do not wait for each other, sums over a block
 * and of rows, and time stamps. */
#ifndef ALGO_CUDA_CUH
#define ALGO_CUDA_CUH

#include <epa2a/packets.cuh>

#include "algo_cuda.h"

EPA_DEV char *dev_own(const epa_device_view &v, uint64_t offset)
{
    return v.peer_heap[v.rank] + offset;
}

/* Returns the pointer of another lane. */
template <typename T> EPA_DEV T *dev_from_lane(T *p, uint32_t lane)
{
    return reinterpret_cast<T *>(
        __shfl_sync(EPA_DEV_ALL, reinterpret_cast<unsigned long long>(p), lane));
}

/* ---- calls ---- */

/* Waits, with `waits`, until the previous kernel has ended and its writes are visible; then allows
 * the set-up of the next kernel. Returns the number of this call, one more than the number of
 * completed calls. `early`: the previous kernel does not count calls of this kind, so the block
 * reads the number while that kernel runs. */
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
    /* Clears the counters of the previous call, which has ended. */
    if (blockIdx.x == 0 && threadIdx.x < DEVICE_COUNTERS)
        c.taken[ended % 2][threadIdx.x] = 0;
    return ended + 1;
}

/* Counts the call, for this block and for the further blocks that the next call may have, and stores
 * the time of its end if required. `last`: the first half of a call leaves the count to the
 * second half. */
EPA_DEV void dev_end(const struct device_args &c, uint64_t call, bool last)
{
    __syncthreads(); /* all threads of the block have read the count */
    if (threadIdx.x == 0 && last) {
        for (uint32_t i = blockIdx.x; i < c.most_blocks; i += gridDim.x)
            c.calls[i] = call;
        if (c.keeps_ends != 0)
            c.calls[(1 + call % EPA_ENDS) * c.most_blocks + blockIdx.x] = epa_dev_time();
    }
}

/* ---- signals ---- */

/* Sets signal `first` + this rank at each rank, one thread per rank. All stores of the block and of
 * the previous kernel precede the signals. Pairs with dev_wait_all(). */
EPA_DEV void dev_signal_all(const struct device_args &c, uint32_t first, uint64_t value)
{
    if (threadIdx.x < c.v.size)
        epa_dev_signal(c.v, c.signal + first + c.v.rank, value, threadIdx.x);
}

/* Waits for the signals of all sources, one thread per source. Returns true in all threads of the
 * block if all sources have signalled. */
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

enum { DEV_SENDING, DEV_RECEIVING }; /* index of the counter */

/* Returns the warp's index in an order that has the first warps of all blocks before the second
 * warps, so that few units spread over many multiprocessors. */
EPA_DEV uint32_t dev_warp_of(uint32_t block, uint32_t blocks)
{
    return block + threadIdx.x / EPA_DEV_WARP * blocks;
}

/* Requests a unit of work. Each of `workers` warps or blocks begins with one fixed unit; further
 * units go to workers as they become free, since links do not serve all multiprocessors equally
 * fast. A worker requests the next unit before it processes the current one, to hide the latency.
 * Called by one warp; lane 0 gets the unit. `which`: one of the two counters of a kernel. */
EPA_DEV uint32_t dev_ask(const struct device_args &c, uint32_t which, uint64_t call,
                         uint32_t workers, uint32_t all)
{
    uint32_t unit = 0;

    /* atomicInc, since the compiler would combine an atomicAdd over all active lanes and wait for
     * it at once to distribute the results. */
    if (all > workers && epa_dev_lane() == 0)
        unit = atomicInc(&c.taken[call % 2][which], INT32_MAX);
    return unit;
}

/* Returns the unit that lane 0 requested, or a number beyond all units. */
EPA_DEV uint32_t dev_next(uint32_t asked, uint32_t workers, uint32_t all)
{
    return all <= workers ? all : workers + __shfl_sync(EPA_DEV_ALL, asked, 0);
}

/* ---- sums over a block ---- */

EPA_DEV uint32_t dev_warps(void)
{
    return blockDim.x / EPA_DEV_WARP;
}

/* Returns the sum of the values of the preceding threads, in a block of `warps` warps; *total is
 * the sum of all threads. */
static __device__ __forceinline__ uint32_t dev_scan_of(uint32_t warps, uint32_t value,
                                                       uint32_t *total)
{
    __shared__ uint32_t warp_sum[DEVICE_MOST_WARPS];
    uint32_t warp = threadIdx.x / EPA_DEV_WARP, sum = value, before = 0;

    for (uint32_t step = 1; step < EPA_DEV_WARP; step *= 2) {
        uint32_t other = __shfl_up_sync(EPA_DEV_ALL, sum, step);

        sum += epa_dev_lane() >= step ? other : 0;
    }
    __syncthreads(); /* all threads have read the sums of an earlier call */
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

/* Part of a row that one warp processes: its channels from `first` on. */
struct dev_part {
    uint32_t token, unit, first, channels;
};

EPA_DEV struct dev_part dev_part_at(uint32_t token, uint32_t unit, uint32_t most, uint32_t hidden)
{
    return {token, unit, unit * most, min(most, hidden - unit * most)};
}

/* Access pattern of a warp for a part of at most CHANNELS channels. Each lane sends 16 bytes at a
 * time, since links carry half as much in smaller packets. */
template <int IN, int CHANNELS> struct dev_width {
    enum {
        INPUT = IN,
        QUANTISES = IN == DEVICE_QUANTISE || IN == DEVICE_QUANTISE_F16,
        BYTES = IN == DEVICE_PLAIN ? 2 : 1, /* bytes of a channel on the link */
        LANE = 16 / BYTES,                  /* channels per lane */
        SWEEP = LANE * EPA_DEV_WARP,
        SWEEPS = (CHANNELS + SWEEP - 1) / SWEEP,
        HALVES = QUANTISES ? 2 : 1 /* loads of 16 bytes per 16 bytes sent */
    };
};

template <typename W> EPA_DEV bool dev_takes(const struct dev_part &p, int sweep)
{
    return sweep * W::SWEEP + epa_dev_lane() * W::LANE < p.channels;
}

/* Input of a part: all loads are issued before the first value is used. */
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

/* Returns a sweep of the part in its format on the link; *scale: scale of this lane's group, if the
 * kernel quantises. */
template <typename W>
EPA_DEV uint4 dev_sweep_of(const struct dev_raw<W> &raw, int sweep, uint32_t group, float *scale)
{
    if (!W::QUANTISES)
        return raw.v[sweep][0];
    return epa_dev_quantise16<(int)W::INPUT == (int)DEVICE_QUANTISE_F16>(
        raw.v[sweep][0], raw.v[sweep][W::HALVES - 1], group / W::LANE, scale);
}

/* ---- sums of rows ---- */

/* Choices of a token: lane k holds choice k. */
struct dev_choices {
    uint32_t expert;
    float weight;
    uint32_t list; /* mask of the lanes whose choice was not dropped */
};

/* Returns choice i of all tokens. */
EPA_DEV uint32_t dev_choice(const struct device_args &c, size_t i)
{
    return (uint32_t)__ldg(c.expert + (i << c.wide));
}

EPA_DEV struct dev_choices dev_choices_of(const struct device_args &c, uint32_t token)
{
    struct dev_choices of = {~0u, 0.0f, 0};
    size_t choice = (size_t)token * c.topk + epa_dev_lane();

    if (epa_dev_lane() < c.topk) {
        of.expert = dev_choice(c, choice);
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

/* Rows of 16-bit values also travel in packets. Each lane holds the channels of its words of all
 * rows, four per word, so that no data moves between lanes. */
enum { DEV_CHANNELS = 4 };

/* Loads this lane's words of a row of `n` words from memory; missing words are 0. */
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
 * The start of a phase is kept in a register, and a single store records the phase at its end.
 * Reading the clock has no measurable cost, while stamps that stay in shared memory until the end
 * of the kernel delay that end. */

/* Returns the current time, modulo 2^32 ns. */
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

/* Records that a phase of this warp, which began at `begun`, has ended or progressed until now.
 * Called by all lanes. */
template <bool PROFILE>
EPA_DEV void dev_ended(const struct device_args &c, uint64_t call, uint32_t phase, uint32_t begun)
{
    if (PROFILE)
        dev_stamp(c, call, phase, epa_dev_time(), begun);
}

/* Records a phase that ended at `end`, at a later time. */
template <bool PROFILE>
EPA_DEV void dev_had_ended(const struct device_args &c, uint64_t call, uint32_t phase,
                           uint32_t begun, uint32_t end)
{
    if (!PROFILE)
        return;
    uint64_t now = epa_dev_time();

    dev_stamp(c, call, phase, now - ((uint32_t)now - end), begun);
}

/* Records that token `token` has left for or arrived from `peer`, in note `at`. Called by one
 * thread. */
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

/* Start times of a warp that, in a loop, waits for each unit and then processes it: its first wait,
 * and its first work. */
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
