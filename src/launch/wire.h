/* What agents and the hub say to each other, as bytes: little endian, lengths before what
 * they count, a limit on everything. A message is a frame: 4 bytes of type, 4 of length. */
#ifndef WIRE_H
#define WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/status.h>

enum {
    WIRE_PROTOCOL = 1,
    WIRE_HEAD = 8,
    WIRE_TOKEN = 64,
    WIRE_NAME = 72,      /* of a host, a version, a machine */
    WIRE_IDENTITY = 288, /* of a host: its name and what tells two of one name apart */
    WIRE_TEXT = 512,
    WIRE_MASK_MAX = 8192,           /* bytes of a mask of cores */
    WIRE_FINGERPRINT_MAX = 1 << 18, /* an experiment as text */
    WIRE_GREET_MAX = 256,           /* the longest message of who has not shown the token */
    WIRE_HELLO_MAX = WIRE_FINGERPRINT_MAX + WIRE_MASK_MAX + 1024,
    WIRE_GATHER_MAX = 1 << 20, /* pieces of all ranks together, but at least 1 KiB each */
    WIRE_BLOCK_MAX = 1 << 16,
};

enum wire_type {
    /* An agent to the hub. */
    WIRE_GREET = 1, /* wire_greet: before anything else */
    WIRE_HELLO,     /* wire_hello: at once behind it */
    WIRE_GATHER,    /* wire_piece: its piece number so much; all pieces of one are as long */
    WIRE_WORD,      /* wire_word: its rank has returned, or what has gone wrong */
    WIRE_BLOCK,     /* wire_piece: what its rank left, from byte so much on */
    WIRE_DONE,      /* nothing of its rank will follow */
    /* The hub to an agent. */
    WIRE_REFUSED, /* wire_word: go away */
    WIRE_WELCOME, /* wire_welcome: all ranks are here */
    WIRE_ALL,     /* wire_piece: the pieces of all ranks, in order */
    WIRE_LATE,    /* wire_word: its piece was waited for too long, for `rank` is not there */
    WIRE_ABORT,   /* some rank has failed */
    WIRE_VERDICT, /* wire_word: how the launch ended; the last message */
    /* Both ways. */
    WIRE_ALIVE,
    /* Between an agent and the process of its rank, beside GATHER, ALL and LATE. */
    WIRE_CONTACT,  /* wire_word and a struct team_contact: what meet() gave */
    WIRE_RUN,      /* struct team_run and what belongs to it */
    WIRE_RETURNED, /* the status stands in the control page */
    WIRE_LEAVE,
};

struct wire_span {
    const unsigned char *data;
    size_t bytes;
};

struct wire_greet {
    uint32_t protocol;
    char token[WIRE_TOKEN + 1];
};

struct wire_hello {
    uint32_t rank, size, pid, abi;
    char version[WIRE_NAME], host[WIRE_NAME];
    char machine[WIRE_NAME];      /* alike where cores are shared: the kernel's boot id */
    char identity[WIRE_IDENTITY]; /* alike where memory can be shared */
    struct wire_span mask;        /* cores that it may use, a bit each */
    struct wire_span fingerprint; /* as in epa_launch */
};

struct wire_welcome {
    uint32_t pid; /* of the hub */
    char host[WIRE_NAME];
    uint32_t share, shares; /* ranks that may use the same cores: which of how many */
    uint32_t local_cores;   /* as in epa_world */
    struct wire_span node;  /* 4 bytes for each rank */
};

struct wire_word {
    enum epa_status status;
    uint32_t rank;   /* that was lost, or is late; UINT32_MAX: none */
    uint32_t signal; /* that asked to stop, or that killed the rank; 0: none */
    char text[WIRE_TEXT];
};

struct wire_piece {
    uint64_t number;
    struct wire_span data;
};

void wire_put_u32(unsigned char *, uint32_t);
uint32_t wire_get_u32(const unsigned char *);

/* The bytes of a rank in one gather of `size` ranks, at most. */
size_t wire_gather_bytes(uint32_t size);

/* Each returns the bytes that it wrote; 0: there was no room. Texts and spans that are too
 * long are cut. */
size_t wire_put_greet(unsigned char *, size_t room, const struct wire_greet *);
size_t wire_put_hello(unsigned char *, size_t room, const struct wire_hello *);
size_t wire_put_welcome(unsigned char *, size_t room, const struct wire_welcome *);
size_t wire_put_word(unsigned char *, size_t room, const struct wire_word *);
size_t wire_put_piece(unsigned char *, size_t room, const struct wire_piece *);

/* False: these bytes are no such message. Spans point into `data`; texts end in 0, and what
 * a terminal would obey is '?' in them. A greeting of another protocol has no token. */
bool wire_get_greet(const unsigned char *data, size_t bytes, struct wire_greet *out);
bool wire_get_hello(const unsigned char *data, size_t bytes, struct wire_hello *out);
bool wire_get_welcome(const unsigned char *data, size_t bytes, uint32_t size,
                      struct wire_welcome *out);
bool wire_get_word(const unsigned char *data, size_t bytes, struct wire_word *out);
bool wire_get_piece(const unsigned char *data, size_t bytes, struct wire_piece *out);

/* The first line in which `there` differs from `here`, in words: "bench.warmup: 20 there,
 * 10 here". False: they are alike. */
bool wire_difference(struct wire_span there, const char *here, char *out, size_t room);

/* Whether two tokens are the same, in a time that tells nothing of where they differ. */
bool wire_token_is(const char *token, const char *want);

#endif
