/* For kernels: payloads that need no signal. They travel in packets of 128 bytes (both.h), whose
 * last 8 bytes are the count of the call that stores them.
 *
 * Eight lanes store a packet with one instruction, 16 bytes each, and links carry such a store
 * whole: a lane that reads the count also has the other 120 bytes. PTX guarantees this for 16
 * bytes. For 128 bytes the guarantee is a property of the hardware, on which NCCL's LL128 protocol
 * relies as well (compute capability 7.0 and later, over NVLink). In exchange no fence is needed; a
 * fence would wait until all earlier stores have arrived.
 *
 * ARGS: the arguments of a kernel; waits use its view `v` and its `timeout_ns`.
 *
 * A payload consists of 64-bit words, 15 in a packet. A warp handles four packets at a time: lane l
 * has words 15 * (l / 8) + 2 * (l % 8) and the next; the last lane of a packet has one word
 * only. */
#ifndef EPA2A_PACKETS_CUH
#define EPA2A_PACKETS_CUH

#include <epa2a/device.cuh>
#include <epa2a/quant.cuh>

enum { EPA_DEV_PACKETS = 4 }; /* packets that a warp handles at a time */

struct epa_dev_words {
    uint64_t w[2];
};

/* Returns the index of the first of this lane's two words in the g-th group of four packets. */
EPA_DEV uint32_t epa_dev_word_at(uint32_t g)
{
    return (g * EPA_DEV_PACKETS + epa_dev_lane() / 8) * EPA_PACKET_WORDS + epa_dev_lane() % 8 * 2;
}

EPA_DEV bool epa_dev_ends_packet(void)
{
    return epa_dev_lane() % 8 == 7;
}

EPA_DEV bool epa_dev_has_packet(uint32_t g, uint32_t packets)
{
    return g * EPA_DEV_PACKETS + epa_dev_lane() / 8 < packets;
}

/* Returns this lane's words of a payload in shared memory. */
EPA_DEV struct epa_dev_words epa_dev_words_of(const uint64_t *payload, uint32_t g)
{
    uint32_t at = epa_dev_word_at(g);

    return {{payload[at], epa_dev_ends_packet() ? 0 : payload[at + 1]}};
}

/* Copies a payload of `packets` packets from registers to shared memory. One warp. */
template <int GROUPS>
EPA_DEV void epa_dev_words_keep(const struct epa_dev_words *v, uint32_t packets, uint64_t *payload)
{
    __syncwarp(); /* all lanes have read the previous payload */
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        if (!epa_dev_has_packet(g, packets))
            continue;
        payload[epa_dev_word_at(g)] = v[g].w[0];
        if (!epa_dev_ends_packet())
            payload[epa_dev_word_at(g) + 1] = v[g].w[1];
    }
    __syncwarp();
}

EPA_DEV void epa_dev_packet_store(char *to, uint32_t g, struct epa_dev_words v, uint64_t call)
{
    epa_dev_store_pair(to + (g * EPA_DEV_WARP + epa_dev_lane()) * 16, v.w[0],
                       epa_dev_ends_packet() ? call : v.w[1]);
}

EPA_DEV struct epa_dev_words epa_dev_packet_load(const char *from, uint32_t g)
{
    struct epa_dev_words v;

    epa_dev_load_pair(from + (g * EPA_DEV_WARP + epa_dev_lane()) * 16, &v.w[0], &v.w[1]);
    return v;
}

/* Stores a payload of `packets` packets from registers. */
template <int GROUPS>
EPA_DEV void epa_dev_packets_store(char *to, uint32_t packets, const struct epa_dev_words *v,
                                   uint64_t call)
{
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
        if (epa_dev_has_packet(g, packets))
            epa_dev_packet_store(to, g, v[g], call);
}

/* Reads a payload of `packets` packets. Returns true in all lanes if each packet belongs to this
 * call. */
template <int GROUPS>
EPA_DEV bool epa_dev_packets_load(const char *from, uint32_t packets, uint64_t call,
                                  struct epa_dev_words *v)
{
    bool received = true;

#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        v[g].w[0] = v[g].w[1] = 0;
        if (epa_dev_has_packet(g, packets))
            v[g] = epa_dev_packet_load(from, g);
    }
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
        if (epa_dev_has_packet(g, packets) && epa_dev_ends_packet())
            received = received && v[g].w[1] >= call;
    return __all_sync(EPA_DEV_ALL, received);
}

/* Waits in one lane until the last packet has arrived; the others have probably arrived then.
 * Polling each packet would take memory bandwidth from the links. Also returns true after the
 * time-out, for one last poll of all packets. Returns false if the packet did not arrive. */
template <typename ARGS>
EPA_DEV bool epa_dev_packet_wait(const ARGS &a, const char *from, uint32_t packets, uint64_t call,
                                 struct epa_dev_wait w, struct epa_dev_poll *poll)
{
    const uint64_t *last = reinterpret_cast<const uint64_t *>(from + packets * EPA_PACKET - 8);
    uint64_t seen;

    do {
        seen = epa_dev_load_relaxed(last);
        if (epa_dev_poll_expired(a.v, poll, a.timeout_ns, w, seen, call))
            return false;
    } while (seen < call && !epa_dev_poll_is_last(poll));
    return true;
}

/* Waits until the payload has arrived. One warp. Returns false if it did not arrive. */
template <int GROUPS, typename ARGS>
EPA_DEV bool epa_dev_packets_read(const ARGS &a, const char *from, uint32_t packets, uint64_t call,
                                  struct epa_dev_wait w, struct epa_dev_words *v)
{
    struct epa_dev_poll poll = {};

    while (!epa_dev_packets_load<GROUPS>(from, packets, call, v)) {
        bool ok = epa_dev_lane() != 0 || epa_dev_packet_wait(a, from, packets, call, w, &poll);

        if (!__all_sync(EPA_DEV_ALL, ok))
            return false;
    }
    return true;
}

/* ---- 16 bytes ---- */

/* The packet arrives as one unit: a thread that reads the count also has the other 8 bytes. No
 * fence is needed; a fence would wait for earlier rows. */
EPA_DEV void epa_dev_packet16_store(char *to, uint32_t first, uint32_t second, uint64_t call)
{
    epa_dev_store_pair(to, (uint64_t)second << 32 | first, call);
}

EPA_DEV uint2 epa_dev_packet16_load(const char *from, uint64_t *call)
{
    uint64_t word;

    epa_dev_load_pair(from, &word, call);
    return make_uint2((uint32_t)word, (uint32_t)(word >> 32));
}

/* Waits until a packet of this call has arrived; one thread. Returns false if it did not arrive. */
template <typename ARGS>
EPA_DEV bool epa_dev_packet16_wait(const ARGS &a, const char *from, uint64_t call,
                                   struct epa_dev_wait w, uint2 *out)
{
    struct epa_dev_poll poll = {};
    uint64_t received;

    for (;;) {
        *out = epa_dev_packet16_load(from, &received);
        if (received >= call)
            return true;
        if (epa_dev_poll_expired(a.v, &poll, a.timeout_ns, w, received, call))
            return false;
    }
}

#endif
