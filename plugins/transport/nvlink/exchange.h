/* Passes file descriptors between the ranks of one host, and decides from the answers of the driver
 * which GPUs reach which. */
#ifndef EXCHANGE_H
#define EXCHANGE_H

#include <stdbool.h>
#include <stdint.h>

#include <epa2a/world.h>
#include <epa2a/status.h>

enum { EXCHANGE_RANKS = 64 };

/* Collective. Every rank passes a descriptor, which stays open. out[r] is a close-on-exec copy of
 * the descriptor of rank r, or -1 if r is this rank or is not near. near[size] is equal on all ranks
 * that are near each other. */
enum epa_status exchange_fds(struct epa_bootstrap *, const bool *near, int mine,
                             uint64_t timeout_ns, int *out, struct epa_error *);

/* Access of rank i to the GPU of rank j. */
enum reach {
    REACH_SELF,       /* rank i uses the same GPU */
    REACH_DIRECT,     /* loads, stores and atomics */
    REACH_NO_ATOMICS, /* loads and stores only, as over PCIe */
    REACH_NONE,
    REACH_UNSEEN, /* the process of rank i does not see the GPU and cannot query it */
};

enum { GPU_UUID = 16, GPU_BUS = 20 };

/* Description of a rank's GPU for other ranks. */
struct gpu {
    unsigned char uuid[GPU_UUID]; /* equal in all processes, unlike device numbers */
    char bus[GPU_BUS];            /* "0000:1b:00.0" */
    int32_t number;               /* device number in its own process */
    uint32_t passes_memory;       /* can export memory as descriptors (virtual memory API) */
};

/* Returns the index of `gpu` among the `n` GPUs that a process sees, or -1. */
int pairs_find(const struct gpu *seen, int n, const struct gpu *gpu);

/* Checks reach[i * size + j] (enum reach; REACH_DIRECT for ranks that are not near). The error names
 * the first unsuitable pair and is equal on all ranks. If rank i does not see the GPU of rank j, the
 * answer of rank j about this pair counts. */
enum epa_status pairs_check(const struct gpu *gpu, const unsigned char *reach, uint32_t size,
                            struct epa_error *);

#endif
