/* For kernels: strings that need no signal. They travel as lines of 128 bytes (lines.h), of
 * which the last 8 are the count of the call that stores them.
 *
 * Eight lanes store a line with one instruction, 16 bytes each, and links carry such a store
 * as one packet: who finds the count finds the other 120 bytes. PTX promises that of each 16
 * bytes; that it holds of the line is how the hardware is made, and NCCL's LL128 protocol
 * rests on it too (compute capability 7.0 and later, over NVLink). In exchange nobody waits
 * for a fence until all that is on the links has arrived.
 *
 * ARGS: what a kernel is given; waits take `v`, its view, and `timeout_ns` of it.
 *
 * A string is of 64-bit words, 15 to a line. A warp takes four lines at a time: lane l has
 * words 15 * (l / 8) + 2 * (l % 8) and the next; the last lane of a line only one. */
#ifndef DEVICE_PACKETS_CUH
#define DEVICE_PACKETS_CUH

#include "device/packets.h"
#include "device/work.cuh"

enum { DEV_PACKETS = 4 }; /* of a warp at a time */

struct dev_words {
    uint64_t w[2];
};

/* The first of this lane's two words in the g-th four lines. */
static __device__ __forceinline__ uint32_t dev_word_at(uint32_t g)
{
    return (g * DEV_PACKETS + dev_lane() / 8) * DEV_PACKET_WORDS + dev_lane() % 8 * 2;
}

static __device__ __forceinline__ bool dev_ends_packet(void)
{
    return dev_lane() % 8 == 7;
}

static __device__ __forceinline__ bool dev_has_packet(uint32_t g, uint32_t packets)
{
    return g * DEV_PACKETS + dev_lane() / 8 < packets;
}

/* This lane's words of a string in shared memory. */
static __device__ __forceinline__ struct dev_words dev_words_of(const uint64_t *payload,
                                                                uint32_t g)
{
    uint32_t at = dev_word_at(g);

    return {{payload[at], dev_ends_packet() ? 0 : payload[at + 1]}};
}

static __device__ __forceinline__ void dev_packet128_store(char *to, uint32_t g,
                                                      struct dev_words v, uint64_t call)
{
    epa_dev_store_pair(to + (g * DEV_WARP + dev_lane()) * 16, v.w[0],
                       dev_ends_packet() ? call : v.w[1]);
}

static __device__ __forceinline__ struct dev_words dev_packet128_load(const char *from,
                                                                 uint32_t g)
{
    struct dev_words v;

    epa_dev_load_pair(from + (g * DEV_WARP + dev_lane()) * 16, &v.w[0], &v.w[1]);
    return v;
}

/* A string of `lines` lines, from registers. */
template <int GROUPS>
static __device__ __forceinline__ void
dev_packets_store(char *to, uint32_t packets, const struct dev_words *v, uint64_t call)
{
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
        if (dev_has_packet(g, packets))
            dev_packet128_store(to, g, v[g], call);
}

/* Reads a string of `lines` lines. True in all lanes if all of it is of this call. */
template <int GROUPS>
static __device__ __forceinline__ bool dev_packets_load(const char *from, uint32_t packets,
                                                      uint64_t call, struct dev_words *v)
{
    bool received = true;

#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        v[g].w[0] = v[g].w[1] = 0;
        if (dev_has_packet(g, packets))
            v[g] = dev_packet128_load(from, g);
    }
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
        if (dev_has_packet(g, packets) && dev_ends_packet())
            received = received && v[g].w[1] >= call;
    return __all_sync(DEV_ALL, received);
}

/* One lane, until the last line has come, and the others are likely to have: polling all of
 * them would take what the links bring the memory's time. Also true when the time is up, for
 * one more look at all of them. False: it did not. */
template <typename ARGS>
static __device__ __forceinline__ bool
dev_packet128_wait(const ARGS &a, const char *from, uint32_t packets, uint64_t call,
              struct epa_dev_wait w, struct epa_dev_poll *poll)
{
    const uint64_t *last = reinterpret_cast<const uint64_t *>(from + packets * DEV_PACKET - 8);
    uint64_t seen;

    do {
        seen = epa_dev_load_relaxed(last);
        if (epa_dev_poll_expired(a.v, poll, a.timeout_ns, w, seen, call))
            return false;
    } while (seen < call && !poll->late);
    return true;
}

/* Until the string has come. One warp; false: it did not. */
template <int GROUPS, typename ARGS>
static __device__ __forceinline__ bool
dev_packets_read(const ARGS &a, const char *from, uint32_t packets, uint64_t call,
               struct epa_dev_wait w, struct dev_words *v)
{
    struct epa_dev_poll poll = {};

    while (!dev_packets_load<GROUPS>(from, packets, call, v)) {
        bool ok = dev_lane() != 0 || dev_packet128_wait(a, from, packets, call, w, &poll);

        if (!__all_sync(DEV_ALL, ok))
            return false;
    }
    return true;
}

/* ---- 16 bytes ---- */

/* They arrive as one: who reads this count reads what came with it. No fence, so that it need
 * not wait for the rows on the way. */
static __device__ __forceinline__ void dev_packet_store(char *to, uint32_t first,
                                                        uint32_t second, uint64_t call)
{
    epa_dev_store_pair(to, (uint64_t)second << 32 | first, call);
}

static __device__ __forceinline__ uint2 dev_packet_load(const char *from, uint64_t *call)
{
    uint64_t word;

    epa_dev_load_pair(from, &word, call);
    return make_uint2((uint32_t)word, (uint32_t)(word >> 32));
}

/* Until a packet of this call has come; one thread. False: it did not. */
template <typename ARGS>
static __device__ __forceinline__ bool dev_packet_wait(const ARGS &a, const char *from,
                                                       uint64_t call, struct epa_dev_wait w,
                                                       uint2 *out)
{
    struct epa_dev_poll poll = {};
    uint64_t received;

    for (;;) {
        *out = dev_packet_load(from, &received);
        if (received >= call)
            return true;
        if (epa_dev_poll_expired(a.v, &poll, a.timeout_ns, w, received, call))
            return false;
    }
}

#endif
