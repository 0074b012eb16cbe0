/* Blocks that need no signal: lines of 128 bytes, of which the last 8 are the count of the
 * call.
 *
 * Eight lanes store a line with one instruction, 16 bytes each, and links carry such a store
 * as one packet: who finds the count finds the other 120 bytes. PTX promises that of each 16
 * bytes; that it holds of the line is how the hardware is made, and NCCL's LL128 protocol
 * rests on it too (compute capability 7.0 and later, over NVLink). In exchange nobody waits
 * for a fence until all that is on the links has arrived.
 *
 * What travels is a string of 64-bit words, 15 to a line. A warp takes four lines at a time:
 * lane l has words 15 * (l / 8) + 2 * (l % 8) and the next; the last lane of a line only
 * one. */
#ifndef LL_V1_LINES_CUH
#define LL_V1_LINES_CUH

#include "ll_v1_device.cuh"

enum { V1_LINES = 4 }; /* of a warp at a time */

struct v1_words {
    uint64_t w[2];
};

/* The first of this lane's two words in the g-th four lines. */
static __device__ __forceinline__ uint32_t v1_word_at(uint32_t g)
{
    return (g * V1_LINES + dev_lane() / 8) * V1_LINE_WORDS + dev_lane() % 8 * 2;
}

static __device__ __forceinline__ bool v1_ends_line(void)
{
    return dev_lane() % 8 == 7;
}

static __device__ __forceinline__ bool v1_has_line(uint32_t g, uint32_t lines)
{
    return g * V1_LINES + dev_lane() / 8 < lines;
}

static __device__ __forceinline__ void v1_line_store(char *to, uint32_t g,
                                                     struct v1_words v, uint64_t call)
{
    epa_dev_store_pair(to + (g * DEV_WARP + dev_lane()) * 16, v.w[0],
                       v1_ends_line() ? call : v.w[1]);
}

/* A string of `lines` lines, from registers. */
template <int GROUPS>
static __device__ __forceinline__ void
v1_lines_store(char *to, uint32_t lines, const struct v1_words *v, uint64_t call)
{
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
        if (v1_has_line(g, lines))
            v1_line_store(to, g, v[g], call);
}

/* Reads a string of `lines` lines. True in all lanes if all of it is of this call. */
template <int GROUPS>
static __device__ __forceinline__ bool v1_lines_load(const char *from, uint32_t lines,
                                                     uint64_t call, struct v1_words *v)
{
    bool came = true;

#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        v[g].w[0] = v[g].w[1] = 0;
        if (v1_has_line(g, lines))
            epa_dev_load_pair(from + (g * DEV_WARP + dev_lane()) * 16, &v[g].w[0],
                              &v[g].w[1]);
    }
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
        if (v1_has_line(g, lines) && v1_ends_line())
            came = came && v[g].w[1] >= call;
    return __all_sync(DEV_ALL, came);
}

/* One lane, until the last line has come, and the others are likely to have: polling all of
 * them would take what the links bring the memory's time. False: it did not. */
static __device__ __forceinline__ bool v1_line_wait(const struct v1_args &a,
                                                    const char *from, uint32_t lines,
                                                    uint64_t call, struct epa_dev_wait w,
                                                    struct epa_dev_patience *patience)
{
    const uint64_t *last = reinterpret_cast<const uint64_t *>(from + lines * V1_PACKET - 8);
    uint64_t seen;

    while ((seen = epa_dev_load_relaxed(last)) < call)
        if (!epa_dev_patient(a.v, patience, a.timeout_ns, w, seen, call))
            return false;
    return epa_dev_patient(a.v, patience, a.timeout_ns, w, seen, call);
}

/* Until the string has come. One warp; false: it did not. */
template <int GROUPS>
static __device__ __forceinline__ bool
v1_lines_read(const struct v1_args &a, const char *from, uint32_t lines, uint64_t call,
              struct epa_dev_wait w, struct v1_words *v)
{
    struct epa_dev_patience patience = {0, 0, 0};

    while (!v1_lines_load<GROUPS>(from, lines, call, v)) {
        bool ok = dev_lane() != 0 || v1_line_wait(a, from, lines, call, w, &patience);

        if (!__all_sync(DEV_ALL, ok))
            return false;
    }
    return true;
}

#endif
