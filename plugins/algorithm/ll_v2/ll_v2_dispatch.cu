/* Dispatch on GPUs. The first blocks count choices and tell all ranks; the others store
 * rows at the ranks that want them, quantised on the way, without waiting for that: where a
 * row arrives at a rank that gets it once is fixed by who sends it and its number. The last
 * blocks take in what came. Only rows that go straight to their experts' rows (layout
 * expert, dedup: false) wait for the counts of all ranks, which say where they stand.
 *
 * Routes and counts travel in packets that carry the epoch. Rows that are copied to their
 * experts (once) travel as lines that do so, too. Rows that are read where they arrive have
 * a signal for each part. */
#include "ll_v2_receive.cuh"
#include "ll_v2_send.cuh"

/* Of the block: tables by expert first, then a string for each warp. */
extern __shared__ __align__(16) uint32_t shared[];

template <int IN, int MODE, bool PROFILE>
static __device__ __forceinline__ bool send(const struct ll_args &a, uint64_t epoch,
                                            uint32_t senders)
{
    /* The first blocks count; they send rows only where there are no others. */
    bool apart = senders > a.publishers;
    uint32_t blocks = apart ? senders - a.publishers : senders;
    uint32_t block = apart ? blockIdx.x - a.publishers : blockIdx.x;
    uint32_t *first = shared + a.experts, warps = blocks * LL_WARPS;
    uint32_t units = a.units / a.row_signals; /* that a warp takes in one go */
    uint32_t all = a.tokens * a.row_signals;
    uint64_t *payload = reinterpret_cast<uint64_t *>(
        reinterpret_cast<char *>(shared) + a.payloads + threadIdx.x / DEV_WARP * a.payload);

    if (blockIdx.x < a.publishers) {
        dev_stamp<PROFILE, LL_WARPS>(a.stamps, LL_COUNT_PUT, false);
        ll_publish<MODE == LL_DIRECT>(a, epoch, shared);
        dev_stamp<PROFILE, LL_WARPS>(a.stamps, LL_COUNT_PUT, true);
    }
    if (blockIdx.x < a.publishers && apart)
        return true;
    if (MODE == LL_DIRECT && !ll_slots(a, epoch, shared, first))
        return false;
    dev_stamp<PROFILE, LL_WARPS>(a.stamps, LL_QUANT_AND_PUT, false);
    for (uint32_t u = dev_warp_of(block, blocks), work_index; u < all;
         u = dev_next(work_index, warps, all)) {
        struct reported t;
        float carried = 0.0f;

        work_index = ll_ask(a, LL_SENDING, epoch, warps, all);
        for (uint32_t i = u * units; i < (u + 1) * units; i++)
            t = send_unit<IN, MODE>(a, i / a.units, i % a.units, epoch, first, payload,
                                    &carried);
        tell_row<MODE>(a, t, epoch);
    }
    dev_stamp<PROFILE, LL_WARPS>(a.stamps, LL_QUANT_AND_PUT, true);
    return true;
}

/* Rows that came once for this rank, by `blocks` blocks of which this is number `block`. */
template <int IN, int MODE, bool PROFILE>
static __device__ __forceinline__ void
receive_slots(const struct ll_args &a, uint64_t epoch, const uint32_t *cell,
              const uint32_t *tokens, uint32_t block, uint32_t blocks)
{
    uint64_t *payload = reinterpret_cast<uint64_t *>(
        reinterpret_cast<char *>(shared) + a.payloads + threadIdx.x / DEV_WARP * a.payload);
    uint32_t units = MODE == LL_DEDUP ? a.units : 1, all = a.v.size * a.max_tokens * units;

    for (uint32_t u = dev_warp_of(block, blocks), work_index; u < all;
         u = dev_next(work_index, blocks * LL_WARPS, all)) {
        uint32_t source, token, unit = u % units;
        bool ok = true, sent;

        work_index = ll_ask(a, LL_RECEIVING, epoch, blocks * LL_WARPS, all);
        ll_slot_at(a.v.size, a.v.rank, u / units, &source, &token);
        sent = token < tokens[source] && is_sent(a, source, token, epoch, &ok);
        if (ok && !sent && unit == 0 && dev_lane() == 0)
            a.wanted[ll_slot(a.max_tokens, source, token)] = 0;
        if (!sent && ok)
            continue;
        if (ok && MODE == LL_BY_RANK) {
            dev_stamp<PROFILE, LL_WARPS>(a.stamps, LL_WAIT, false);
            ok = receive_row(a, cell, source, token, epoch);
            dev_stamp<PROFILE, LL_WARPS>(a.stamps, LL_WAIT, true);
        } else if (ok) {
            ok = receive_part<IN, PROFILE>(a, cell, source, part_at(a, token, unit), epoch,
                                           payload);
        }
        if (!ok)
            return;
    }
}

/* Rows that came straight to their place. */
template <bool PROFILE>
static __device__ __forceinline__ void
receive_entries(const struct ll_args &a, uint64_t epoch, const uint32_t *begin,
                uint32_t total, uint32_t block, uint32_t blocks)
{
    for (uint32_t i = dev_warp_of(block, blocks); i < total; i += blocks * LL_WARPS) {
        uint32_t entry = entry_at(a, begin, i);
        struct epa_dev_wait w = {LL_DISPATCH, LL_WAIT_ENTRY, a.v.rank, entry};

        if (dev_lane() == 0)
            a.recv_row[i] = entry;
        dev_stamp<PROFILE, LL_WARPS>(a.stamps, LL_WAIT, false);
        if (!wait_row(a, entry, w, epoch))
            return;
        dev_stamp<PROFILE, LL_WARPS>(a.stamps, LL_WAIT, true);
    }
}

template <int IN, int MODE, bool PROFILE>
static __device__ __forceinline__ void receive(const struct ll_args &a, uint64_t epoch,
                                               uint32_t block, uint32_t blocks)
{
    uint32_t total, *begin = shared + a.experts, *tokens = begin + a.experts;

    if (!ll_cells(a, epoch, shared, begin, tokens, &total))
        return;
    if (total > a.entries && !a.padded) {
        struct epa_dev_wait w = {LL_DISPATCH, LL_WAIT_ROOM, a.v.rank, 0};

        if (threadIdx.x == 0)
            epa_dev_fault(a.v, EPA_ERR_CONFIG, w, total, a.entries, 0);
        return;
    }
    if (block == 0 && threadIdx.x == 0)
        *a.rows = total;
    if (MODE == LL_DIRECT)
        receive_entries<PROFILE>(a, epoch, begin, total, block, blocks);
    else
        receive_slots<IN, MODE, PROFILE>(a, epoch, shared, tokens, block, blocks);
}

/* The last blocks only receive: they know by then what is to come, and need not have sent
 * first. Where rows are copied, the others help once they have sent. In a kernel of one
 * block it does both. */
template <int IN, int MODE, bool PROFILE>
static __global__ void __launch_bounds__(LL_THREADS, 4)
    dispatch(const __grid_constant__ struct ll_args a)
{
    bool sends = (a.halves & LL_SEND) != 0, receives = (a.halves & LL_RECEIVE) != 0,
         ok = true;
    uint32_t first = sends && receives ? a.receivers_from : 0;
    uint32_t blocks = gridDim.x - first,
             block = (blockIdx.x + gridDim.x - first) % gridDim.x;
    uint64_t epoch = ll_begin(a);

    if (sends)
        dev_stamps_clear<PROFILE, LL_WARPS, LL_STAGE_PHASES>(a.stamps, a.stamped, a.stage);
    if (sends && (first == 0 || blockIdx.x < first))
        ok = send<IN, MODE, PROFILE>(a, epoch, first == 0 ? gridDim.x : first);
    __syncthreads(); /* shared memory is used anew */
    if (ok && receives && (MODE == LL_DEDUP || blockIdx.x >= first))
        receive<IN, MODE, PROFILE>(a, epoch, block, MODE == LL_DEDUP ? gridDim.x : blocks);
    ll_end(a, epoch);
}

#define KERNELS(in, mode) \
    { \
        (const void *)dispatch<in, mode, false>, (const void *)dispatch<in, mode, true> \
    }
#define MODES(in) \
    { \
        KERNELS(in, LL_BY_RANK), KERNELS(in, LL_DEDUP), KERNELS(in, LL_DIRECT) \
    }
#define KERNEL(in, mode) \
    { \
        (const void *)dispatch<in, mode, false>, NULL \
    }

const void *ll_dispatch_kernel(enum ll_input in, enum ll_mode mode, bool profile)
{
    static const void *const kernel[LL_INPUTS][LL_MODES][2] = {
        MODES(LL_IN_PLAIN),
        MODES(LL_IN_QUANTISE),
        {KERNEL(LL_IN_QUANTISE_F16, LL_BY_RANK), KERNEL(LL_IN_QUANTISE_F16, LL_DEDUP),
         KERNEL(LL_IN_QUANTISE_F16, LL_DIRECT)},
        MODES(LL_IN_FP8)};

    return kernel[in][mode][profile];
}
