/* Memory that the ranks of a node have of each other: the transports shm and verbs are made on it,
 * and nvlink has pages for its barriers. */
#ifndef SEGMENTS_H
#define SEGMENTS_H

#include <epa2a/transport.h>

struct failure; /* transport_wait.h */

enum { LINE = 64 };

struct line {
    _Alignas(LINE) uint64_t word;
};

/* What a rank owns; its heap comes behind it. */
struct segment {
    struct line users;    /* ranks of the owner's process that have yet to leave it */
    struct line arrived;  /* barriers that the owner has reached; only it writes */
    struct line signal[]; /* and behind these the transport's own lines */
};

enum huge_kind { HUGE_AUTO, HUGE_ON, HUGE_OFF };

enum segments_reach {
    REACH_NODE, /* the ranks of one node map each other */
    REACH_HOST, /* all do: they are of one host, whatever the world calls nodes */
    REACH_OWN,  /* each has its own alone */
};

/* What a rank sends the others about its segment. */
struct segment_card {
    uint64_t dev, ino; /* which file it is, beyond doubt */
    uint64_t heap_bytes;
    uint32_t signals;
    int32_t pid, fd;
    struct segment *segment;
};

struct segments_params {
    const char *name; /* of the transport, for errors */
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
    bool mapped; /* by this rank for itself; else at its owner's address, and counted */
};

struct segments {
    struct segments_params params;
    uint32_t rank, size;
    uint64_t bytes, heap_at; /* of each segment; where the heap begins in it */
    int fd;                  /* of the own segment, until all have mapped it */
    struct peer *peer;       /* [size]; nothing where it does not reach */
};

/* Of one segment; of heaps that segments_init() takes. */
uint64_t segments_bytes(const struct segments_params *);

/* Collective. On failure `out` is finished already. */
enum epa_status segments_init(struct segments *out, const struct segments_params *,
                              struct epa_error *);
void segments_finish(struct segments *); /* also of what was never begun, or twice */

/* Barrier number `epoch`, counted from 1, of ranks that reach each other. */
enum epa_status segments_barrier(const struct segments *, const struct epa_wait_config *,
                                 uint64_t epoch, uint64_t timeout_ns, struct failure *);

#endif
