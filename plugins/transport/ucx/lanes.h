/* Lanes of an endpoint, and the card by which a rank describes its memory to peers: all without
 * a call of UCX. */
#ifndef UCX_LANES_H
#define UCX_LANES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/status.h>

/* ---- lanes: the text of ucp_ep_print_info(), the only place where version 1.13 says which
 * transport carries what ---- */

enum { LANES_NAMES = 96 };

struct lanes {
    char names[LANES_NAMES]; /* "posix/memory", "sysv/memory, posix/memory", "tcp/eth0" */
    bool puts;               /* by the transport; else a message that the peer executes */
    bool additions;          /* same */
    bool rdma; /* one lane alone moves data: rc or dc, of InfiniBand or RoCE */
};

/* A lane that it cannot parse counts as emulated, which is slower but always correct. */
struct lanes lanes_read(const char *text);

/* What UCX may choose from here, of the text of ucp_context_print_info(): "self/memory0,
 * tcp/eth0, posix/memory"; what there is no room for is left out. */
void lanes_choices(const char *text, char *out, size_t room);

/* ---- cards: what ranks exchange first ---- */

/* Upper bound of a packed key: UCX packs at most 255 bytes for each of 64 memory domains. */
enum { CARD_ADDRESS_MOST = 1 << 16, CARD_KEY_MOST = 1 << 15 };

/* Of fixed size; an address and a key of these lengths follow in a second round. */
struct card {
    uint64_t base, heap, heap_bytes, region_bytes;
    /* heap_key_bytes: of a heap that was given to open(), whose key follows the region's; else 0 */
    uint32_t signals, address_bytes, key_bytes, heap_key_bytes, version[2];
    char tcp_segments[32]; /* "128k/256k": to send and to receive, UCX's settings */
};

/* Whether all cards are valid, and equal in the fields that must be. */
enum epa_status cards_check(const struct card *, uint32_t ranks, uint32_t me, struct epa_error *);

/* Bytes for what any of them sends in the second round. */
size_t cards_stride(const struct card *, uint32_t ranks);

#endif
