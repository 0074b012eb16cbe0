/* A non-blocking connection for messages between a launcher and the rendezvous. A frame consists of 4
 * bytes of type, 4 of length, 8 of a sequence number, the message and, after both sides have proved
 * that they know the job's token, a MAC over the whole frame. All hosts of a job have the same byte
 * order and the same version of the structs below; the greeting checks both. */
#ifndef CONN_H
#define CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/status.h>

#include "boot/nodes.h"

/* ---- messages ---- */

enum {
    CONN_PROTOCOL = 9,
    CONN_NAME = 72,
    CONN_INTERFACE = 16,
    CONN_MASK_MAX = 8192,           /* bytes of an affinity mask */
    CONN_FINGERPRINT_MAX = 1 << 18, /* an experiment as text */
    CONN_BLOCK_MAX = 1 << 16,
};

enum conn_type {
    /* First messages, in this order; only the first two have no MAC. */
    CONN_GREET = 1, /* launcher: conn_greet */
    CONN_CHALLENGE, /* rendezvous: conn_greet */
    CONN_PROOF,     /* launcher, then rendezvous: empty, since the MAC is the proof */
    /* Launcher to rendezvous. */
    CONN_HELLO, /* conn_hello and the fingerprint */
    CONN_WORD,  /* conn_word: the rank has returned, or a failure */
    CONN_BLOCK, /* conn_piece and results of the rank, from byte `number` on */
    CONN_DONE,  /* no message of the rank will follow */
    /* Rendezvous to launcher. */
    CONN_REFUSED, /* conn_word: the rank is refused; empty and without a MAC: wrong proof */
    CONN_WELCOME, /* all ranks have connected: conn_welcome, and the node of each rank in 4 bytes */
    CONN_ABORT,   /* a rank has failed */
    CONN_VERDICT, /* conn_word: the result of the launch; the last message */
    CONN_BLOCKS, /* to rank 1, which reports if rank 0 is lost: conn_member of each rank of its host */
    /* Both directions. */
    CONN_STEP, /* conn_piece and the data of a rank for set-up step `number`; forwarded to others */
    CONN_ALIVE,
};

struct conn_greet {
    char magic[8];
    uint32_t protocol, zero;
    unsigned char nonce[32];
};
extern const char conn_magic[8];

enum { CONN_JOB = 64 };

/* File with the block of a rank. */
struct conn_block_file {
    int32_t fd; /* in the process of the rank */
    uint32_t zero;
    uint64_t device, inode;
    uint64_t at; /* offset of the blocks of all ranks; 0: no file */
};

struct conn_hello {
    uint32_t rank, size, pid, abi;
    struct conn_block_file block_file;
    struct nodes_host host;
    char job[CONN_JOB];        /* as in contact */
    uint32_t mask_bytes, zero; /* length of the affinity mask, as in nodes_rank */
    unsigned char mask[CONN_MASK_MAX];
};

/* A rank, and the file with its block. */
struct conn_member {
    uint32_t rank, pid;
    struct conn_block_file block_file;
};

struct conn_welcome {
    uint32_t pid;                        /* of rank 0's launcher */
    uint32_t share, shares, local_cores; /* as in struct nodes_rank */
    uint32_t hosts;                      /* number of hosts with ranks; namespaces count as hosts */
    char host[CONN_NAME];
    /* Interface of rank 0's host that other ranks connected to; "lo": all ranks are on one machine, and
     * namespaces separate them; "": unknown. */
    char interface[CONN_INTERFACE];
};

struct conn_word {
    int32_t status;  /* enum epa_status */
    uint32_t rank;   /* lost rank; UINT32_MAX: none */
    uint32_t signal; /* signal that requested a stop, or that killed the rank; 0: none */
    uint32_t zero;
    uint64_t died_ns; /* CLOCK_REALTIME of the death of the rank's process; 0: unknown */
    char key[128];    /* key and text of an epa_error */
    char text[512];
};

struct conn_piece {
    uint64_t number;
    uint32_t rank, zero;
};

struct conn_message {
    uint32_t type;
    const unsigned char *data; /* valid until the next read of the connection */
    size_t bytes;
};

/* Copies the struct at the begin of the message; `rest` is the remainder. Returns false for a short
 * message. */
bool conn_get(const struct conn_message *, void *out, size_t bytes, struct conn_message *rest);

bool conn_get_greet(const struct conn_message *, struct conn_greet *out);

/* `rest`: the fingerprint. */
bool conn_get_hello(const struct conn_message *, struct conn_hello *out, struct conn_message *rest);

/* Describes the first line in which two fingerprints differ: "bench.warmup: 20 there, 10 here". Returns
 * false for equal fingerprints. */
bool conn_find_difference(const char *there, const char *here, char *out, size_t room);

/* `node`: [ranks], the node of each rank. */
bool conn_get_welcome(const struct conn_message *, uint32_t ranks, struct conn_welcome *out,
                      uint32_t *node);

/* Copies the members of CONN_BLOCKS. Returns their number, at most `ranks`, or UINT32_MAX. */
uint32_t conn_get_members(const struct conn_message *, uint32_t ranks, struct conn_member *out);

/* Returns a word without lost rank and signal. */
EPA_PRINTF(2, 3) struct conn_word conn_word_of(enum epa_status, const char *fmt, ...);
/* Returns the word with the key of an epa_error. */
struct conn_word conn_word_at(struct conn_word, const char *key);
bool conn_get_word(const struct conn_message *, struct conn_word *out);

/* Updates the verdict of a launch with a further failure `word`. `verdict` is the failure so far (status
 * 0: none), and its first failure occurred since_ns ago. The death of a rank has precedence over the
 * failures of other ranks that it causes, and an earlier death over a later one. The order of crashes is
 * unknown if launchers waited for a core, so the verdict names all crashed ranks. */
void conn_blame(struct conn_word *verdict, const struct conn_word *word, uint64_t since_ns);

/* Reads a step of the set-up: at most `most` bytes of one of `ranks` ranks. */
bool conn_get_step(const struct conn_message *, uint32_t ranks, size_t most, struct conn_piece *out,
                   struct conn_message *data);

/* Reads a part of a block of block_bytes: `data` belongs at byte out->number. */
bool conn_get_block(const struct conn_message *, size_t block_bytes, struct conn_piece *out,
                    struct conn_message *data);

/* ---- connections ---- */

enum {
    MAC_BYTES = 32, /* HMAC-SHA-256 */
    CONN_TOKEN = 64,
    CONN_GREET_MAX = 256, /* longest message of a peer without proof */
};

struct conn {
    int fd; /* owned; -1: closed */
    unsigned char *in, *out;
    size_t in_from, in_bytes, in_room;
    size_t out_from, out_bytes, out_room;
    size_t limit;        /* maximum bytes of an incoming message without head and MAC */
    bool sealed, forged; /* forged: a message had a wrong MAC; the connection reads no more */
    bool silent;         /* conn_find_loss() has closed the connection for want of messages */
    unsigned char key_in[MAC_BYTES], key_out[MAC_BYTES];
    uint64_t number_in, number_out;
    uint64_t heard_ns, said_ns; /* times of the last received and the last sent bytes */
    char why[128];              /* reason of the closing; "": open */
};

/* HMAC-SHA-256 by OpenSSL or, in a build without OpenSSL, by the kernel (AF_ALG). Returns false if
 * neither is available or the key has more than 64 bytes. */
bool mac_of(const void *key, size_t key_bytes, const void *data, size_t bytes,
            unsigned char out[MAC_BYTES]);

/* Checks that mac_of() works on this machine. */
enum epa_status conn_check_mac(struct epa_error *);

/* Takes ownership of the descriptor. */
void conn_init(struct conn *out, int fd, size_t limit);
void conn_finish(struct conn *);

/* Closes the connection and keeps the first reason. Received messages can still be taken. */
EPA_PRINTF(2, 3) void conn_close(struct conn *, const char *fmt, ...);

/* Adds a MAC to each later message. Both nonces and the direction determine the keys. */
void conn_seal(struct conn *, const char *token, const struct conn_greet *launcher,
               const struct conn_greet *rendezvous, bool is_launcher);

/* Makes a greeting with a new nonce. Returns false, with errno, if a sandbox denies getrandom(). */
bool conn_make_greet(struct conn_greet *out);

/* conn_events() returns the events for poll(); conn_turn() reads and writes without waiting. */
short conn_events(const struct conn *);
void conn_turn(struct conn *, short revents);

/* Takes the next complete message. */
bool conn_take(struct conn *, struct conn_message *out);

void conn_discard(struct conn *); /* discards the received bytes */

/* Queues a message of two parts, each possibly empty. */
void conn_put(struct conn *, uint32_t type, const void *head, size_t head_bytes, const void *tail,
              size_t tail_bytes);
void conn_say(struct conn *, uint32_t type); /* queues an empty message */
void conn_put_word(struct conn *, uint32_t type, const struct conn_word *);
void conn_put_piece(struct conn *, uint32_t type, uint32_t rank, uint64_t number, const void *data,
                    size_t bytes);

/* Sends chunks of a rank's results from byte *at on, as far as possible without waiting. Skips chunks of
 * zeros, since the block of the rendezvous is zeroed. Returns true after the last chunk. */
bool conn_put_block(struct conn *, uint32_t rank, const char *data, size_t bytes, size_t *at);

bool conn_all_sent(const struct conn *);
bool conn_all_heard(const struct conn *); /* all sent bytes are acknowledged: closing loses none */

/* Returns true if the connection is lost: closed, forged (then it is closed here), or silent for
 * limit_ns. The silence counts from now on if the caller itself paused since `polled_ns`. Keeps other
 * connections alive by messages. */
bool conn_find_loss(struct conn *, uint64_t now, uint64_t polled_ns, uint64_t limit_ns);

#endif
