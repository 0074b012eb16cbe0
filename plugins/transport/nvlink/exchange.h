/* File descriptors passed between the ranks of one host, and which GPUs reach which: what is asked
 * of the driver elsewhere is decided here. */
#ifndef EXCHANGE_H
#define EXCHANGE_H

#include <stdbool.h>
#include <stdint.h>

#include <epa2a/world.h>
#include <epa2a/status.h>

enum { EXCHANGE_RANKS = 64 };

/* Collective. Every rank gives a descriptor, and keeps it; out[r] is this rank's own copy,
 * close-on-exec, of that of rank r, and -1 where r is itself, or not near. near: [size], of all
 * ranks that are near each other the same. */
enum epa_status exchange_fds(struct epa_bootstrap *, const bool *near, int mine,
                             uint64_t timeout_ns, int *out, struct epa_error *);

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

/* reach[i * size + j], enum reach; direct where the two are not near. Refuses in words, by the
 * first pair that will not do; the same on all ranks. What one of two ranks does not see, the
 * other may have asked. */
enum epa_status pairs_check(const struct gpu *gpu, const unsigned char *reach, uint32_t size,
                            struct epa_error *);

#endif
