/* Rows and answers that need no flag of their own: lines of 128 bytes, of which the last 8
 * are the epoch.
 *
 * Eight lanes store a line with one instruction, 16 bytes each, and links carry such a store
 * as one packet: who finds the epoch finds the other 120 bytes. PTX promises that of each 16
 * bytes; that it holds of the line is how the hardware is made, and NCCL's LL128 protocol
 * rests on it too (compute capability 7.0 and later, over NVLink). In exchange nobody waits
 * for a fence until all that is on the links has arrived.
 *
 * What travels is a string of 64-bit words, 15 to a line. A warp takes four lines at a time:
 * lane l has words 15 * (l / 8) + 2 * (l % 8) and the next; the last lane of a line only
 * one. */
#ifndef TOKEN_FLAG_LINES_CUH
#define TOKEN_FLAG_LINES_CUH

#include "token_flag_device.cuh"

enum {
    TF_LINES = 4, /* of a warp at a time */
    TF_FOURS = TF_UNIT_LINES / TF_LINES,
    TF_META_LANE = 6 /* of the eight that have the last line */
};

struct tf_words {
    uint64_t w[2];
};

/* The first of this lane's two words in the g-th four lines. */
static __device__ __forceinline__ uint32_t tf_word_at(uint32_t g)
{
    return (g * TF_LINES + dev_lane() / 8) * TF_LINE_WORDS + dev_lane() % 8 * 2;
}

static __device__ __forceinline__ bool tf_ends_line(void)
{
    return dev_lane() % 8 == 7;
}

static __device__ __forceinline__ bool tf_has_line(uint32_t g, uint32_t lines)
{
    return g * TF_LINES + dev_lane() / 8 < lines;
}

static __device__ __forceinline__ void tf_line_store(char *to, uint32_t g,
                                                     struct tf_words v, uint64_t epoch)
{
    epa_dev_store_pair(to + (g * DEV_WARP + dev_lane()) * 16, v.w[0],
                       tf_ends_line() ? epoch : v.w[1]);
}

static __device__ __forceinline__ struct tf_words tf_line_load(const char *from, uint32_t g)
{
    struct tf_words v;

    epa_dev_load_pair(from + (g * DEV_WARP + dev_lane()) * 16, &v.w[0], &v.w[1]);
    return v;
}

/* Reads a string of `lines` lines. True in all lanes if all of it is of this epoch. */
static __device__ __forceinline__ bool tf_lines_load(const char *from, uint32_t lines,
                                                     uint64_t epoch, struct tf_words *v)
{
    bool came = true;

#pragma unroll
    for (int g = 0; g < TF_FOURS; g++) {
        v[g].w[0] = v[g].w[1] = 0;
        if (tf_has_line(g, lines))
            v[g] = tf_line_load(from, g);
    }
#pragma unroll
    for (int g = 0; g < TF_FOURS; g++)
        if (tf_has_line(g, lines) && tf_ends_line())
            came = came && v[g].w[1] >= epoch;
    return __all_sync(DEV_ALL, came);
}

/* One lane, until the last of `lines` lines has come, and the others are likely to have:
 * polling all of them would take what the links bring the memory's time. False: it did
 * not. */
static __device__ __forceinline__ bool tf_line_wait(const struct tf_args &a,
                                                    const char *from, uint32_t lines,
                                                    uint64_t epoch, struct epa_dev_wait w,
                                                    struct epa_dev_patience *patience)
{
    const uint64_t *last = reinterpret_cast<const uint64_t *>(from + lines * TF_PACKET - 8);
    uint64_t seen;

    while ((seen = epa_dev_load_relaxed(last)) < epoch)
        if (!epa_dev_patient(a.v, patience, a.timeout_ns, w, seen, epoch))
            return false;
    return epa_dev_patient(a.v, patience, a.timeout_ns, w, seen, epoch);
}

/* A part of a row or answer: lines of it that one warp takes, and its words. */
struct tf_part {
    uint32_t unit, lines;
};

static __device__ __forceinline__ struct tf_part tf_part_at(uint32_t lines, uint32_t unit)
{
    return {unit, min(lines - unit * TF_UNIT_LINES, (uint32_t)TF_UNIT_LINES)};
}

#endif
