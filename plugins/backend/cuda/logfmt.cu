/* Rounds expert outputs to LogFMT-10. A warp takes a part of a row (epa2a/logfmt.h), and eight lanes a
 * group of it: a lane has 16 channels of every 512. */
#include "entries.cuh"
#include "launch_early.cuh"
#include "logfmt.h"

#include <epa2a/logfmt.h>

namespace
{

enum {
    LANE = 16, /* channels */
    SWEEP = LANE * EPA_DEV_WARP,
    GROUP_LANES = EPA_LOGFMT_GROUP / LANE
};

struct logfmt_args {
    const uint32_t *count;           /* [experts] */
    const uint64_t *start;           /* [experts] */
    uint32_t experts, hidden, parts; /* parts: of a row; a block takes one of them */
    const char *y;
    char *out;
};

/* Magnitudes of a group. */
struct range {
    uint32_t least, most;
};

/* Returns the range of the group of this lane's channels. A word has two magnitudes; the least is found
 * as the largest complement. Called by all lanes of a warp. */
EPA_DEV struct range range_of(uint4 low, uint4 high)
{
    const uint32_t pair[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    uint32_t most = 0, rest = 0, both;

#pragma unroll
    for (int i = 0; i < 8; i++) {
        most = __vmaxu2(most, pair[i] & EPA_DEV_NO_SIGN);
        rest = __vmaxu2(rest, ~pair[i] & EPA_DEV_NO_SIGN);
    }
    both = __vmaxu2(most << 16 | (rest & 0xffff), (most & 0xffff0000u) | rest >> 16);
#pragma unroll
    for (int step = 1; step < GROUP_LANES; step *= 2)
        both = __vmaxu2(both, __shfl_xor_sync(EPA_DEV_ALL, both, step));
    return {(EPA_DEV_NO_SIGN & 0xffff) - (both & 0xffff), both >> 16};
}

EPA_DEV uint32_t round_pair(struct epa_logfmt f, uint32_t pair)
{
    return epa_dev_pack2<false>(epa_logfmt_round(f, pair & 0x7fff),
                                epa_logfmt_round(f, pair >> 16 & 0x7fff)) |
           (pair & ~EPA_DEV_NO_SIGN);
}

EPA_DEV uint4 round_pairs(struct epa_logfmt f, uint4 v)
{
    return make_uint4(round_pair(f, v.x), round_pair(f, v.y), round_pair(f, v.z),
                      round_pair(f, v.w));
}

/* Rounds a part of SWEEPS times 512 channels. Called by one warp. */
template <int SWEEPS> EPA_DEV void round_part(const char *from, char *to)
{
    const uint32_t at = epa_dev_lane() * LANE * 2;
    struct range range[SWEEPS];
    bool has_codes = true;
    uint4 v[SWEEPS][2];

#pragma unroll
    for (int s = 0; s < SWEEPS; s++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            v[s][h] = epa_dev_load16(from + s * SWEEP * 2 + at + 16 * h);
#pragma unroll
    for (int s = 0; s < SWEEPS; s++) {
        range[s] = range_of(v[s][0], v[s][1]);
        has_codes = has_codes && epa_logfmt_has_codes(range[s].least, range[s].most);
    }
    if (__all_sync(EPA_DEV_ALL, has_codes))
#pragma unroll
        for (int s = 0; s < SWEEPS; s++) {
            struct epa_logfmt f = epa_logfmt_of(range[s].least, range[s].most);

            v[s][0] = round_pairs(f, v[s][0]);
            v[s][1] = round_pairs(f, v[s][1]);
        }
#pragma unroll
    for (int s = 0; s < SWEEPS; s++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            epa_dev_store16(to + s * SWEEP * 2 + at + 16 * h, v[s][h]);
}

template <int SWEEPS>
__global__ void __launch_bounds__(THREADS) round_rows(const __grid_constant__ struct logfmt_args a)
{
    extern __shared__ __align__(16) char shared[];
    uint32_t *before = reinterpret_cast<uint32_t *>(shared);
    const uint32_t part = blockIdx.x % a.parts, turns = gridDim.x / a.parts * WARPS;

    epa_dev_after_kernel();
    epa_dev_next_kernel();
    count_entries(a.count, a.experts, before);
    for (uint32_t entry = blockIdx.x / a.parts * WARPS + threadIdx.x / EPA_DEV_WARP;
         entry < before[a.experts]; entry += turns) {
        uint32_t e = expert_at(before, a.experts, entry);
        uint64_t row = __ldcg(a.start + e) + entry - before[e];
        uint64_t at = 2 * (row * a.hidden + part * (SWEEPS * SWEEP));

        round_part<SWEEPS>(a.y + at, a.out + at);
    }
}

} // namespace

cudaError_t logfmt_queue(const struct epa_moe *m, uint32_t experts, const void *y, void *out,
                         uint32_t blocks, bool early, cudaStream_t stream)
{
    const uint32_t part = epa_logfmt_part(m->hidden), parts = m->hidden / part;
    const struct logfmt_args args = {m->recv_count,
                                     m->recv_start,
                                     experts,
                                     m->hidden,
                                     parts,
                                     static_cast<const char *>(y),
                                     static_cast<char *>(out)};
    const uint32_t rows = blocks > parts ? blocks / parts : 1; /* blocks of a part */

    return launch_early(early, part == EPA_LOGFMT_PART ? round_rows<2> : round_rows<1>,
                        rows * parts, THREADS, (experts + 1) * sizeof(uint32_t), stream, args);
}
