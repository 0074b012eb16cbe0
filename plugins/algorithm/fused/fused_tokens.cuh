/* Kernel of fused: parameters of kernels, tables, counters and waits that all roles of a block
 * use. */
#ifndef FUSED_TOKENS_CUH
#define FUSED_TOKENS_CUH

#include <epa2a/device.cuh>

#include "../../common/algo_cuda.cuh"
#include "../../common/gemm_cuda.cuh"
#include "fused_device.h"

/* Parameters of a kernel. WAYS: the kernel has the switches of struct fused_ways; kernels without
 * them, for the defaults, have no such code. SUBS, ROW_SUBS: scales per 128 channels of an FP8
 * intermediate, and of rows sent in FP8. MORE: rows that a block may have beyond GEMM_ROWS.
 * PROFILE: the kernel records intervals of tiles (struct fused_note). */
template <int TYPE_, bool F16_, bool WAYS_, int SUBS_ = 1, bool PICKS_ = false, int MORE_ = 0,
          int ROW_SUBS_ = 1, bool PROFILE_ = false>
struct fused_shape {
    static constexpr epa_dev_type TYPE = (epa_dev_type)TYPE_; /* type of the multiplied values */
    static constexpr bool FP8 = TYPE_ == EPA_DEV_E4M3, F16 = F16_, WAYS = WAYS_;
    static constexpr bool PICKS = PICKS_; /* few tokens: fused_picks.cuh */
    static constexpr bool PROFILE = PROFILE_;
    /* The last 128 channels of rows and of intermediates may be incomplete. */
    static constexpr bool RAGGED = !FP8 || SUBS_ > 1 || ROW_SUBS_ > 1;
    enum {
        MORE = MORE_,
        ROWS = GEMM_ROWS + MORE_,
        /* Tiles of at most this number of rows are swapped; swapped tiles of 64 rows of 16 bits
         * need too many registers. */
        SMALL_ROWS = FP8 ? 64 : 32,
        SUBS = SUBS_,
        ROW_SUBS = ROW_SUBS_,
        GROUP = FUSED_GROUP / SUBS_,         /* channels per scale of an intermediate */
        ROW_GROUP = FUSED_GROUP / ROW_SUBS_, /* channels per scale of a row */
        BYTES = FP8 ? 1 : 2                  /* bytes of a value */
    };
    using ring = gemm_shared<4, (ROW_SUBS_ > SUBS_ ? ROW_SUBS_ : SUBS_), 2, 1, MORE_>;
};

/* Parameters of the kernels of fused_more.cu. */
template <bool F16, bool PROFILE = false>
using fused_more_shape = fused_shape<EPA_DEV_E4M3, F16, false, 1, false, GEMM_MORE, 1, PROFILE>;

/* Named barriers: the warps that send few tokens; the warps that count many tokens; all warps
 * before the roles begin; one barrier per multiplying warpgroup. GEMM_NAMED_MATH is another. */
enum { FUSED_NAMED_SEND = 2, FUSED_NAMED_SHARE, FUSED_NAMED_ROLES, FUSED_NAMED_STORED };

/* Tables of a call in the shared memory of a block. */
struct fused_tables {
    /* [waves][experts]: place of this rank's next row of an expert at the expert's rank; if sorted,
     * of the rows that this block sends. */
    uint32_t *send_row;
    uint32_t *list_at;    /* [experts], sorted, one wave: choices before the expert in this block's
                         * list */
    uint32_t *rows;       /* [local] */
    uint32_t *block_at;   /* [local + 1]: blocks of rows before this rank's expert */
    uint32_t *unit_at;    /* [units + 1]: blocks before a unit, which belongs to one expert */
    uint32_t *unit_block; /* [units]: first block of the unit; one wave: the same array as
                           * unit_at */
    float *weight;        /* few tokens: [few][topk] */
    uint32_t *wants;      /* [local][2]: few tokens: mask of the tokens that chose the expert */
    uint16_t *choice;     /* [few][topk]: experts */
    /* Picks: no weights and no choices; wants is [local][fused_picks_words()]. */
    uint16_t *order; /* [few]: tokens with an expert on this rank, ordered by the last of these
                      * experts */
    uint32_t *scalars;
};

/* FUSED_COUNTED: number of blocks that have added their counts to the sums of this rank.
 * FUSED_SOON: picks: number of experts whose rows are copied before the tiles. FUSED_HERE and the
 * next word: few tokens: mask of the tokens with an expert on this rank; picks: their number. */
enum {
    FUSED_UNITS,
    FUSED_LAG,
    FUSED_ITEMS,
    FUSED_CHOICES,
    FUSED_COUNTED,
    FUSED_SOON,
    FUSED_HERE,
    FUSED_SCALARS = FUSED_HERE + 2
};

EPA_DEV struct fused_tables fused_tables_at(const struct fused_args &a, char *at)
{
    struct fused_tables t;

    t.scalars = reinterpret_cast<uint32_t *>(at);
    t.send_row = t.scalars + FUSED_SCALARS;
    t.list_at = t.send_row + a.waves * a.c.experts;
    t.rows = t.list_at + (a.sorted != 0 && a.waves == 1 ? a.c.experts : 0);
    t.block_at = t.rows + a.c.local;
    t.unit_at = t.block_at + a.c.local + 1;
    t.unit_block = t.unit_at + (a.waves > 1 ? a.units + 1 : 0);
    t.weight = reinterpret_cast<float *>(t.unit_block + a.units + 1);
    t.wants = t.unit_block + a.units + 1 + (a.few <= FUSED_FEW ? a.few * a.c.topk : 0);
    t.choice = reinterpret_cast<uint16_t *>(
        t.wants + a.c.local * (a.few <= FUSED_FEW ? 2 : fused_picks_words(a.few)));
    t.order = t.choice;
    return t;
}

/* Returns the number of thread blocks that dispatch; they are the first ones. */
template <class S> EPA_DEV uint32_t fused_dispatchers(const struct fused_args &a)
{
    return S::WAYS ? a.ways.dispatchers : gridDim.x;
}

/* Tokens of a wave that this block sends. */
struct fused_share {
    uint32_t begin, end;
};

template <class S>
EPA_DEV struct fused_share fused_share_of(const struct fused_args &a, uint32_t wave)
{
    uint64_t begin = (uint64_t)a.c.tokens * wave / a.waves, blocks = fused_dispatchers<S>(a);
    uint64_t n = (uint64_t)a.c.tokens * (wave + 1) / a.waves - begin;

    return {(uint32_t)(begin + n * blockIdx.x / blocks),
            (uint32_t)(begin + n * (blockIdx.x + 1) / blocks)};
}

/* Loads 16 bytes if `has`; otherwise the result is undefined. The load is issued here: the compiler
 * would move ordinary loads to their use behind a branch, where each waits for the previous one. */
EPA_DEV uint4 fused_load16_now(const char *from, bool has)
{
    uint4 v;

#ifdef __CUDA_ARCH__
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n"
                 "@p ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from), "r"((uint32_t)has));
#else
    v = has ? epa_dev_load16(from) : make_uint4(0, 0, 0, 0);
#endif
    return v;
}

/* Relaxed addition; the caller has executed a fence. */
EPA_DEV void fused_add32(uint32_t *word, uint32_t by)
{
#ifdef __CUDA_ARCH__
    asm volatile("red.relaxed.sys.global.add.u32 [%0], %1;" ::"l"(word), "r"(by) : "memory");
#else
    atomicAdd(word, by);
#endif
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

/* Requires a tail. */
EPA_DEV uint32_t *fused_copied(const struct fused_args &a)
{
    return fused_outputs(a) + a.blocks;
}

EPA_DEV bool fused_failed(const struct fused_args &a)
{
    return *(volatile uint32_t *)&a.c.v.fault->claimed != 0;
}

/* Stamps the begin or the end of a phase of this warp; the first begin and the last end count.
 * Called by one lane. */
EPA_DEV void fused_stamp(const struct fused_args &a, uint64_t call, enum fused_phase phase,
                         bool ends)
{
    uint32_t warp = threadIdx.x / EPA_DEV_WARP;

    if (a.c.stamps == NULL || epa_dev_lane() != 0 || warp >= a.c.warps)
        return;
    struct device_stamp *stamp = &a.c.stamps[blockIdx.x * a.c.warps + warp].phase[phase];
    uint64_t now = epa_dev_time();

    if (stamp->call != (uint32_t)call)
        *stamp = {now, 0, (uint32_t)call};
    else if (ends)
        *stamp = {now, (uint32_t)(now - stamp->end) + stamp->took_ns, (uint32_t)call};
}

/* Waits until a counter of this GPU, which peers may increase, is at least `wanted`. Called by one
 * thread. */
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

#endif
