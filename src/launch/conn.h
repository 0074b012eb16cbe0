/* A connection between a launcher and the rendezvous, which carries messages and never blocks. A
 * frame is 4 bytes of type, 4 of length, 8 of a sequence number, then the message and, once both
 * sides have proved that they know the job's token, a MAC over all of it. All hosts of a job have
 * one byte order and one version of the structs below, which the greeting checks. */
#ifndef CONN_H
#define CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/status.h>

#include "launch/process.h"

/* ---- messages ---- */

enum {
    CONN_PROTOCOL = 7,
    CONN_NAME = 72,
    CONN_INTERFACE = 16,
    CONN_MASK_MAX = 8192,           /* bytes of a mask of cores */
    CONN_FINGERPRINT_MAX = 1 << 18, /* an experiment as text */
    CONN_BLOCK_MAX = 1 << 16,
};

enum conn_type {
    /* In this order, before anything else; the first two alone have no MAC. */
    CONN_GREET = 1, /* a launcher: conn_greet */
    CONN_CHALLENGE, /* the rendezvous: conn_greet */
    CONN_PROOF,     /* a launcher, then the rendezvous: empty, as its MAC is the proof */
    /* A launcher to the rendezvous. */
    CONN_HELLO, /* conn_hello and its fingerprint */
    CONN_WORD,  /* conn_word: its rank has returned, or what has failed */
    CONN_BLOCK, /* conn_piece and the results of its rank, from byte `number` on */
    CONN_DONE,  /* nothing of its rank will follow */
    /* The rendezvous to a launcher. */
    CONN_REFUSED, /* conn_word: go away; empty and without a MAC: your proof is wrong */
    CONN_WELCOME, /* conn_welcome and 4 bytes for each rank, its node: all have connected */
    CONN_ABORT,   /* some rank has failed */
    CONN_VERDICT, /* conn_word: how the launch ended; the last message */
    /* Both ways. */
    CONN_STEP, /* conn_piece and what that rank brings to step `number` of the set-up; forwarded */
    CONN_ALIVE,
};

struct conn_greet {
    char magic[8];
    uint32_t protocol, zero;
    unsigned char nonce[32];
};
extern const char conn_magic[8];

enum { CONN_JOB = 64 };

struct conn_hello {
    uint32_t rank, size, pid, abi;
    struct nodes_host host;
    char job[CONN_JOB];        /* of launcher_contact */
    uint32_t mask_bytes, zero; /* of the mask of cores, as in nodes_rank */
    unsigned char mask[CONN_MASK_MAX];
};

struct conn_welcome {
    uint32_t pid;                        /* of rank 0's launcher */
    uint32_t share, shares, local_cores; /* as in struct nodes_rank */
    uint32_t hosts;                      /* that ranks are on; namespaces count as hosts */
    char host[CONN_NAME];
    /* Of rank 0's host, by which others connected; "lo": all ranks are on one machine, and namespaces
     * separate them; "": unknown. */
    char interface[CONN_INTERFACE];
};

struct conn_word {
    int32_t status;  /* enum epa_status */
    uint32_t rank;   /* that was lost; UINT32_MAX: none */
    uint32_t signal; /* that asked to stop, or that killed the rank; 0: none */
    uint32_t zero;
    uint64_t died_ns; /* when the rank's process did, of CLOCK_REALTIME; 0: not known */
    char text[512];
};

struct conn_piece {
    uint64_t number;
    uint32_t rank, zero;
};

struct conn_message {
    uint32_t type;
    const unsigned char *data; /* until the connection is read again */
    size_t bytes;
};

/* The struct at its beginning, and what is behind; any bytes will do. */
bool conn_get(const struct conn_message *, void *out, size_t bytes, struct conn_message *rest);

bool conn_get_greet(const struct conn_message *, struct conn_greet *out);

/* `rest`: its fingerprint. */
bool conn_get_hello(const struct conn_message *, struct conn_hello *out, struct conn_message *rest);

/* The first line in which two fingerprints differ: "bench.warmup: 20 there, 10 here". False:
 * none. */
bool conn_find_difference(const char *there, const char *here, char *out, size_t room);

/* `node`: [ranks], the node of each. */
bool conn_get_welcome(const struct conn_message *, uint32_t ranks, struct conn_welcome *out,
                      uint32_t *node);

/* Of no rank that was lost, and of no signal. */
EPA_PRINTF(2, 3) struct conn_word conn_word_of(enum epa_status, const char *fmt, ...);
bool conn_get_word(const struct conn_message *, struct conn_word *out);

/* How a launch ends of which `verdict` is what has failed so far, first since_ns ago (status 0:
 * nothing), once `word` is heard of, too. A rank that died is blamed rather than what others saw of
 * that, and of several the first. Which that is nobody knows of ranks that crashed, if their
 * launchers waited for a core: all of them are named. */
void conn_blame(struct conn_word *verdict, const struct conn_word *word, uint64_t since_ns);

/* A step of the set-up: at most `most` bytes of one of so many ranks. */
bool conn_get_step(const struct conn_message *, uint32_t ranks, size_t most, struct conn_piece *out,
                   struct conn_message *data);

/* Bytes of `data` that belong at byte piece->number of a block of block_bytes. */
bool conn_get_block(const struct conn_message *, size_t block_bytes, struct conn_piece *out,
                    struct conn_message *data);

/* ---- connections ---- */

enum {
    MAC_BYTES = 32, /* HMAC-SHA-256 */
    CONN_TOKEN = 64,
    CONN_GREET_MAX = 256, /* the longest message of who has not proved anything */
};

struct conn {
    int fd; /* owned; -1: closed */
    unsigned char *in, *out;
    size_t in_from, in_bytes, in_room;
    size_t out_from, out_bytes, out_room;
    size_t limit;        /* bytes of an incoming message, its head and MAC aside */
    bool sealed, forged; /* forged: a message had a wrong MAC; nothing more is read */
    unsigned char key_in[MAC_BYTES], key_out[MAC_BYTES];
    uint64_t number_in, number_out;
    uint64_t heard_ns, said_ns; /* when bytes were last received and sent */
    char why[128];              /* why it is closed; "": it is not */
};

/* HMAC-SHA-256 by OpenSSL or, where the build found none, by the kernel (AF_ALG). False: there is
 * none here, or the key has more than 64 bytes. */
bool mac_of(const void *key, size_t key_bytes, const void *data, size_t bytes,
            unsigned char out[MAC_BYTES]);

/* Takes the descriptor. */
void conn_init(struct conn *out, int fd, size_t limit);
void conn_finish(struct conn *);

/* Closed for good; the first reason stays. Messages that were received can still be taken. */
EPA_PRINTF(2, 3) void conn_close(struct conn *, const char *fmt, ...);

/* From here on each message has a MAC, by keys of these nonces and that direction. */
void conn_seal(struct conn *, const char *token, const struct conn_greet *launcher,
               const struct conn_greet *rendezvous, bool is_launcher);

/* A greeting with a nonce of its own. False, with errno: a sandbox refuses getrandom(). */
bool conn_make_greet(struct conn_greet *out);

/* What poll() is to look for; reading and writing what is possible without waiting. */
short conn_events(const struct conn *);
void conn_turn(struct conn *, short revents);

/* The next message that is all there. */
bool conn_take(struct conn *, struct conn_message *out);

void conn_discard(struct conn *); /* what was received */

/* Queues a message of two parts, either of which may be empty. */
void conn_put(struct conn *, uint32_t type, const void *head, size_t head_bytes, const void *tail,
              size_t tail_bytes);
void conn_say(struct conn *, uint32_t type); /* without bytes */
void conn_put_word(struct conn *, uint32_t type, const struct conn_word *);
void conn_put_piece(struct conn *, uint32_t type, uint32_t rank, uint64_t number, const void *data,
                    size_t bytes);

/* Chunks of the results of a rank from byte *at on, as many as leave at once. What was never
 * written, and is zero, is left out: the rendezvous has zeros there, too. Whether that was all. */
bool conn_put_block(struct conn *, uint32_t rank, const char *data, size_t bytes, size_t *at);

bool conn_all_sent(const struct conn *);
bool conn_all_heard(const struct conn *); /* and the other host has it: closing loses nothing */

/* Whether the connection is lost: it is closed, as it is here where it was forged, or nothing was
 * received for limit_ns by a caller that polled (one that was itself stopped since `polled_ns`
 * counts silence from now on). One that is not lost is kept alive. */
bool conn_find_loss(struct conn *, uint64_t now, uint64_t polled_ns, uint64_t limit_ns);

#endif
