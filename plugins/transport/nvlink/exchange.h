/* File descriptors passed between the ranks of one host. Knows nothing of what they are
 * for. */
#ifndef EXCHANGE_H
#define EXCHANGE_H

#include <stdint.h>

#include <epa2a/world.h>
#include <epa2a/status.h>

#include "../../common/transport_wait.h"

enum { EXCHANGE_FDS = 2, EXCHANGE_RANKS = 64 };

/* Collective. Every rank gives the same number of descriptors, and keeps them;
 * out[r * n + i] is this rank's own copy, close-on-exec, of descriptor i of rank r, and -1 where r
 * is itself. same[r]: rank r is a thread of this very process. */
enum epa_status exchange_fds(struct epa_bootstrap *, const int *mine, uint32_t n,
                             uint64_t timeout_ns, int *out, bool *same, struct epa_error *);

/* A page of host memory of each rank, that all of them map: its barriers, and who uses its
 * GPU memory. */

struct line {
    _Alignas(64) uint64_t word;
};

struct page {
    struct line arrived; /* barriers that the owner has come to; only it writes */
    struct line mapped;  /* ranks in other processes that have the owner's memory open */
    struct line users;   /* ranks of the owner's process that use it; the last one frees it */
};

struct exchange_page {
    struct epa_wait_config wait;
    uint32_t rank, size;
    int fd;             /* of the own page, until all have mapped it */
    uint64_t barriers;  /* begun by this rank */
    struct page **page; /* [size]; NULL: not yet there */
};

/* Makes the own page. On failure `out` is finished already. */
enum epa_status exchange_page_init(struct exchange_page *out, const struct epa_bootstrap *,
                                   struct epa_error *);
/* Maps the page of rank `r`, whose descriptor the caller keeps. */
enum epa_status exchange_page_map(struct exchange_page *, uint32_t r, int fd, struct epa_error *);
/* Everything is mapped: nobody else can get at the own page. */
void exchange_page_close_fd(struct exchange_page *);
void exchange_page_finish(struct exchange_page *);

/* Until all have arrived. */
enum epa_status exchange_page_barrier(struct exchange_page *, uint64_t timeout_ns,
                                      struct failure *);

/* A share in what the owner of the page has: false where it is gone already. */
bool exchange_page_share(struct page *);
/* True for the last: who frees it. */
bool exchange_page_leave(struct page *);

/* Which GPUs reach which: what is asked of the driver elsewhere, decided here. */

/* How rank i reaches the GPU of rank j. */
enum reach {
    REACH_SELF,       /* it is rank i's own */
    REACH_DIRECT,     /* loads, stores and atomics */
    REACH_NO_ATOMICS, /* loads and stores alone, as over PCIe */
    REACH_NONE,
    REACH_UNSEEN, /* the process of rank i does not see it and cannot ask */
};

enum { GPU_UUID = 16, GPU_BUS = 20 };

/* What a rank tells the others of its GPU. */
struct gpu {
    unsigned char uuid[GPU_UUID]; /* the same in all processes, as numbers are not */
    char bus[GPU_BUS];            /* "0000:1b:00.0" */
    int32_t number;               /* in its own process */
    uint32_t passes_memory;       /* by descriptors, through the driver's virtual memory API */
};

/* Which of the `n` GPUs that a process sees is `gpu`; -1: none. */
int pairs_find(const struct gpu *seen, int n, const struct gpu *gpu);

/* reach[i * size + j], enum reach. Refuses in words, by the first pair that will not do;
 * the same on all ranks. What one of two ranks does not see, the other may have asked. */
enum epa_status pairs_check(const struct gpu *gpu, const unsigned char *reach, uint32_t size,
                            struct epa_error *);

#endif
