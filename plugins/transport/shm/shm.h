/* What the two halves of the shm transport share: the memory that ranks have of each other
 * (segments.c) and what they do in it (shm.c). */
#ifndef SHM_H
#define SHM_H

#include <epa2a/transport.h>

enum { LINE = 64 };

struct line {
    _Alignas(LINE) uint64_t word;
};

/* What a rank owns; its heap comes behind it. */
struct segment {
    struct line users;   /* ranks of the owner's process that have yet to leave it */
    struct line arrived; /* barriers that the owner has come to; only it writes */
    struct line signal[];
};

enum huge_kind { HUGE_AUTO, HUGE_ON, HUGE_OFF };

struct segments_params {
    struct epa_bootstrap *boot;
    uint64_t heap_bytes;
    uint32_t signals;
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
    struct peer *peer;       /* [size] */
};

/* Collective. On failure `out` is finished already. */
enum epa_status segments_init(struct segments *out, const struct segments_params *,
                              struct epa_error *);
void segments_finish(struct segments *);

#endif
