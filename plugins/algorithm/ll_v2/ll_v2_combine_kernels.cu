/* Combine on GPUs. With pulled expert outputs, a rank loads the outputs of its tokens from the
 * place where experts wrote them, and adds them up. With pushed expert outputs, the experts' rank
 * sends packets with the number of the combine. Pushing moves fewer bytes if the experts' rank adds
 * outputs up or quantises them first, and links carry stores better than loads.
 *
 * Signals: OUTPUT of a source has the number of the combine from the start of the combine. Its
 * experts have then written their outputs, and it has finished all its earlier reads. Every rank
 * waits for OUTPUT of all ranks in every combine, even of ranks without outputs for it. Therefore
 * the next dispatch may store without a handshake. */
#define EPA_DEV_KEEP_LANE /* up to 3 % faster */
#include "ll_v2_combine_kernels.h"
#include "ll_v2_masks.cuh"
#include "ll_v2_outputs.cuh"

/* ---- pushed expert outputs, at the token's rank ----
 *
 * A warp reads packets until all expert outputs of a token have arrived. It adds them up in the
 * order of their places; a lane adds the words that it loads. */

/* Waits in lane l for the packets of the expert output at place l, `skip` bytes into the share, if
 * the place is in `list`. Called by one warp. */
template <bool MASKED>
EPA_DEV bool wait_outputs(const struct ll_args &a, const struct dev_part &p, uint32_t token,
                          uint32_t list, uint32_t skip, uint32_t packets, const struct outputs &of,
                          bool direct, uint64_t epoch, struct epa_dev_poll *poll)
{
    uint32_t place = epa_dev_lane();
    struct epa_dev_wait w = {LL_COMBINE, LL_DATA, direct ? of.of.expert / a.c.local : place, token};
    const char *from = a.c.v.peer_heap[a.c.v.rank] + output_at(a, token, place, p.unit) + skip;
    bool ok;

    if constexpr (MASKED)
        ok = (list >> place & 1) == 0 ||
             epa_dev_packet_wait(ll_patience{a, a.c.timeout_ns}, from, packets, epoch, w, poll);
    else
        ok = (list >> place & 1) == 0 || epa_dev_packet_wait(a.c, from, packets, epoch, w, poll);
    return __all_sync(EPA_DEV_ALL, ok);
}

/* Sets OUTPUT of this rank at each rank, by the last warp, which has no output to send if tokens are few.
 * Pairs with wait_for_outputs(). */
EPA_DEV void signal_outputs(const struct ll_args &a, uint64_t epoch)
{
    if (threadIdx.x >= DEVICE_THREADS - EPA_DEV_WARP && epa_dev_lane() < a.c.v.size)
        epa_dev_signal(a.c.v, a.c.signal + LL_OUTPUT * a.c.v.size + a.c.v.rank, epoch,
                       epa_dev_lane());
}

/* Waits for OUTPUT of all ranks in the last warp of block `block`. Pulled: in all blocks, and all threads
 * of a block have the acquire. Pushed: in the first block only, and the other warps do not wait, since
 * packets need no signal; the end of the kernel does. Returns false if it is missing. */
template <bool PUSHED>
EPA_DEV bool wait_for_outputs(const struct ll_args &a, uint32_t block, uint64_t epoch)
{
    struct epa_dev_wait w = {LL_COMBINE, LL_OUTPUT, epa_dev_lane(), 0};
    bool ok = true;

    if ((!PUSHED || block == 0) && threadIdx.x >= DEVICE_THREADS - EPA_DEV_WARP &&
        epa_dev_lane() < a.c.v.size)
        ok = epa_dev_wait_for(a.c.v, a.c.signal + LL_OUTPUT * a.c.v.size + epa_dev_lane(), epoch,
                              a.c.timeout_ns, w);
    return PUSHED ? __all_sync(EPA_DEV_ALL, ok) : __syncthreads_and(ok);
}

enum { TAKE = 2 }; /* number of expert outputs that a warp holds at a time */

/* Adds up a token's share in 16 bits: expert outputs at the places of `list` in order, with the
 * weights of lanes. Returns false if an output did not arrive. */
template <bool F16, bool MASKED>
EPA_DEV bool take_words(const struct ll_args &a, const struct dev_part &p, uint32_t token,
                        uint32_t list, float by, const struct outputs &of, bool direct,
                        uint64_t epoch, struct word_sum *s)
{
    uint32_t packets = epa_packets_of(2 * p.channels), tries = a.tries;
    struct epa_dev_poll poll = {};

    while (list != 0) {
        struct epa_dev_words v[TAKE][PUSH_GROUPS];
        uint32_t left = list;
        bool all = true;

#pragma unroll
        for (int i = 0; i < TAKE; i++, left &= left - 1) {
            uint32_t place = left != 0 ? __ffs(left) - 1 : 0;
            const char *from = a.c.v.peer_heap[a.c.v.rank] + output_at(a, token, place, p.unit);

            if (left != 0)
                all = epa_dev_packets_load<PUSH_GROUPS>(from, packets, epoch, v[i]) && all;
        }
        if (!all) { /* list ^ left: the places of this batch */
            if (tries != 0 && tries-- != 0)
                continue;
            if (!wait_outputs<MASKED>(a, p, token, list ^ left, 0, packets, of, direct, epoch,
                                      &poll))
                return false;
            continue;
        }
#pragma unroll
        for (int i = 0; i < TAKE; i++) {
            float weight = __shfl_sync(EPA_DEV_ALL, by, list != 0 ? __ffs(list) - 1 : 0);

            if (list != 0)
                add_words<LL_FROM_Y, F16>(v[i], 1.0f, weight, s);
            list &= list - 1;
        }
    }
    return true;
}

template <bool F16>
EPA_DEV void store_words(const struct ll_args &a, const struct dev_part &p, uint32_t token,
                         const struct word_sum &s)
{
    char *to = static_cast<char *>(a.c.out) + 2 * ((size_t)token * a.c.hidden + p.first);
    struct epa_dev_words v[PUSH_GROUPS];

    round_words<F16>(s, v);
    dev_words_store<PUSH_GROUPS>(to, p.channels / DEV_CHANNELS, v);
}

/* Sum of a chunk of FP8 codes. A warp takes four lines at a time, a lane a chunk of each output. */
struct code_sum {
    float v[LL_CHUNK];
};

/* Position of a warp in a share: its four lines, and this lane's chunk in them. */
struct code_place {
    uint32_t packets, line, slot, scale; /* packets: number of the four lines that the share has */
    uint32_t channel;                    /* first channel of the chunk in the share */
    bool has;
};

EPA_DEV struct code_place code_place_of(const struct ll_args &a, const struct dev_part &p,
                                        uint32_t four)
{
    uint32_t all = ll_code_packets(p.channels, a.c.group), chunks = ll_chunks_of(a.c.group);
    uint32_t line = four * EPA_DEV_PACKETS + epa_dev_lane() / 8, slot = epa_dev_lane() % 8;
    uint32_t packets =
        four * EPA_DEV_PACKETS < all ? min(all - four * EPA_DEV_PACKETS, EPA_DEV_PACKETS) : 0;
    uint32_t channel = (line * chunks + slot) * LL_CHUNK;

    return {packets, line,
            slot,    ll_scale_of(a.c.group, line, slot),
            channel, slot < chunks && channel < p.channels};
}

/* Returns the scale of this lane's chunk, which the last lanes of the line hold. Called by all
 * lanes of the warp. */
EPA_DEV float scale_of(const struct ll_args &a, const struct code_place &at, struct epa_dev_words v)
{
    uint32_t last = epa_dev_lane() | 7;

    if (ll_chunks_of(a.c.group) == LL_MOST_CHUNKS) {
        uint32_t first = __shfl_sync(EPA_DEV_ALL, (uint32_t)v.w[0], last);
        uint32_t second = __shfl_sync(EPA_DEV_ALL, (uint32_t)(v.w[0] >> 32), last);

        return __uint_as_float(at.scale == 0 ? first : second);
    }
    uint32_t from = at.scale < 4 ? last - 1 : last;
    uint64_t low = __shfl_sync(EPA_DEV_ALL, v.w[0], from),
             high = __shfl_sync(EPA_DEV_ALL, v.w[1], from);
    uint64_t pair = (at.scale & 2) != 0 ? high : low;

    return __uint_as_float((uint32_t)(pair >> (at.scale % 2 * 32)));
}

EPA_DEV void add_codes(struct epa_dev_words v, float scale, float weight, struct code_sum *to)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float value[8];

        epa_dev_unpack_fp8((uint32_t)v.w[h], scale, value);
        epa_dev_unpack_fp8((uint32_t)(v.w[h] >> 32), scale, value + 4);
        dev_add8(value, weight, to->v + 8 * h);
    }
}

enum { TAKE_CODES = 4 };

/* Adds up a share in FP8. DIRECT: outputs of experts with the weights of lanes; else outputs of
 * ranks, with weight 1. */
template <bool DIRECT>
EPA_DEV bool take_codes(const struct ll_args &a, const struct dev_part &p,
                        const struct code_place &at, uint32_t token, uint32_t four, uint32_t list,
                        float by, const struct outputs &of, uint64_t epoch, struct code_sum *to)
{
    uint32_t skip = four * EPA_DEV_PACKETS * EPA_PACKET, tries = a.tries;
    struct epa_dev_poll poll = {};

    while (list != 0) {
        struct epa_dev_words v[TAKE_CODES];
        uint32_t left = list;
        bool all = true;

#pragma unroll
        for (int i = 0; i < TAKE_CODES; i++, left &= left - 1) {
            uint32_t place = left != 0 ? __ffs(left) - 1 : 0;
            const char *from =
                a.c.v.peer_heap[a.c.v.rank] + output_at(a, token, place, p.unit) + skip;

            /* an output that is not expected passes the test below */
            v[i].w[0] = v[i].w[1] = ~0ull;
            if (left != 0 && epa_dev_has_packet(0, at.packets))
                v[i] = epa_dev_packet_load(from, 0);
        }
#pragma unroll
        for (int i = 0; i < TAKE_CODES; i++)
            all = all && (!epa_dev_ends_packet() || v[i].w[1] >= epoch);
        if (!__all_sync(EPA_DEV_ALL, all)) { /* list ^ left: the places of this batch */
            if (tries != 0 && tries-- != 0)
                continue;
            if (!wait_outputs<false>(a, p, token, list ^ left, skip, at.packets, of, DIRECT, epoch,
                                     &poll))
                return false;
            continue;
        }
#pragma unroll
        for (int i = 0; i < TAKE_CODES; i++) {
            float weight =
                DIRECT ? __shfl_sync(EPA_DEV_ALL, by, list != 0 ? __ffs(list) - 1 : 0) : 1.0f;
            float scale = scale_of(a, at, v[i]);

            if (list != 0)
                add_codes(v[i], scale, weight, to);
            list &= list - 1;
        }
    }
    return true;
}

template <bool F16>
EPA_DEV void store_codes(const struct ll_args &a, const struct dev_part &p,
                         const struct code_place &at, uint32_t token, const struct code_sum &sum)
{
    char *to =
        static_cast<char *>(a.c.out) + 2 * ((size_t)token * a.c.hidden + p.first + at.channel);

    if (!at.has)
        return;
    epa_dev_store16(to, epa_dev_pack<F16>(sum.v));
    epa_dev_store16(to + 16, epa_dev_pack<F16>(sum.v + 8));
}

/* ---- the kernel ---- */

template <int MODE, int FROM, bool F16, bool FP8, bool PROFILE>
EPA_DEV void send(const struct ll_args &a, uint64_t epoch, uint32_t blocks)
{
    uint32_t rows = MODE == LL_DIRECT ? __ldcg(a.c.rows) : a.c.v.size * a.c.max_tokens;
    uint32_t warps = blocks * DEVICE_WARPS, all = rows * a.shares;

    uint32_t begun = dev_begun<PROFILE>();

    for (uint32_t u = dev_warp_of(blockIdx.x, blocks), asked; u < all;
         u = dev_next(asked, warps, all)) {
        uint32_t source, token;

        asked = dev_ask(a.c, DEV_SENDING, epoch, warps, all);
        if (MODE == LL_DIRECT) {
            push_entry<FROM, F16, FP8>(a, u / a.shares, u % a.shares, epoch);
            continue;
        }
        ll_slot_at(a.c.v.size, a.c.v.rank + 1, u / a.shares, &source, &token);
        if constexpr (MODE == LL_MASKED)
            if (ll_is_left_out(source))
                continue;
        push_slot<MODE == LL_MASKED ? LL_BY_CHOICE : MODE, FROM, F16, FP8>(a, source, token,
                                                                           u % a.shares, epoch);
    }
    dev_ended<PROFILE>(a.c, epoch, LL_COPY_AND_PUT, begun);
}

/* Returns the number of units of a share at its receiver. */
template <bool FP8> EPA_DEV uint32_t fours(void)
{
    return FP8 ? LL_CODE_PACKETS / EPA_DEV_PACKETS : 1;
}

/* Reduces a share of a token, or unit `four` of it, which is four lines. Returns false if an expert
 * output did not arrive. Called by one warp. */
template <int MODE, int FROM, bool F16, bool FP8, bool PUSHED>
EPA_DEV bool reduce(const struct ll_args &a, uint32_t token, uint32_t share, uint32_t four,
                    const struct outputs &of, uint64_t epoch, uint32_t turn)
{
    struct dev_part p = share_at(a, share);
    constexpr bool CHOICES = ll_sums_choices<MODE>;
    uint32_t list = CHOICES ? of.of.list : of.ranks;
    float by = CHOICES ? of.of.weight : 1.0f;

    if constexpr (!PUSHED) {
        struct term t;

        list = list_outputs<MODE, FROM>(a, token, of, &t);
        store_out<F16, false>(a, p, token,
                              add_up<FROM, F16, false, MODE == LL_DIRECT>(a, p, list, t, turn));
    } else if constexpr (FP8) {
        struct code_place at = code_place_of(a, p, four);
        struct code_sum s = {};

        if (at.packets == 0)
            return true;
        if (!take_codes<CHOICES>(a, p, at, token, four, list, by, of, epoch, &s))
            return false;
        store_codes<F16>(a, p, at, token, s);
    } else {
        struct word_sum s = {};

        if (!take_words<F16, MODE == LL_MASKED>(a, p, token, list, by, of, CHOICES, epoch, &s))
            return false;
        store_words<F16>(a, p, token, s);
    }
    return true;
}

/* Removes the choices of experts of ranks that the block leaves out. Called by one warp. */
EPA_DEV void leave_out_choices(const struct ll_args &a, struct outputs *of)
{
    bool here = (of->of.list >> epa_dev_lane() & 1) != 0;

    of->of.list = __ballot_sync(EPA_DEV_ALL, here && !ll_is_left_out(of->of.expert / a.c.local));
}

template <int MODE, int FROM, bool F16, bool FP8, bool PUSHED, bool PROFILE>
EPA_DEV void receive(const struct ll_args &a, uint64_t epoch, uint32_t block, uint32_t blocks)
{
    enum { AHEAD = !ll_sums_choices<MODE>, FINDS = MODE == LL_ORDERED && !PUSHED };
    uint32_t units = a.shares * fours<FP8>(), all = a.c.tokens * units;
    uint32_t u = dev_warp_of(block, blocks), asked;
    /* Loads the choices of the first unit before the wait for OUTPUT. With weights of lanes, no
     * registers remain for this. */
    struct outputs of = {};

    if (AHEAD && u < all)
        of = outputs_of<FINDS>(a, u / units);
    uint32_t begun = dev_begun<PROFILE>();
    if constexpr (MODE == LL_MASKED) {
        if (block == 0 && !ll_wait_live(a, epoch))
            return;
    } else if (!wait_for_outputs<PUSHED>(a, block, epoch)) {
        return;
    }
    dev_ended<PROFILE>(a.c, epoch, LL_RECV_WAIT, begun);
    begun = dev_begun<PROFILE>();
    while (u < all) {
        asked = dev_ask(a.c, DEV_RECEIVING, epoch, blocks * DEVICE_WARPS, all);
        if (!AHEAD)
            of = outputs_of<FINDS>(a, u / units);
        if constexpr (MODE == LL_MASKED)
            leave_out_choices(a, &of);
        if (!reduce<MODE, FROM, F16, FP8, PUSHED>(a, u / units, u % units / fours<FP8>(),
                                                  u % fours<FP8>(), of, epoch, a.c.v.rank + u) &&
            (MODE != LL_MASKED || ll_must_end(a)))
            return;
        u = dev_next(asked, blocks * DEVICE_WARPS, all);
        if (AHEAD && u < all)
            of = outputs_of<FINDS>(a, u / units);
    }
    dev_ended<PROFILE>(a.c, epoch, LL_TOPK_REDUCE, begun);
}

/* With masks: the last block repeats the work of all blocks if ranks were lost. */
template <int FROM, bool F16>
EPA_DEV void receive_live(const struct ll_args &a, uint64_t epoch, uint32_t block, uint32_t blocks)
{
    ll_leave_out_agreed(a, epoch);
    receive<LL_MASKED, FROM, F16, false, true, false>(a, epoch, block, blocks);
    if (!ll_is_last(a, blocks))
        return;
    while (ll_leave_out_lost(a, epoch))
        receive<LL_MASKED, FROM, F16, false, true, false>(a, epoch, 0, 1);
}

namespace
{

/* With pushed expert outputs, the last blocks only receive. Few registers leave room to set up the
 * next kernel beside this one. */
template <int MODE, int FROM, bool F16, bool FP8, bool PUSHED, bool PROFILE>
__global__ void __launch_bounds__(DEVICE_THREADS, PUSHED && !(FP8 && ll_uses_slots<MODE>) ? 2 : 4)
    combine(const __grid_constant__ struct ll_args a)
{
    bool sends = (a.halves & LL_SEND) != 0, receives = (a.halves & LL_RECEIVE) != 0;
    uint32_t first = sends && receives ? a.receivers_from : 0;
    uint64_t epoch = dev_begin(a.c, a.counts_early != 0, true);

    if constexpr (MODE == LL_MASKED) {
        ll_leave_out_masked(a);
        if (sends && blockIdx.x == 0)
            ll_signal_live(a, epoch);
    } else if (sends && blockIdx.x == 0) {
        signal_outputs(a, epoch);
    }
    if (sends && PUSHED && (first == 0 || blockIdx.x < first))
        send<MODE, FROM, F16, FP8, PROFILE>(a, epoch, first == 0 ? gridDim.x : first);
    if (receives && blockIdx.x >= first) {
        if constexpr (MODE == LL_MASKED)
            receive_live<FROM, F16>(a, epoch, blockIdx.x - first, gridDim.x - first);
        else
            receive<MODE, FROM, F16, FP8, PUSHED, PROFILE>(a, epoch, blockIdx.x - first,
                                                           gridDim.x - first);
    }
    dev_end(a.c, epoch, receives);
}

} // namespace

#define PAIR(...) \
    { \
        (const void *)combine<__VA_ARGS__, false>, (const void *)combine<__VA_ARGS__, true> \
    }
#define KERNELS(mode, from, fp8, pushed) \
    { \
        PAIR(mode, from, false, fp8, pushed), PAIR(mode, from, true, fp8, pushed) \
    }
#define FUSED(mode, pushed) \
    { \
        KERNELS(mode, LL_FROM_ROWS, false, pushed), KERNELS(mode, LL_FROM_CODES, false, pushed) \
    }

/* Returns the kernel of a combine with fuse_expert, which computes outputs from received rows. */
static const void *fused_kernel(struct ll_combine_kind k)
{
    static const void *const pulls[2][2][2] = FUSED(LL_DIRECT, false);
    static const void *const pushes[2][2][2] = FUSED(LL_DIRECT, true);
    static const void *const sums[2][2][2] = FUSED(LL_DEDUP, true);
    uint32_t codes = k.from == LL_FROM_CODES;

    if (k.fp8 || k.mode == LL_BY_RANK || k.mode == LL_ORDERED)
        return NULL;
    return k.mode == LL_DEDUP ? sums[codes][k.f16][k.profile]
           : k.pushed         ? pushes[codes][k.f16][k.profile]
                              : pulls[codes][k.f16][k.profile];
}

#define GIVEN(mode, fp8, pushed) KERNELS(mode, LL_FROM_Y, fp8, pushed)

const void *ll_combine_kernel(struct ll_combine_kind k)
{
    /* they record no phases */
    static const void *const masked[2] = {
        (const void *)combine<LL_MASKED, LL_FROM_Y, false, false, true, false>,
        (const void *)combine<LL_MASKED, LL_FROM_Y, true, false, true, false>};
    static const void *const pulls[LL_MODES][2][2] = {
        [LL_BY_RANK] = GIVEN(LL_BY_RANK, false, false),
        [LL_ORDERED] = GIVEN(LL_ORDERED, false, false),
        [LL_DEDUP] = {}, /* dedup adds up outputs before their transfer */
        [LL_DIRECT] = GIVEN(LL_DIRECT, false, false),
        [LL_BY_CHOICE] = {}}; /* follows dedup, which pushes */
    static const void *const pushes[LL_MODES][2][2][2] = {
        {GIVEN(LL_BY_RANK, false, true), GIVEN(LL_BY_RANK, true, true)},
        {GIVEN(LL_ORDERED, false, true), GIVEN(LL_ORDERED, true, true)},
        {GIVEN(LL_DEDUP, false, true), GIVEN(LL_DEDUP, true, true)},
        {GIVEN(LL_DIRECT, false, true), GIVEN(LL_DIRECT, true, true)},
        {GIVEN(LL_BY_CHOICE, false, true), GIVEN(LL_BY_CHOICE, true, true)}};

    if (k.mode == LL_MASKED)
        return masked[k.f16];
    if (k.from != LL_FROM_Y)
        return fused_kernel(k);
    return k.pushed ? pushes[k.mode][k.fp8][k.f16][k.profile] : pulls[k.mode][k.f16][k.profile];
}
