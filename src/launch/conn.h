/* What agents and the rendezvous say to each other, and a connection that carries it and never
 * blocks. A message is a frame: 4 bytes of type, 4 of length, 8 of its number, then its bytes and,
 * once both sides have proved that they know the job's token, a MAC over all of that. All hosts
 * of a job have one byte order and one version of these structs, which the greeting says. */
#ifndef CONN_H
#define CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/status.h>

enum {
    MAC_BYTES = 32, /* HMAC-SHA-256 */
    CONN_PROTOCOL = 3,
    CONN_NAME = 72,
    CONN_INTERFACE = 16,
    CONN_TOKEN = 64,
    CONN_MASK_MAX = 8192,           /* bytes of a mask of cores */
    CONN_FINGERPRINT_MAX = 1 << 18, /* an experiment as text */
    CONN_GREET_MAX = 256,           /* the longest message of who has not proved anything */
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

struct conn {
    int fd; /* owned; -1: closed */
    unsigned char *in, *out;
    size_t in_from, in_bytes, in_room;
    size_t out_from, out_bytes, out_room;
    size_t limit;        /* bytes of a message that comes in, its head and MAC aside */
    bool sealed, forged; /* forged: what came had a wrong MAC; nothing more is taken */
    unsigned char key_in[MAC_BYTES], key_out[MAC_BYTES];
    uint64_t number_in, number_out;
    uint64_t heard_ns, said_ns; /* when bytes last came and went */
    char why[128];              /* why it is closed; "": it is not */
};

struct conn_message {
    uint32_t type;
    const unsigned char *data; /* until the connection is read again */
    size_t bytes;
};

/* HMAC-SHA-256 by OpenSSL or, where the build found none, by the kernel (AF_ALG). False: there is
 * none here, or the key has more than 64 bytes. */
bool mac_of(const void *key, size_t key_bytes, const void *data, size_t bytes,
            unsigned char out[MAC_BYTES]);

/* Takes the descriptor. */
void conn_init(struct conn *out, int fd, size_t limit);
void conn_finish(struct conn *);

/* Closed for good; the first reason stays. Messages that have come can still be taken. */
EPA_PRINTF(2, 3) void conn_close(struct conn *, const char *fmt, ...);

/* From here on each message has a MAC, by keys of these nonces and that direction. */
void conn_seal(struct conn *, const char *token, const struct conn_greet *agent,
               const struct conn_greet *rendezvous, bool is_agent);

/* A greeting with a nonce of its own. */
void conn_make_greet(struct conn_greet *out);

/* What poll() is to look for; reading and writing what is possible without waiting. */
short conn_events(const struct conn *);
void conn_turn(struct conn *, short revents);

/* The next message that is all there. */
bool conn_take(struct conn *, struct conn_message *out);

void conn_discard(struct conn *); /* what has come */

/* Queues a message of two parts, either of which may be empty. */
void conn_put(struct conn *, uint32_t type, const void *head, size_t head_bytes, const void *tail,
              size_t tail_bytes);
void conn_say(struct conn *, uint32_t type); /* without bytes */
void conn_put_word(struct conn *, uint32_t type, const struct conn_word *);
void conn_put_piece(struct conn *, uint32_t type, uint64_t number, const void *data, size_t bytes);

/* False: it is none. Then without what a terminal would obey. */
bool conn_get_word(const struct conn_message *, struct conn_word *out);
/* The struct at its beginning, and what is behind. */
bool conn_get(const struct conn_message *, void *out, size_t bytes, struct conn_message *rest);

/* Ends the text and makes '?' of all in it that is not printable ASCII. */
void conn_clean(char *text, size_t room);

bool conn_all_sent(const struct conn *);
bool conn_all_heard(const struct conn *); /* and the other host has it: closing loses nothing */

/* Whether nothing was heard for so long, by somebody who looked: where the caller itself was
 * away since `last_poll` (stopped, or its machine was), silence counts from now on. */
bool conn_is_silent(struct conn *, uint64_t now, uint64_t last_poll, uint64_t limit_ns);

/* ALIVE, if nothing was said for so long. */
void conn_keep_alive(struct conn *, uint64_t now, uint64_t every_ns);

#endif
