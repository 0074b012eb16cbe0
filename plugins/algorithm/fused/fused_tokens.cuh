/* Of the kernel of fused: what all roles of a block know. What a kernel is made for, tables,
 * counters and waits. */
#ifndef FUSED_TOKENS_CUH
#define FUSED_TOKENS_CUH

#include <epa2a/device.cuh>

#include "../../common/algo_cuda.cuh"
#include "../../common/gemm_cuda.cuh"
#include "fused_device.h"

/* What a kernel is made for. WAYS: with the switches of struct fused_ways; those without, the
 * defaults, have no code for them. SUBS: scales of 128 channels of an FP8 intermediate. MORE: rows
 * that a block may have besides GEMM_ROWS. */
template <int TYPE_, bool F16_, bool WAYS_, int SUBS_ = 1, bool PICKS_ = false, int MORE_ = 0>
struct fused_shape {
    static constexpr epa_dev_type TYPE = (epa_dev_type)TYPE_; /* that is multiplied */
    static constexpr bool FP8 = TYPE_ == EPA_DEV_E4M3, F16 = F16_, WAYS = WAYS_;
    static constexpr bool PICKS = PICKS_; /* few tokens: fused_picks.cuh */
    enum {
        MORE = MORE_,
        ROWS = GEMM_ROWS + MORE_,
        /* Tiles of no more are swapped; of 64 rows of 16 bits they take too many registers. */
        SMALL_ROWS = FP8 ? 64 : 32,
        SUBS = SUBS_,
        BYTES = FP8 ? 1 : 2 /* of a value */
    };
    using ring = gemm_shared<4, SUBS_, 2, 1, MORE_>;
};

/* Of fused_more.cu. */
template <bool F16>
using fused_more_shape = fused_shape<EPA_DEV_E4M3, F16, false, 1, false, GEMM_MORE>;

/* Named barriers: of the warps that send few tokens; of those that count many; of all, before roles
 * part; one of each warpgroup that multiplies. GEMM_NAMED_MATH is another. */
enum { FUSED_NAMED_SEND = 2, FUSED_NAMED_SHARE, FUSED_NAMED_ROLES, FUSED_NAMED_STORED };

/* What a block knows of a call, in its shared memory. */
struct fused_tables {
    /* [waves][experts] where my next row of an expert goes at its rank: of those that this block
     * sends, if sorted. */
    uint32_t *send_row;
    uint32_t *list_at;  /* [experts], sorted, one wave: choices that this block's list has before */
    uint32_t *rows;     /* [local] */
    uint32_t *block_at; /* [local + 1] blocks of rows before my expert */
    uint32_t *unit_at;  /* [units + 1] blocks before a unit; it is of one expert */
    uint32_t *unit_block; /* [units] its first block; one wave: unit_at */
    float *weight;        /* few tokens: [few][topk] */
    uint32_t *wants;      /* [local][2] which of those tokens have my expert, a bit each */
    uint16_t *choice;     /* [few][topk] experts */
    /* Picks: no weights or choices; wants is [local][fused_picks_words()]. */
    uint16_t *order; /* [few] tokens with an expert here, by the last of them */
    uint32_t *scalars;
};

/* FUSED_COUNTED: blocks that have added their counts to those of this rank. FUSED_SOON: picks:
 * experts whose rows are copied before tiles. FUSED_HERE, and the next: few tokens: which have an
 * expert here, a bit each. Picks: how many. */
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

/* Thread blocks that dispatch, the first ones. */
template <class S> EPA_DEV uint32_t fused_dispatchers(const struct fused_args &a)
{
    return S::WAYS ? a.ways.dispatchers : gridDim.x;
}

/* Tokens that this block sends of a wave. */
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

/* 16 bytes, asked for here if `has`, else anything. Other loads a compiler moves to where they are
 * used, behind a branch, so that each waits for the one before. */
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

/* In no order, behind a fence. */
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

/* With a tail. */
EPA_DEV uint32_t *fused_copied(const struct fused_args &a)
{
    return fused_outputs(a) + a.blocks;
}

EPA_DEV bool fused_failed(const struct fused_args &a)
{
    return *(volatile uint32_t *)&a.c.v.fault->claimed != 0;
}

/* Notes that this warp begins a phase of the call, or ends it: of several the first beginning and
 * the last end count. One lane. */
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

/* Until a counter of this GPU, or one that peers add to, is at least `wanted`. One thread. */
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
