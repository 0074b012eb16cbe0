/* What agents and the rendezvous say to each other. All hosts of a job have one byte order and one
 * version of these structs, which the greeting says. A conn_get_ function returns whether a message
 * is what it should be; only then anything of it may be used, and its texts end and have nothing in
 * them that a terminal would obey. */
#ifndef MESSAGES_H
#define MESSAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/status.h>

enum {
    CONN_PROTOCOL = 3,
    CONN_NAME = 72,
    CONN_INTERFACE = 16,
    CONN_MASK_MAX = 8192,           /* bytes of a mask of cores */
    CONN_FINGERPRINT_MAX = 1 << 18, /* an experiment as text */
    CONN_BLOCK_MAX = 1 << 16,
};

enum conn_type {
    /* In this order, before anything else; the first two alone have no MAC. */
    CONN_GREET = 1, /* an agent: conn_greet */
    CONN_CHALLENGE, /* the rendezvous: conn_greet */
    CONN_PROOF,     /* an agent, then the rendezvous: empty, as its MAC says it all */
    /* An agent to the rendezvous. */
    CONN_HELLO,  /* conn_hello, its mask of cores, its fingerprint */
    CONN_GATHER, /* conn_piece and what its rank brings to that step of the set-up */
    CONN_WORD,   /* conn_word: its rank has returned, or what has gone wrong */
    CONN_BLOCK,  /* conn_piece and what its rank left, from that byte on */
    CONN_DONE,   /* nothing of its rank will follow */
    /* The rendezvous to an agent. */
    CONN_REFUSED, /* conn_word: go away; empty and without a MAC: your proof is wrong */
    CONN_WELCOME, /* conn_welcome and 4 bytes for each rank, its node: all are here */
    CONN_ALL,     /* conn_piece and what all ranks brought to that step, in order */
    CONN_MISSING, /* conn_piece: that rank is the first that has not come to the step */
    CONN_ABORT,   /* some rank has failed */
    CONN_VERDICT, /* conn_word: how the launch ended; the last message */
    /* Both ways. */
    CONN_ALIVE,
};

struct conn_greet {
    char magic[8];
    uint32_t protocol, zero;
    unsigned char nonce[32];
};
extern const char conn_magic[8];

struct conn_hello {
    uint32_t rank, size, pid, abi;
    char host[CONN_NAME], machine[CONN_NAME], identity[288]; /* as in nodes.h */
    uint32_t mask_bytes, zero;
};

struct conn_welcome {
    uint32_t pid;                        /* of rank 0's agent */
    uint32_t share, shares, local_cores; /* as in nodes.h */
    uint32_t hosts;                      /* that ranks are on; namespaces count as hosts */
    char host[CONN_NAME];
    char interface[CONN_INTERFACE]; /* of rank 0's host, by which others came; "": unknown */
};

struct conn_word {
    int32_t status;  /* enum epa_status */
    uint32_t rank;   /* that was lost; UINT32_MAX: none */
    uint32_t signal; /* that asked to stop, or that killed the rank; 0: none */
    char text[512];
};

struct conn_piece {
    uint64_t number;
};

struct conn_message {
    uint32_t type;
    const unsigned char *data; /* until the connection is read again */
    size_t bytes;
};

/* The struct at its beginning, and what is behind; any bytes will do. */
bool conn_get(const struct conn_message *, void *out, size_t bytes, struct conn_message *rest);

/* Ends the text and makes '?' of all in it that is not printable ASCII. */
void conn_clean(char *text, size_t room);

bool conn_get_greet(const struct conn_message *, struct conn_greet *out);

/* `rest`: its mask of cores, hello->mask_bytes, then its fingerprint. */
bool conn_get_hello(const struct conn_message *, struct conn_hello *out, struct conn_message *rest);

/* `node`: [ranks], the node of each. */
bool conn_get_welcome(const struct conn_message *, uint32_t ranks, struct conn_welcome *out,
                      uint32_t *node);

bool conn_get_word(const struct conn_message *, struct conn_word *out);

/* What ranks bring to a step of the set-up, or who is missing. */
struct conn_step {
    uint64_t number;
    uint32_t missing;          /* ranks before it have come; all of them: `ranks` */
    const unsigned char *data; /* then [ranks][bytes] */
    size_t bytes;
};
bool conn_get_step(const struct conn_message *, uint32_t ranks, size_t most, struct conn_step *out);

/* Bytes of `data` that belong at byte piece->number of a block of block_bytes. */
bool conn_get_block(const struct conn_message *, size_t block_bytes, struct conn_piece *out,
                    struct conn_message *data);

#endif
