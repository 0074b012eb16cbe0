/* Kernel of fused: sums. Warps add up the outputs of a token, from registers or through shared
 * memory; and the destinations of the sums. */
#ifndef FUSED_SUMS_CUH
#define FUSED_SUMS_CUH

#include "fused_counts.cuh"

/* Adds up parts of rows of 16-bit values, `bytes` each, one row for each set bit of `lanes` in
 * ascending order; the lane holds the row's address and weight. SWEEPS x 512 bytes of MANY rows are
 * in flight together. store(at, sum): a lane's 16 bytes. Called by one warp. */
template <bool F16, int SWEEPS, int MANY, class STORE>
EPA_DEV void fused_reduce(uint32_t lanes, const char *row, float weight, uint32_t bytes,
                          STORE store)
{
    uint32_t lane = epa_dev_lane();

    for (uint32_t from = 0; from < bytes; from += SWEEPS * 512) {
        float sum[SWEEPS][8] = {};

        for (uint32_t left = lanes; left != 0;) {
            uint4 v[SWEEPS][MANY];
            uint32_t used = left;

#pragma unroll
            for (int i = 0; i < MANY; i++) {
                const char *p = dev_from_lane(row, left != 0 ? __ffs(left) - 1 : 0);

#pragma unroll
                for (int s = 0; s < SWEEPS; s++) {
                    uint32_t at = from + s * 512 + lane * 16;

                    v[s][i] = fused_load16_now(p + at, left != 0 && at < bytes);
                }
                left &= left - 1;
            }
#pragma unroll
            for (int i = 0; i < MANY; i++) {
                float w;

                if (used == 0)
                    break;
                w = __shfl_sync(EPA_DEV_ALL, weight, __ffs(used) - 1);
                used &= used - 1;
#pragma unroll
                for (int s = 0; s < SWEEPS; s++) {
                    float value[8];

                    epa_dev_unpack<F16>(v[s][i], value);
                    dev_add8(value, w, sum[s]);
                }
            }
        }
#pragma unroll
        for (int s = 0; s < SWEEPS; s++)
            if (from + s * 512 + lane * 16 < bytes)
                store(from + s * 512 + lane * 16, epa_dev_pack<F16>(sum[s]));
    }
}

/* Return the bytes of a row before a part, and in it. */
EPA_DEV uint32_t fused_part_at(const struct fused_args &a, uint32_t part)
{
    return part * a.part_channels * 2;
}

EPA_DEV uint32_t fused_part_bytes(const struct fused_args &a, uint32_t part)
{
    return min(a.part_channels, a.c.hidden - part * a.part_channels) * 2;
}

/* Returns the number of rows that return for a token: a sum per rank, or apart, one row per
 * choice. */
template <class S> EPA_DEV uint32_t fused_returns(const struct fused_args &a)
{
    return S::WAYS && a.ways.apart != 0 ? a.c.topk : a.c.v.size;
}

template <class S>
EPA_DEV char *fused_partial(const struct fused_args &a, uint32_t owner, uint32_t token,
                            uint32_t source, uint32_t which)
{
    if (S::WAYS && a.ways.gathers != 0) {
        uint64_t row = (uint64_t)owner * a.c.max_tokens + token;

        row = a.ways.apart != 0 ? row * a.c.topk + which : row;
        return a.c.v.peer_heap[source] + a.partial + row * a.c.hidden * 2;
    }
    return a.c.v.peer_heap[owner] + a.partial +
           ((uint64_t)token * fused_returns<S>(a) + which) * a.c.hidden * 2;
}

template <class S>
EPA_DEV uint64_t *fused_flag(const struct fused_args &a, uint32_t owner, uint32_t token,
                             uint32_t which, uint32_t part)
{
    return reinterpret_cast<uint64_t *>(a.c.v.peer_heap[owner] + a.flags) +
           ((uint64_t)token * fused_returns<S>(a) + which) * a.parts + part;
}

/* An item of the queue: a token whose `n` outputs on this rank are complete; or apart, its output
 * `first`. */
struct fused_sum {
    uint32_t n, slot, first;
};

template <class S> EPA_DEV struct fused_sum fused_sum_of(const struct fused_args &a, uint64_t item)
{
    uint32_t low = (uint32_t)item;

    if (S::WAYS && a.ways.apart != 0)
        return {1, low >> 5, low & 31};
    return {low >> 26, low & ((1u << 26) - 1), 0};
}

/* Returns the item of lane `k`. */
template <class S>
EPA_DEV struct fused_sum fused_item(const struct fused_args &a, uint64_t item, uint32_t k)
{
    return fused_sum_of<S>(a, __shfl_sync(EPA_DEV_ALL, (unsigned long long)item, k));
}

/* Returns a lane's output of a sum. */
EPA_DEV struct fused_place fused_place_of(const struct fused_args &a, const struct fused_sum &s)
{
    uint2 raw = {};

    if (epa_dev_lane() < s.n)
        raw =
            __ldcg(reinterpret_cast<const uint2 *>(a.place + (size_t)s.slot * a.c.topk + s.first) +
                   epa_dev_lane());
    return {raw.x, __uint_as_float(raw.y)};
}

/* Returns the index of a sum among the rows that return for its token. */
template <class S>
EPA_DEV uint32_t fused_which(const struct fused_args &a, const struct fused_sum &s)
{
    return S::WAYS && a.ways.apart != 0 ? s.first : a.c.v.rank;
}

/* Returns the destination of a sum. */
template <class S> EPA_DEV char *fused_sum_to(const struct fused_args &a, const struct fused_sum &s)
{
    uint32_t owner = s.slot / a.c.max_tokens, token = s.slot % a.c.max_tokens;

    return a.direct != 0 ? static_cast<char *>(a.c.out) + (size_t)token * a.c.hidden * 2
                         : fused_partial<S>(a, owner, token, a.c.v.rank, fused_which<S>(a, s));
}

/* A step of the sums of a few tokens: FUSED_STAGE_BYTES bytes, of up to FUSED_STAGE_ROWS rows of a
 * token. Fewer rows have more bytes each. */
struct fused_step {
    uint32_t k, at, first; /* k: token; at: bytes of its part before the step; first: rows before
                            * the step */
    uint32_t log_rows;     /* log2 of the number of rows of a step */
    struct fused_sum sum;
    struct fused_place place; /* place of this lane's output */
};

EPA_DEV uint32_t fused_step_rows(const struct fused_step &s)
{
    return 1u << s.log_rows;
}

/* Returns the bytes of each row. */
EPA_DEV uint32_t fused_step_bytes(const struct fused_step &s)
{
    return FUSED_STAGE_BYTES >> s.log_rows;
}

template <class S>
EPA_DEV void fused_step_begin(const struct fused_args &a, uint64_t item, uint32_t n, uint32_t k,
                              struct fused_step *s)
{
    s->k = k;
    s->at = s->first = 0;
    if (k >= n)
        return;
    s->sum = fused_item<S>(a, item, k);
    s->place = fused_place_of(a, s->sum);
    s->log_rows = (s->sum.n > 1) + (s->sum.n > 2) + (s->sum.n > 4);
}

template <class S>
EPA_DEV void fused_step_next(const struct fused_args &a, uint64_t item, uint32_t n, uint32_t bytes,
                             struct fused_step *s)
{
    s->first += fused_step_rows(*s);
    if (s->first < s->sum.n)
        return;
    s->first = 0;
    s->at += fused_step_bytes(*s);
    if (s->at >= bytes)
        fused_step_begin<S>(a, item, n, s->k + 1, s);
}

/* Copies the inputs of a step into its stage, with at least four lanes per row. */
EPA_DEV void fused_step_load(const struct fused_args &a, const struct fused_step &s, uint32_t n,
                             uint32_t begin, uint32_t bytes, char *stage)
{
    enum { COPIES = FUSED_STAGE_BYTES / (16 * EPA_DEV_WARP) }; /* copies per lane */
    uint32_t sweep = fused_step_bytes(s) / COPIES, own = epa_dev_lane() >> (5 - s.log_rows);
    uint32_t in = epa_dev_lane() * 16 & (sweep - 1), at = s.at + in;
    uint32_t row = __shfl_sync(EPA_DEV_ALL, s.place.row, (s.first + own) % EPA_DEV_WARP);

    if (s.k < n && s.first + own < s.sum.n) {
        const char *from = a.y + (uint64_t)row * a.c.hidden * 2 + begin + at;
        char *to = stage + own * fused_step_bytes(s) + in;

#pragma unroll
        for (uint32_t j = 0; j < COPIES; j++, at += sweep, to += sweep, from += sweep)
            if (at < bytes)
                epa_dev_copy16(to, from);
    }
    epa_dev_copy_commit();
}

/* Adds up a part of `n` items, one per lane, while the inputs of the next a.stages steps are copied
 * to shared memory. Called by one warp. */
template <class S>
EPA_DEV void fused_sum_staged(const struct fused_args &a, uint64_t item, uint32_t n, uint32_t part,
                              char *stages)
{
    uint32_t lane = epa_dev_lane(), begin = fused_part_at(a, part), stage = 0;
    uint32_t bytes = fused_part_bytes(a, part);
    struct fused_step load = {}, use = {};
    float sum[8] = {};

    fused_step_begin<S>(a, item, n, 0, &load);
    use = load;
    for (uint32_t i = 0; i < a.stages; i++) {
        fused_step_load(a, load, n, begin, bytes, stages + i * FUSED_STAGE_BYTES);
        if (load.k < n)
            fused_step_next<S>(a, item, n, bytes, &load);
    }
    while (use.k < n) {
        char *from = stages + stage * FUSED_STAGE_BYTES;

        if (a.stages == FUSED_STAGES)
            epa_dev_copy_wait<FUSED_STAGES - 1>();
        else if (a.stages > 1)
            epa_dev_copy_wait<1>();
        else
            epa_dev_copy_wait<0>();
        __syncwarp();
        for (uint32_t own = lane * 16; own < fused_step_bytes(use); own += 16 * EPA_DEV_WARP) {
#pragma unroll
            for (uint32_t i = 0; i < FUSED_STAGE_ROWS; i++) {
                float value[8], weight;

                if (use.first + i >= use.sum.n)
                    break;
                weight = __shfl_sync(EPA_DEV_ALL, use.place.weight, use.first + i);
                epa_dev_unpack<S::F16>(
                    *reinterpret_cast<const uint4 *>(from + i * fused_step_bytes(use) + own),
                    value);
                dev_add8(value, weight, sum);
            }
            if (use.first + fused_step_rows(use) < use.sum.n) /* then the loop body covers the
                                                               * whole step */
                break;
            if (use.at + own < bytes)
                epa_dev_store16(fused_sum_to<S>(a, use.sum) + begin + use.at + own,
                                epa_dev_pack<S::F16>(sum));
#pragma unroll
            for (int j = 0; j < 8; j++)
                sum[j] = 0.0f;
        }
        fused_step_next<S>(a, item, n, bytes, &use);
        __syncwarp();
        fused_step_load(a, load, n, begin, bytes, from);
        if (load.k < n)
            fused_step_next<S>(a, item, n, bytes, &load);
        stage = stage + 1 == a.stages ? 0 : stage + 1;
    }
    epa_dev_copy_wait<0>();
}

#endif
