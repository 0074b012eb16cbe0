/* What ranks tell each other before they use it: sizes, and how long what follows is. */
#ifndef UCX_CARDS_H
#define UCX_CARDS_H

#include <stddef.h>
#include <stdint.h>

#include <epa2a/status.h>

/* Of the most that UCX packs: a key has at most 255 bytes for each of 64 memory domains. */
enum { CARD_ADDRESS_MOST = 1 << 16, CARD_KEY_MOST = 1 << 15 };

/* Of fixed size; an address and a key of these lengths follow in a second round. */
struct card {
    uint64_t base, heap_bytes, region_bytes;
    uint32_t signals, address_bytes, key_bytes, version[2];
};

/* Whether all of them can be worked with, and are alike where they must be. */
enum epa_status cards_check(const struct card *, uint32_t ranks, uint32_t me, struct epa_error *);

/* Bytes for what any of them sends in the second round. */
size_t cards_stride(const struct card *, uint32_t ranks);

#endif
