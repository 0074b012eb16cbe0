/* Kernel of fused: stores of rows of tokens to the places of their experts by one warp, from
 * registers or, for many tokens, from shared memory. */
#ifndef FUSED_STORE_CUH
#define FUSED_STORE_CUH

#include "fused_counts.cuh"

/* Prefetches the first inputs of a call of few tokens into L2, while the call's number is loaded:
 * all choices, and the tokens that this block sends, beginning with `token`. Called by all threads
 * of the block. */
template <int IN> EPA_DEV void fused_fetch(const struct fused_args &a, uint32_t token)
{
    uint32_t choices = a.c.tokens * a.c.topk * 4, bytes = a.c.hidden * (IN == DEVICE_FP8 ? 1 : 2);
    uint32_t step = FUSED_THREADS * 32;
    uint32_t own = (max(a.c.tokens, token) - token + gridDim.x - 1) / gridDim.x * bytes;
    const char *x = static_cast<const char *>(a.c.x) + (size_t)token * bytes;

    for (uint32_t i = threadIdx.x * 32; blockIdx.x == 0 && i < choices; i += step) {
        epa_dev_prefetch(reinterpret_cast<const char *>(a.c.expert) + i);
        epa_dev_prefetch(reinterpret_cast<const char *>(a.c.weight) + i);
    }
    for (uint32_t i = threadIdx.x * 32; i < own; i += step)
        epa_dev_prefetch(x + (size_t)(i / bytes) * (gridDim.x - 1) * bytes + i);
}

/* Stores channels `begin` to `end` (multiples of 128, or the end of the row) of a row of x to the
 * places of the lanes in `lanes`. GROUP: channels per scale. Called by one warp. */
template <int IN, int SWEEPS, int GROUP>
EPA_DEV void fused_store_row(const struct fused_args &a, uint32_t token, uint32_t begin,
                             uint32_t end, uint32_t lanes, char *to, float *staged)
{
    enum {
        QUANTISES = IN == DEVICE_QUANTISE || IN == DEVICE_QUANTISE_F16,
        HALVES = QUANTISES ? 2 : 1
    };
    constexpr uint32_t BYTES = IN == DEVICE_PLAIN ? 2 : 1; /* bytes per channel on the link */
    uint32_t groups = a.c.hidden / GROUP, lane = epa_dev_lane(), bytes = end * BYTES;
    const char *x = static_cast<const char *>(a.c.x) + (size_t)token * a.c.hidden * BYTES * HALVES;

    for (uint32_t from = begin * BYTES; from < bytes; from += SWEEPS * 512) {
        uint4 v[SWEEPS][HALVES];

#pragma unroll
        for (int s = 0; s < SWEEPS; s++)
#pragma unroll
            for (int h = 0; h < HALVES; h++) {
                /* Lanes beyond the end load the last 16 bytes again, so that loads have no branch
                 * and do not wait for each other. */
                uint32_t at = min(from + s * 512 + lane * 16, bytes - 16);

                v[s][h] = __ldg(reinterpret_cast<const uint4 *>(x + at * HALVES + h * 16));
            }
#pragma unroll
        for (int s = 0; s < SWEEPS; s++) {
            uint32_t at = from + s * 512 + lane * 16;

            if (from + s * 512 >= bytes)
                break;
            if (QUANTISES) {
                float scale;

                v[s][0] = epa_dev_quantise16<IN == DEVICE_QUANTISE_F16>(v[s][0], v[s][HALVES - 1],
                                                                        GROUP / 16, &scale);
                if (lane % (GROUP / 16) == 0 && at < bytes)
                    staged[at / GROUP] = scale;
            }
            for (uint32_t left = lanes; left != 0; left &= left - 1) {
                char *row = dev_from_lane(to, __ffs(left) - 1);

                if (at < bytes)
                    epa_dev_store16(row + at, v[s][0]);
            }
        }
    }
    if (IN == DEVICE_PLAIN)
        return;
    __syncwarp();
    for (uint32_t left = lanes; left != 0; left &= left - 1) {
        char *row = dev_from_lane(to, __ffs(left) - 1) + a.scales_at;

        for (uint32_t g = begin / GROUP + lane; g < end / GROUP; g += EPA_DEV_WARP)
            epa_dev_store(reinterpret_cast<float *>(row) + g,
                          IN == DEVICE_FP8 ? __ldg(a.c.x_scale + (size_t)token * groups + g)
                                           : staged[g]);
    }
    __syncwarp();
}

/* Shared memory of a warp for bulk stores of pieces of rows, and the index of the next slot. */
struct fused_slots {
    char *first;
    uint32_t slots, next;
};

/* Returns the size of a slot: a piece of a row, and a scale for each GROUP channels. */
template <int GROUP> EPA_DEV constexpr uint32_t fused_slot_bytes(void)
{
    return FUSED_PIECE + FUSED_PIECE / GROUP * 4;
}

/* This lane's part of a sweep: 512 bytes of a row, or 1024 bytes if 16 bits become 8. */
template <int IN> struct fused_sweep {
    enum { QUANTISES = IN == DEVICE_QUANTISE || IN == DEVICE_QUANTISE_F16, HALVES = 1 + QUANTISES };
    uint4 v[HALVES];
};

/* Loads the sweep for bytes `at` on of a token's row. */
template <int IN>
EPA_DEV fused_sweep<IN> fused_load_sweep(const struct fused_args &a, uint32_t token, uint32_t at)
{
    enum { HALVES = fused_sweep<IN>::HALVES };
    uint32_t bytes = a.c.hidden * (IN == DEVICE_PLAIN ? 2 : 1);
    const char *x = static_cast<const char *>(a.c.x) + (size_t)token * bytes * HALVES +
                    min(at + epa_dev_lane() * 16, bytes - 16) * HALVES;
    fused_sweep<IN> s;

#pragma unroll
    for (int h = 0; h < HALVES; h++)
        s.v[h] = __ldg(reinterpret_cast<const uint4 *>(x) + h);
    return s;
}

/* Stores the row of a token to the places of the lanes in `lanes`. The warp writes a piece to
 * shared memory, and each lane stores it by one bulk instruction. `sweep`: first sweep of this row;
 * afterwards the first sweep of the `following` token. GROUP: channels per scale.
 * epa_dev_bulk_wait() completes the stores. Called by one warp. */
template <int IN, int GROUP>
EPA_DEV void fused_ship_row(const struct fused_args &a, uint32_t token, uint32_t following,
                            uint32_t lanes, char *to, struct fused_slots *slots,
                            fused_sweep<IN> *sweep)
{
    uint32_t lane = epa_dev_lane(), bytes = a.c.hidden * (IN == DEVICE_PLAIN ? 2 : 1), next;
    char *slot = NULL;

    /* The code of a sweep is small enough for the instruction cache near the warp, so loops are not
     * unrolled. */
#pragma unroll 1
    for (uint32_t at = 0; at < bytes; at = next) {
        fused_sweep<IN> now = *sweep;
        uint32_t from = at / FUSED_PIECE * FUSED_PIECE, own = at - from + lane * 16;
        uint32_t piece = min((uint32_t)FUSED_PIECE, bytes - from);
        uint32_t scales = IN == DEVICE_PLAIN ? 0 : (piece / GROUP + 3) / 4 * 16;

        next = at + 512;
        *sweep = next < bytes ? fused_load_sweep<IN>(a, token, next)
                              : fused_load_sweep<IN>(a, following, 0);
        if (at == from) {
            slot = slots->first + slots->next * fused_slot_bytes<GROUP>();
            slots->next = slots->next + 1 == slots->slots ? 0 : slots->next + 1;
            if (slots->slots >= FUSED_SLOTS)
                epa_dev_bulk_wait_read<FUSED_SLOTS - 1>();
            else
                epa_dev_bulk_wait_read<0>();
            __syncwarp();
        }
        if (fused_sweep<IN>::QUANTISES) {
            float scale;

            now.v[0] = epa_dev_quantise16<IN == DEVICE_QUANTISE_F16>(
                now.v[0], now.v[fused_sweep<IN>::HALVES - 1], GROUP / 16, &scale);
            if (lane % (GROUP / 16) == 0 && own < piece)
                reinterpret_cast<float *>(slot + piece)[own / GROUP] = scale;
        }
        if (own < piece)
            *reinterpret_cast<uint4 *>(slot + own) = now.v[0];
        if (next < bytes && next % FUSED_PIECE != 0)
            continue;
        if (IN == DEVICE_FP8 && lane < piece / GROUP)
            reinterpret_cast<float *>(slot + piece)[lane] =
                __ldg(a.c.x_scale + ((size_t)token * a.c.hidden + from) / GROUP + lane);
        epa_dev_fence_async_shared();
        __syncwarp();
        if ((lanes >> lane & 1) != 0) {
            bool whole = piece == bytes;

            epa_dev_bulk_store(to + from, slot, piece + (whole ? scales : 0));
            if (!whole && scales != 0)
                epa_dev_bulk_store(to + a.scales_at + from / GROUP * 4, slot + piece, scales);
        }
        epa_dev_bulk_commit();
    }
}

/* Copies rows, `bytes` each, of the lanes in `lanes`, which hold source and destination. Loads
 * FLIGHT pieces of 512 bytes, also of different rows, before it stores the first. Called by one
 * warp. */
EPA_DEV void fused_copy_rows(uint32_t lanes, const char *from, char *to, uint32_t bytes)
{
    enum { FLIGHT = 8 };
    uint32_t own = epa_dev_lane() * 16, at = 0, who = 0;

    while (lanes != 0) {
        uint4 v[FLIGHT];
        uint32_t left = lanes, next = at;

#pragma unroll
        for (int i = 0; i < FLIGHT; i++) { /* beyond the end: loaded again, not stored */
            who = left != 0 ? __ffs(left) - 1 : who;
            v[i] = epa_dev_load16(dev_from_lane(from, who) + min(next + own, bytes - 16));
            next += 512;
            if (next >= bytes) {
                next = 0;
                left &= left - 1;
            }
        }
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            char *row;

            who = lanes != 0 ? __ffs(lanes) - 1 : who;
            row = dev_from_lane(to, who);
            if (lanes != 0 && at + own < bytes)
                epa_dev_store16(row + at + own, v[i]);
            at += 512;
            if (at >= bytes) {
                at = 0;
                lanes &= lanes - 1;
            }
        }
    }
}

#endif
