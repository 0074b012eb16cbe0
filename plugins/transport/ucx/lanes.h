/* Lanes of an endpoint, and the card with which a rank describes its memory to peers. These
 * functions do not call UCX. */
#ifndef UCX_LANES_H
#define UCX_LANES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/status.h>

/* ---- lanes: the text of ucp_ep_print_info(), the only place where UCX 1.13 names the transport
 * of each operation ---- */

enum { LANES_NAMES = 96 };

struct lanes {
    char names[LANES_NAMES]; /* "posix/memory", "sysv/memory, posix/memory", "tcp/eth0" */
    bool puts;      /* the transport executes puts; else the peer's CPU executes a message */
    bool additions; /* the same for atomic additions */
    bool rdma;      /* a single lane moves data: rc or dc over InfiniBand or RoCE */
};

/* Parses lanes. A lane with unknown text counts as emulated, which is slower but always correct. */
struct lanes lanes_read(const char *text);

/* Writes the transports that UCX may use, from the text of ucp_context_print_info(): "self/memory0,
 * tcp/eth0, posix/memory". Names beyond the size of `out` are left out. */
void lanes_choices(const char *text, char *out, size_t room);

/* ---- cards: the first message between ranks ---- */

/* Upper bound of a packed key: UCX packs at most 255 bytes for each of 64 memory domains. */
enum { CARD_ADDRESS_MOST = 1 << 16, CARD_KEY_MOST = 1 << 15 };

/* A card has a fixed size. An address and a key of the announced lengths follow in a second
 * round. */
struct card {
    uint64_t base, heap, heap_bytes, region_bytes;
    /* heap_key_bytes: length of the key of a heap that the caller allocated; this key follows the
     * region's key. 0: no such heap. */
    uint32_t signals, address_bytes, key_bytes, heap_key_bytes, version[2];
    char tcp_segments[32]; /* UCX's segment sizes for sending and receiving: "128k/256k" */
};

/* Checks that all cards are valid, and equal in the fields that must agree. */
enum epa_status cards_check(const struct card *, uint32_t ranks, uint32_t me, struct epa_error *);

/* Size of the longest message of the second round. */
size_t cards_stride(const struct card *, uint32_t ranks);

#endif
