/* Combine on GPUs, with a kernel per half. combine_send: warps take parts of the rows by expert,
 * compute the expert output if requested, and store it in the slot of its flat token at the token's
 * rank. combine_recv: warps take parts of tokens, wait for the slots, and add them up in the order
 * of k.
 *
 * A lane holds the channels of its words of the lines from beginning to end, four channels per
 * word. */
#include "../../common/algo_cuda.cuh"
#include "token_flag_combine_kernels.h"

/* Returns the first word of a part; words_of() returns the number of words of the expert output in
 * it. */
EPA_DEV uint32_t first_word(const struct tf_part &p)
{
    return p.unit * (TF_UNIT_BYTES / 8);
}

EPA_DEV uint32_t words_of(const struct tf_args &a, const struct tf_part &p)
{
    return min(a.c.hidden / DEV_CHANNELS - first_word(p), (uint32_t)TF_UNIT_BYTES / 8);
}

/* ---- combine_send ---- */

template <bool F16> EPA_DEV uint64_t times(uint64_t word, float factor)
{
    uint32_t low = (uint32_t)word, high = (uint32_t)(word >> 32);

    low = epa_dev_pack2<F16>(__fmul_rn(epa_dev_low<F16>(low), factor),
                             __fmul_rn(epa_dev_high<F16>(low), factor));
    high = epa_dev_pack2<F16>(__fmul_rn(epa_dev_low<F16>(high), factor),
                              __fmul_rn(epa_dev_high<F16>(high), factor));
    return (uint64_t)high << 32 | low;
}

template <bool F16> EPA_DEV uint64_t times_fp8(uint32_t codes, float scale, float factor)
{
    float v[4];

    epa_dev_unpack_fp8(codes, scale, v);
    return (uint64_t)epa_dev_pack2<F16>(__fmul_rn(v[2], factor), __fmul_rn(v[3], factor)) << 32 |
           epa_dev_pack2<F16>(__fmul_rn(v[0], factor), __fmul_rn(v[1], factor));
}

/* Loads a word's channels: FP8 codes in the low half, the scale in the high half. */
EPA_DEV uint64_t load_codes(const struct tf_args &a, const char *row, uint32_t word)
{
    const float *scale = reinterpret_cast<const float *>(row + a.scales_at);

    return (uint64_t)__float_as_uint(__ldcg(scale + word * DEV_CHANNELS / a.c.group)) << 32 |
           __ldcg(reinterpret_cast<const uint32_t *>(row) + word);
}

/* Loads this lane's words of a part, from given expert outputs or from the received row. */
template <int KIND>
EPA_DEV void load_words(const struct tf_args &a, const char *row, const struct tf_part &p,
                        struct epa_dev_words *v)
{
    uint32_t first = first_word(p), n = words_of(a, p);

    if constexpr (KIND != TF_OUTPUT_FP8) {
        dev_words_load<TF_FOURS>(row + first * 8, n, v);
    } else {
#pragma unroll
        for (int g = 0; g < TF_FOURS; g++) {
            uint32_t at = epa_dev_word_at(g);

            v[g].w[0] = at < n ? load_codes(a, row, first + at) : 0;
            v[g].w[1] =
                !epa_dev_ends_packet() && at + 1 < n ? load_codes(a, row, first + at + 1) : 0;
        }
    }
}

/* Destination of the expert output of a row, from META of the row. */
struct whose {
    uint32_t rank, token, k, expert, row;
};

EPA_DEV struct whose whose_row(const struct tf_args &a, const char *row)
{
    const unsigned long long *meta = reinterpret_cast<const unsigned long long *>(row + a.meta_at);
    uint64_t first = __ldcg(meta), second = __ldcg(meta + 1);

    return {(uint32_t)first, (uint32_t)(first >> 32), (uint32_t)second % 65536,
            (uint32_t)second >> 16, (uint32_t)(second >> 32)};
}

/* Returns the index of the slot for row `row` of rank `source`, or for choice k of the token. */
EPA_DEV uint64_t slot_number(const struct tf_args &a, uint32_t token, uint32_t k, uint32_t source,
                             uint32_t row)
{
    return a.place != NULL ? (uint64_t)source * a.source_rows + row
                           : (uint64_t)token * a.c.topk + k;
}

/* Sends a part of the expert output of a row. Called by one warp. */
template <int KIND, bool F16>
EPA_DEV void output_part(const struct tf_args &a, uint64_t epoch, uint64_t entry, uint32_t unit)
{
    struct tf_part p = tf_part_at(a.output_packets, unit);
    const char *row = dev_own(a.c.v, a.grouped + entry * a.message_bytes);
    const char *y = static_cast<const char *>(a.c.y) + entry * a.output_bytes;
    struct whose of = whose_row(a, row);
    struct epa_dev_words v[TF_FOURS];
    char *to = a.c.v.peer_heap[of.rank] + a.outputs +
               slot_number(a, of.token, of.k, a.c.v.rank, of.row) * a.slot_bytes +
               unit * TF_UNIT_PACKETS * EPA_PACKET;
    float factor = 1.0f;

    load_words<KIND>(a, KIND == TF_OUTPUT_GIVEN ? y : row, p, v);
    if (KIND != TF_OUTPUT_GIVEN)
        factor = __ldg(a.c.factor + a.c.v.rank * a.c.local + of.expert);
#pragma unroll
    for (int g = 0; g < TF_FOURS; g++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (KIND == TF_OUTPUT_DTYPE)
                v[g].w[i] = times<F16>(v[g].w[i], factor);
            if (KIND == TF_OUTPUT_FP8)
                v[g].w[i] = times_fp8<F16>((uint32_t)v[g].w[i],
                                           __uint_as_float((uint32_t)(v[g].w[i] >> 32)), factor);
        }
        if (epa_dev_has_packet(g, p.packets))
            epa_dev_packet_store(to, g, v[g], epoch);
    }
}

/* Returns the entry of the i-th row in the order of sends, so that the expert outputs of a token
 * arrive close together. */
EPA_DEV uint32_t entry_at(const struct tf_args &a, const uint32_t *received, uint32_t i)
{
    uint32_t source, row;

    tf_row_at(a.c.v.size, a.c.v.rank, received, i, &source, &row);
    return __ldcg(a.entry + (uint64_t)source * a.source_rows + row);
}

template <int KIND, bool F16, bool PROFILE>
static __global__ void __launch_bounds__(TF_THREADS, 2)
    combine_send(const __grid_constant__ struct tf_args a)
{
    uint64_t epoch = dev_begin(a.c, false, true);
    uint32_t units = tf_units_of(a.output_packets), warps = gridDim.x * dev_warps();
    uint32_t all = __ldcg(a.c.rows) * units;
    __shared__ uint32_t received[EPA_DEVICE_RANKS];

    uint32_t begun = dev_begun<PROFILE>();

    if (threadIdx.x < a.c.v.size)
        received[threadIdx.x] = __ldcg(a.received + threadIdx.x);
    __syncthreads();
    for (uint32_t u = dev_warp_of(blockIdx.x, gridDim.x), asked = 0; a.flat && u < all;
         u = dev_next(asked, warps, all)) {
        asked = dev_ask(a.c, 0, epoch, warps, all);
        output_part<KIND, F16>(a, epoch, entry_at(a, received, u / units), u % units);
    }
    for (uint32_t e = blockIdx.x; !a.flat && e < a.c.local; e += gridDim.x) {
        uint64_t start = __ldcg(reinterpret_cast<unsigned long long *>(a.c.recv_start) + e);
        uint32_t n = __ldcg(a.c.recv_count + e) * units;

        for (uint32_t u = threadIdx.x / EPA_DEV_WARP; u < n; u += dev_warps())
            output_part<KIND, F16>(a, epoch, start + u / units, u % units);
    }
    dev_ended<PROFILE>(a.c, epoch, TF_SENDING, begun);
}

/* ---- combine_recv ---- */

struct sum {
    float v[TF_FOURS][2 * DEV_CHANNELS];
};

template <bool F16> EPA_DEV void add(const struct epa_dev_words *v, float weight, struct sum *s)
{
#pragma unroll
    for (int g = 0; g < TF_FOURS; g++) {
        float value[2 * DEV_CHANNELS];

        dev_unpack_words<F16>(v[g], value);
        dev_add8(value, weight, s->v[g]);
    }
}

/* Returns the address of the slot of choice k, whose expert is at rank `rank`, from the part on. */
EPA_DEV const char *slot_of(const struct tf_args &a, uint32_t token, uint32_t k, uint32_t rank,
                            const struct tf_part &p)
{
    uint32_t row = a.place != NULL ? __ldcg(a.place + (size_t)token * a.c.topk + k) : 0;

    return dev_own(a.c.v, a.outputs + slot_number(a, token, k, rank, row) * a.slot_bytes +
                              p.unit * TF_UNIT_PACKETS * EPA_PACKET);
}

/* Adds up a part of a token's weighted expert outputs, one output at a time: few registers allow
 * more warps, each with a load in flight. Returns false if an output did not arrive. Called by one
 * warp. */
template <bool F16, bool PROFILE>
EPA_DEV bool add_outputs(const struct tf_args &a, uint64_t epoch, uint32_t token,
                         const struct tf_part &p, const struct dev_choices &of, struct sum *s)
{
    struct epa_dev_poll poll = {};
    uint32_t list = of.list, begun = dev_begun<PROFILE>();

    while (list != 0) {
        uint32_t k = __ffs(list) - 1, expert = __shfl_sync(EPA_DEV_ALL, of.expert, k);
        struct epa_dev_wait w = {a.c.stage, TF_WAIT_OUTPUT, expert / a.c.local, token};
        const char *slot = slot_of(a, token, k, expert / a.c.local, p);
        struct epa_dev_words v[TF_FOURS];

        if (!epa_dev_packets_load<TF_FOURS>(slot, p.packets, epoch, v)) {
            bool ok =
                epa_dev_lane() != 0 || epa_dev_packet_wait(a.c, slot, p.packets, epoch, w, &poll);

            if (!__all_sync(EPA_DEV_ALL, ok))
                return false;
            continue;
        }
        if (PROFILE && p.unit == 0 && epa_dev_lane() == 0)
            dev_note<PROFILE>(a.c, epoch,
                              a.c.max_tokens + a.c.v.size * a.source_rows + token * a.c.topk + k,
                              begun, expert / a.c.local, token);
        begun = dev_begun<PROFILE>();
        add<F16>(v, __shfl_sync(EPA_DEV_ALL, of.weight, k), s);
        list &= list - 1;
    }
    return true;
}

template <bool F16>
EPA_DEV void store_sum(const struct tf_args &a, uint32_t token, const struct tf_part &p,
                       const struct sum &s)
{
    struct epa_dev_words v[TF_FOURS];

#pragma unroll
    for (int g = 0; g < TF_FOURS; g++)
        v[g] = dev_pack_words<F16>(s.v[g]);
    dev_words_store<TF_FOURS>(static_cast<char *>(a.c.out) + (size_t)token * a.output_bytes +
                                  first_word(p) * 8,
                              words_of(a, p), v);
}

template <bool F16, bool PROFILE>
EPA_DEV void reduce_tokens(const struct tf_args &a, uint64_t epoch)
{
    uint32_t units = tf_units_of(a.output_packets), warps = gridDim.x * dev_warps();
    uint32_t all = a.c.tokens * units;

    for (uint32_t u = dev_warp_of(blockIdx.x, gridDim.x), asked = 0; u < all;
         u = dev_next(asked, warps, all)) {
        struct tf_part p = tf_part_at(a.output_packets, u % units);
        struct dev_choices of = dev_choices_of(a.c, u / units);
        struct sum s = {};

        asked = dev_ask(a.c, 0, epoch, warps, all);
        if (!add_outputs<F16, PROFILE>(a, epoch, u / units, p, of, &s))
            return;
        store_sum<F16>(a, u / units, p, s);
    }
}

template <bool F16, bool PROFILE>
static __global__ void __launch_bounds__(TF_THREADS, 1)
    combine_recv(const __grid_constant__ struct tf_args a)
{
    uint64_t epoch = dev_begin(a.c, false, false);

    uint32_t begun = dev_begun<PROFILE>();

    reduce_tokens<F16, PROFILE>(a, epoch);
    dev_ended<PROFILE>(a.c, epoch, TF_RECEIVING, begun);
    epa_dev_after_kernel(); /* the end of this half implies the end of the sending half */
    dev_end(a.c, epoch, true);
}

#define KERNELS(kind, f16) \
    { \
        (const void *)combine_send<kind, f16, false>, (const void *)combine_send<kind, f16, true> \
    }

const void *tf_combine_send_kernel(enum tf_output kind, bool f16, bool profile)
{
    static const void *const kernel[TF_OUTPUTS][2][2] = {
        {KERNELS(TF_OUTPUT_GIVEN, false), KERNELS(TF_OUTPUT_GIVEN, false)},
        {KERNELS(TF_OUTPUT_DTYPE, false), KERNELS(TF_OUTPUT_DTYPE, true)},
        {KERNELS(TF_OUTPUT_FP8, false), KERNELS(TF_OUTPUT_FP8, true)}};

    return kernel[kind][f16][profile];
}

const void *tf_combine_recv_kernel(bool f16, bool profile)
{
    static const void *const kernel[2][2] = {
        {(const void *)combine_recv<false, false>, (const void *)combine_recv<false, true>},
        {(const void *)combine_recv<true, false>, (const void *)combine_recv<true, true>}};

    return kernel[f16][profile];
}
