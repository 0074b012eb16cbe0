/* Rows that need no signal: lines of 128 bytes, of which the last 8 are the epoch.
 *
 * Eight lanes store a line with one instruction, 16 bytes each, and links carry such a
 * store as one packet: who finds the epoch finds the other 120 bytes. PTX promises that of
 * each 16 bytes; that it holds of the line is how the hardware is made, and NCCL's LL128
 * protocol rests on it too (compute capability 7.0 and later, over NVLink). In exchange
 * nobody waits for a fence until all that is on the links has arrived.
 *
 * What travels is a string of 64-bit words, 15 to a line. A warp takes four lines at a
 * time: lane l has words 15 * (l / 8) + 2 * (l % 8) and the next; the last lane of a line
 * only one. */
#ifndef LL_V2_LINES_CUH
#define LL_V2_LINES_CUH

#include "ll_v2_device.cuh"

enum { LL_LINES = 4 }; /* of a warp at a time */

struct ll_words {
    uint64_t w[2];
};

/* The first of this lane's two words in the g-th four lines. */
static __device__ __forceinline__ uint32_t ll_word_at(uint32_t g)
{
    return (g * LL_LINES + dev_lane() / 8) * LL_LINE_WORDS + dev_lane() % 8 * 2;
}

static __device__ __forceinline__ bool ll_ends_line(void)
{
    return dev_lane() % 8 == 7;
}

static __device__ __forceinline__ bool ll_has_line(uint32_t g, uint32_t lines)
{
    return g * LL_LINES + dev_lane() / 8 < lines;
}

static __device__ __forceinline__ void ll_line_store(char *to, uint32_t g,
                                                     struct ll_words v, uint64_t epoch)
{
    epa_dev_store_pair(to + (g * LL_WARP + dev_lane()) * 16, v.w[0],
                       ll_ends_line() ? epoch : v.w[1]);
}

static __device__ __forceinline__ struct ll_words ll_line_load(const char *from, uint32_t g)
{
    struct ll_words v;

    epa_dev_load_pair(from + (g * LL_WARP + dev_lane()) * 16, &v.w[0], &v.w[1]);
    return v;
}

/* Reads a string of `lines` lines. True in all lanes if all of it is of this epoch. */
template <int GROUPS>
static __device__ __forceinline__ bool ll_lines_load(const char *from, uint32_t lines,
                                                     uint64_t epoch, struct ll_words *v)
{
    bool came = true;

#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        v[g].w[0] = v[g].w[1] = 0;
        if (ll_has_line(g, lines))
            v[g] = ll_line_load(from, g);
    }
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
        if (ll_has_line(g, lines) && ll_ends_line())
            came = came && v[g].w[1] >= epoch;
    return __all_sync(LL_ALL, came);
}

/* One lane, until the last line has come, and the others are likely to have: polling all of
 * them would take what the links bring the memory's time. False: it did not. */
static __device__ __forceinline__ bool ll_line_wait(const struct ll_args &a,
                                                    const char *from, uint32_t lines,
                                                    uint64_t epoch, struct epa_dev_wait w,
                                                    struct epa_dev_patience *patience)
{
    const uint64_t *last = reinterpret_cast<const uint64_t *>(from + lines * LL_PACKET - 8);
    uint64_t seen;

    while ((seen = epa_dev_load_relaxed(last)) < epoch)
        if (!epa_dev_patient(a.v, patience, a.timeout_ns, w, seen, epoch))
            return false;
    return epa_dev_patient(a.v, patience, a.timeout_ns, w, seen, epoch);
}

/* Until the string has come. One warp; false: it did not. */
template <int GROUPS>
static __device__ __forceinline__ bool
ll_lines_read(const struct ll_args &a, const char *from, uint32_t lines, uint64_t epoch,
              struct epa_dev_wait w, struct ll_words *v)
{
    struct epa_dev_patience patience = {0, 0, 0};

    while (!ll_lines_load<GROUPS>(from, lines, epoch, v)) {
        bool ok = dev_lane() != 0 || ll_line_wait(a, from, lines, epoch, w, &patience);

        if (!__all_sync(LL_ALL, ok))
            return false;
    }
    return true;
}

/* From a string in shared memory to the lines at `to`. */
static __device__ __forceinline__ struct ll_words ll_words_of(const uint64_t *string,
                                                              uint32_t g)
{
    uint32_t at = ll_word_at(g);

    return {{string[at], ll_ends_line() ? 0 : string[at + 1]}};
}

#endif
