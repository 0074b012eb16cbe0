/* How fuzz_messages and fuzz_rendezvous read their bytes, which `make_seeds` writes. */
#ifndef MESSAGES_H
#define MESSAGES_H

#include "launch/conn.h"

/* fuzz_messages: a byte of kind, one of ranks less 1, then the message. */
enum messages_kind {
    MESSAGES_GREET,
    MESSAGES_HELLO,
    MESSAGES_WELCOME,
    MESSAGES_WORD,
    MESSAGES_STEP,
    MESSAGES_BLOCK,
    MESSAGES_CARDS, /* of the ucx transport; it has no type */
    MESSAGES_KINDS,
};

static const uint32_t messages_type[MESSAGES_KINDS] = {
    [MESSAGES_GREET] = CONN_GREET, [MESSAGES_HELLO] = CONN_HELLO, [MESSAGES_WELCOME] = CONN_WELCOME,
    [MESSAGES_WORD] = CONN_WORD,   [MESSAGES_STEP] = CONN_STEP,   [MESSAGES_BLOCK] = CONN_BLOCK,
};

enum { MESSAGES_RANKS = 8, MESSAGES_SLOT = 64, MESSAGES_BLOCK_BYTES = 4096 };

/* fuzz_rendezvous: the number of a connection and how it speaks, a type, a length, these bytes. */
enum {
    RENDEZVOUS_RANKS = 2,
    RENDEZVOUS_BLOCK = 100,
    RENDEZVOUS_CONNECTIONS = 4,
    RENDEZVOUS_STRANGER = RENDEZVOUS_CONNECTIONS - 1, /* it proves nothing by itself */
    RENDEZVOUS_RAW = 4,                               /* bytes as they are */
    /* A hello of the rank in `type`. Its bytes: how many are its mask of cores, then that and its
     * fingerprint; none: no mask, and the right one. These change it: */
    RENDEZVOUS_HELLO = 8,
    RENDEZVOUS_ABI = 16,
    RENDEZVOUS_SIZE = 32,
    RENDEZVOUS_NAMES = 64, /* without an end */
};

#endif
