/* Shared memory between the ranks of a node: the base of the transports shm and verbs; nvlink uses
 * its pages for barriers. */
#ifndef SEGMENTS_H
#define SEGMENTS_H

#include <epa2a/transport.h>

struct failure; /* transport_wait.h */

enum { LINE = 64 };

struct line {
    _Alignas(LINE) uint64_t word;
};

/* Header of a rank's segment; the rank's heap follows it. */
struct segment {
    struct line users;    /* number of ranks of the owner's process that still use the segment */
    struct line arrived;  /* number of barriers that the owner has reached; only the owner writes
                           * it */
    struct line signal[]; /* signals, followed by the transport's own lines */
};

enum huge_kind { HUGE_AUTO, HUGE_ON, HUGE_OFF };

enum segments_reach {
    REACH_NODE, /* the ranks of one node map each other */
    REACH_HOST, /* all ranks map each other: they run on one host, even if the world has several
                 * nodes */
    REACH_OWN,  /* each rank maps only its own segment */
};

/* Description of a rank's segment that the rank sends to the others. */
struct segment_card {
    uint64_t dev, ino; /* identify the file uniquely */
    uint64_t heap_bytes;
    uint32_t signals;
    int32_t pid, fd;
    struct segment *segment;
};

struct segments_params {
    const char *name; /* name of the transport, for errors */
    struct epa_bootstrap *boot;
    uint64_t heap_bytes;
    uint32_t signals, own_lines;
    enum segments_reach reach;
    int huge_pages; /* enum huge_kind */
    bool prefault;
};

struct peer {
    struct segment *segment;
    char *heap;
    bool mapped; /* this rank has mapped the segment; otherwise the address is the owner's, and
                  * `users` counts this rank */
};

struct segments {
    struct segments_params params;
    uint32_t rank, size;
    uint64_t bytes, heap_at; /* bytes: size of a segment; heap_at: offset of the heap */
    int fd;                  /* memfd of the own segment, until all ranks have mapped it */
    struct peer *peer;       /* [size]; NULL pointers for ranks out of reach */
};

/* Returns the bytes of one segment: the header, the lines and the heap of segments_init(). */
uint64_t segments_bytes(const struct segments_params *);

/* Collective. On failure `out` needs no segments_finish(). */
enum epa_status segments_init(struct segments *out, const struct segments_params *,
                              struct epa_error *);
void segments_finish(struct segments *); /* accepts a zeroed or finished struct */

/* Runs barrier number `epoch`, counted from 1, of the ranks that reach each other. */
enum epa_status segments_barrier(const struct segments *, const struct epa_wait_config *,
                                 uint64_t epoch, uint64_t timeout_ns, struct failure *);

#endif
