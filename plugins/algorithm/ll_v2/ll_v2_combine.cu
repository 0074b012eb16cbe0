/* Combine on GPUs. Answers are pulled: a rank loads the answers to its tokens from where
 * the experts wrote them, and adds them up as they come. Or they are pushed, as lines that
 * carry the number of the combine: less crosses where the experts' rank adds up or
 * quantises them first, and links carry stores better than loads.
 *
 * Signals: ANSWER of a source carries the number of the combine from its start: its experts
 * have answered, and it is done with whatever it read before. Every rank waits for all of
 * them in every combine, also for those that have nothing for it: that is what lets the
 * next dispatch store without asking. */
#include "ll_v2_pull.cuh"
#include "ll_v2_push.cuh"
#include "ll_v2_take.cuh"

extern __shared__ __align__(16) uint64_t strings[];

static __device__ __forceinline__ uint32_t warp_of(uint32_t block, uint32_t blocks)
{
    return block + threadIdx.x / LL_WARP * blocks;
}

template <int MODE, bool FP8, bool PROFILE>
static __device__ __forceinline__ void send(const struct ll_args &a, uint64_t epoch,
                                            uint32_t blocks)
{
    uint32_t rows = MODE == LL_DIRECT ? __ldcg(a.rows) : a.v.size * a.max_tokens;
    uint64_t *string = strings + threadIdx.x / LL_WARP * (a.string / 8);

    ll_stamp<PROFILE>(a, LL_COPY_AND_PUT, false);
    for (uint32_t u = warp_of(blockIdx.x, blocks), next; u < rows * a.shares; u = next) {
        uint32_t source, token;

        next = ll_next(a, LL_SENDING, blocks * LL_WARPS, rows * a.shares);
        if (MODE == LL_DIRECT) {
            push_entry<FP8>(a, u / a.shares, u % a.shares, epoch, string);
            continue;
        }
        ll_slot_at(a.v.size, a.v.rank + 1, u / a.shares, &source, &token);
        push_slot<MODE, FP8>(a, source, token, u % a.shares, epoch, string);
    }
    ll_stamp<PROFILE>(a, LL_COPY_AND_PUT, true);
}

/* One warp: a share of a token's sum. False: an answer has not come. */
template <int MODE, bool FP8, bool PUSHED>
static __device__ __forceinline__ bool reduce(const struct ll_args &a, uint32_t token,
                                              uint32_t share, uint64_t epoch, uint32_t turn)
{
    struct answers of = answers_of(a, token);
    struct part p = part_at(a, share);
    uint32_t list = MODE == LL_DIRECT ? of.choices : of.ranks;
    float by = MODE == LL_DIRECT ? of.weight : 1.0f;
    const char *from;

    if constexpr (!PUSHED) {
        list = list_answers<MODE>(a, token, of, &from, &by);
        store_out<false>(a, p, token, add_up<false>(p, list, from, by, turn));
    } else if constexpr (FP8) {
        struct code_sum s = {};

        if (!take_codes(a, p, token, list, by, of, MODE == LL_DIRECT, epoch, &s))
            return false;
        store_codes(a, p, token, s);
    } else {
        struct word_sum s = {};

        if (!take_words(a, p, token, list, by, of, MODE == LL_DIRECT, epoch, &s))
            return false;
        store_words(a, p, token, s);
    }
    return true;
}

template <int MODE, bool FP8, bool PUSHED, bool PROFILE>
static __device__ __forceinline__ void receive(const struct ll_args &a, uint64_t epoch,
                                               uint32_t block, uint32_t blocks)
{
    uint32_t all = a.tokens * a.shares;

    ll_stamp<PROFILE>(a, LL_RECV_WAIT, false);
    if ((!PUSHED || block == 0) && !ll_wait_all(a, LL_COMBINE, LL_ANSWER, epoch))
        return;
    ll_stamp<PROFILE>(a, LL_RECV_WAIT, true);
    ll_stamp<PROFILE>(a, LL_TOPK_REDUCE, false);
    for (uint32_t u = warp_of(block, blocks), next; u < all; u = next) {
        next = ll_next(a, LL_RECEIVING, blocks * LL_WARPS, all);
        if (!reduce<MODE, FP8, PUSHED>(a, u / a.shares, u % a.shares, epoch, a.v.rank + u))
            return;
    }
    ll_stamp<PROFILE>(a, LL_TOPK_REDUCE, true);
}

/* Where answers are pushed the last blocks only receive. Pulling takes few enough registers
 * for the kernel that comes next to be set up beside it. */
template <int MODE, bool FP8, bool PUSHED, bool PROFILE>
static __global__ void __launch_bounds__(LL_THREADS, PUSHED ? 2 : 4)
    combine(const __grid_constant__ struct ll_args a)
{
    bool sends = (a.halves & LL_SEND) != 0, receives = (a.halves & LL_RECEIVE) != 0;
    uint32_t first = sends && receives ? a.receivers_from : 0;
    uint64_t epoch = ll_begin(a, &a.state->combines);

    if (sends)
        ll_stamps_clear<PROFILE>(a);
    if (sends && blockIdx.x == 0)
        ll_tell_all(a, LL_ANSWER, epoch);
    if (sends && PUSHED && (first == 0 || blockIdx.x < first))
        send<MODE, FP8, PROFILE>(a, epoch, first == 0 ? gridDim.x : first);
    if (receives && blockIdx.x >= first)
        receive<MODE, FP8, PUSHED, PROFILE>(a, epoch, blockIdx.x - first,
                                            gridDim.x - first);
    ll_end(a, &a.state->combines, receives ? epoch : epoch - 1);
}

#define KERNELS(mode, fp8, pushed) \
    { \
        (const void *)combine<mode, fp8, pushed, false>, \
            (const void *)combine<mode, fp8, pushed, true> \
    }

const void *ll_combine_kernel(enum ll_mode mode, bool fp8, bool pushed, bool profile)
{
    static const void *const pulls[LL_MODES][2] = {
        [LL_BY_RANK] = KERNELS(LL_BY_RANK, false, false),
        [LL_ONCE] = {NULL, NULL}, /* there is nothing to pull before it is added up */
        [LL_DIRECT] = KERNELS(LL_DIRECT, false, false)};
    static const void *const pushes[LL_MODES][2][2] = {
        {KERNELS(LL_BY_RANK, false, true), KERNELS(LL_BY_RANK, true, true)},
        {KERNELS(LL_ONCE, false, true), KERNELS(LL_ONCE, true, true)},
        {KERNELS(LL_DIRECT, false, true), KERNELS(LL_DIRECT, true, true)}};

    return pushed ? pushes[mode][fp8][profile] : pulls[mode][profile];
}
