/* Combine on GPUs, for the files that make kernels of it. Expert outputs are pulled: a rank loads the answers to its tokens from where
 * the experts wrote them, and adds them up as they come. Or they are pushed, as lines that
 * carry the number of the combine: less crosses where the experts' rank adds up or
 * quantises them first, and links carry stores better than loads.
 *
 * Signals: ANSWER of a source carries the number of the combine from its start: its experts
 * have answered, and it is done with whatever it read before. Every rank waits for all of
 * them in every combine, also for those that have nothing for it: that is what lets the
 * next dispatch store without asking. */
#ifndef LL_V2_COMBINE_CUH
#define LL_V2_COMBINE_CUH

#include "ll_v2_pull.cuh"
#include "ll_v2_push.cuh"
#include "ll_v2_recv.cuh"

template <int MODE, int FROM, bool F16, bool FP8, bool PROFILE>
static __device__ __forceinline__ void send(const struct ll_args &a, uint64_t epoch,
                                            uint32_t blocks)
{
    uint32_t rows = MODE == LL_DIRECT ? __ldcg(a.rows) : a.v.size * a.max_tokens;
    uint32_t warps = blocks * LL_WARPS, all = rows * a.shares;

    dev_stamp<PROFILE, LL_WARPS>(a.stamps, LL_COPY_AND_PUT, false);
    for (uint32_t u = dev_warp_of(blockIdx.x, blocks), work_index; u < all;
         u = dev_next(work_index, warps, all)) {
        uint32_t source, token;

        work_index = ll_ask(a, LL_SENDING, epoch, warps, all);
        if (MODE == LL_DIRECT) {
            push_entry<FROM, F16, FP8>(a, u / a.shares, u % a.shares, epoch);
            continue;
        }
        ll_slot_at(a.v.size, a.v.rank + 1, u / a.shares, &source, &token);
        push_slot<MODE, FROM, F16, FP8>(a, source, token, u % a.shares, epoch);
    }
    dev_stamp<PROFILE, LL_WARPS>(a.stamps, LL_COPY_AND_PUT, true);
}

/* Into so many units a share is divided where it is received. */
template <bool FP8> static __device__ __forceinline__ uint32_t fours(void)
{
    return FP8 ? LL_CODE_PACKETS / DEV_PACKETS : 1;
}

/* One warp: a share of a token's sum, or the four-th four lines of it. False: an expert output has not come. */
template <int MODE, int FROM, bool F16, bool FP8, bool PUSHED>
static __device__ __forceinline__ bool
reduce(const struct ll_args &a, uint32_t token, uint32_t share, uint32_t four,
       const struct outputs &of, uint64_t epoch, uint32_t turn)
{
    struct part p = part_at(a, share);
    uint32_t list = MODE == LL_DIRECT ? of.choices : of.ranks;
    float by = MODE == LL_DIRECT ? of.weight : 1.0f;

    if constexpr (!PUSHED) {
        struct term t;

        list = list_outputs<MODE, FROM>(a, token, of, &t);
        store_out<F16, false>(
            a, p, token, add_up<FROM, F16, false, MODE == LL_DIRECT>(a, p, list, t, turn));
    } else if constexpr (FP8) {
        struct code_place at = code_place_of(a, p, four);
        struct code_sum s = {};

        if (at.packets == 0)
            return true;
        if (!take_codes<MODE == LL_DIRECT>(a, p, at, token, four, list, by, of, epoch, &s))
            return false;
        store_codes<F16>(a, p, at, token, s);
    } else {
        struct word_sum s = {};

        if (!take_words<F16>(a, p, token, list, by, of, MODE == LL_DIRECT, epoch, &s))
            return false;
        store_words<F16>(a, p, token, s);
    }
    return true;
}

template <int MODE, int FROM, bool F16, bool FP8, bool PUSHED, bool PROFILE>
static __device__ __forceinline__ void receive(const struct ll_args &a, uint64_t epoch,
                                               uint32_t block, uint32_t blocks)
{
    enum { AHEAD = MODE != LL_DIRECT };
    uint32_t units = a.shares * fours<FP8>(), all = a.tokens * units;
    uint32_t u = dev_warp_of(block, blocks), work_index;
    /* For the first unit it is read while ANSWER is on its way. Where lanes have weights
     * there are no registers to hold it. */
    struct outputs of = {};

    if (AHEAD && u < all)
        of = outputs_of(a, u / units);
    dev_stamp<PROFILE, LL_WARPS>(a.stamps, LL_RECV_WAIT, false);
    if ((!PUSHED || block == 0) && !ll_wait_all(a, LL_COMBINE, LL_OUTPUT, epoch))
        return;
    dev_stamp<PROFILE, LL_WARPS>(a.stamps, LL_RECV_WAIT, true);
    dev_stamp<PROFILE, LL_WARPS>(a.stamps, LL_TOPK_REDUCE, false);
    while (u < all) {
        work_index = ll_ask(a, LL_RECEIVING, epoch, blocks * LL_WARPS, all);
        if (!AHEAD)
            of = outputs_of(a, u / units);
        if (!reduce<MODE, FROM, F16, FP8, PUSHED>(a, u / units, u % units / fours<FP8>(),
                                                  u % fours<FP8>(), of, epoch,
                                                  a.v.rank + u))
            return;
        u = dev_next(work_index, blocks * LL_WARPS, all);
        if (AHEAD && u < all)
            of = outputs_of(a, u / units);
    }
    dev_stamp<PROFILE, LL_WARPS>(a.stamps, LL_TOPK_REDUCE, true);
}

/* Where expert outputs are pushed the last blocks only receive. With few registers there is room
 * for the kernel that comes next to be set up beside this. */
template <int MODE, int FROM, bool F16, bool FP8, bool PUSHED, bool PROFILE>
static __global__ void __launch_bounds__(LL_THREADS,
                                         PUSHED && !(FP8 && MODE == LL_BY_RANK) ? 2 : 4)
    combine(const __grid_constant__ struct ll_args a)
{
    bool sends = (a.halves & LL_SEND) != 0, receives = (a.halves & LL_RECEIVE) != 0;
    uint32_t first = sends && receives ? a.receivers_from : 0;
    uint64_t epoch = ll_begin(a);

    if (sends)
        dev_stamps_clear<PROFILE, LL_WARPS, LL_STAGE_PHASES>(a.stamps, a.stamped, a.stage);
    if (sends && blockIdx.x == 0)
        ll_signal_all(a, LL_OUTPUT, epoch);
    if (sends && PUSHED && (first == 0 || blockIdx.x < first))
        send<MODE, FROM, F16, FP8, PROFILE>(a, epoch, first == 0 ? gridDim.x : first);
    if (receives && blockIdx.x >= first)
        receive<MODE, FROM, F16, FP8, PUSHED, PROFILE>(a, epoch, blockIdx.x - first,
                                                       gridDim.x - first);
    ll_end(a, epoch);
}

#endif
