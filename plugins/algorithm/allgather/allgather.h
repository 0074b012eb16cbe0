/* allgather: options and the layout of the heap, for host and CUDA code.
 *
 * The heap is two buffer sets, which calls use in turn, each the packed output of one call: rank
 * 0's rows, rank 1's, and so on. Counts are the same on all ranks, so a row is at the same offset
 * everywhere: this rank's part of its own set is also what puts and pulls read. */
#ifndef ALLGATHER_H
#define ALLGATHER_H

#include <epa2a/algorithm.h>

enum ag_mode { AG_PUSH, AG_PULL };
enum ag_nontemporal { AG_NONTEMPORAL_AUTO, AG_NONTEMPORAL_OFF, AG_NONTEMPORAL_ON };

struct ag_config {
    int mode, nontemporal; /* the enums above */
    uint32_t chunks;
    uint32_t blocks; /* CUDA code: at most; 0: as many as keep links busy */
};

enum { AG_SETS = 2, AG_RANKS = 64 };

struct ag_layout {
    uint32_t size, max_rows, row_bytes;
    uint32_t chunks, chunk_rows; /* of a rank; the last chunk may be shorter */
    uint64_t set_bytes, heap_bytes;
    uint32_t signals; /* [size][chunks] */
    bool pull, puts;  /* puts: loads and stores may not reach all peers */
};

/* This rank's word for chunk `chunk` of `source`. */
static inline uint32_t ag_signal(const struct ag_layout *l, uint32_t source, uint32_t chunk)
{
    return source * l->chunks + chunk;
}

enum epa_status ag_host_create(const struct epa_algorithm_params *, const struct ag_layout *,
                               struct epa_algorithm **out, struct epa_error *);

/* CUDA code; EPA_ERR_UNSUPPORTED where it was not built in. */
enum epa_status ag_cuda_create(const struct epa_algorithm_params *, const struct ag_layout *,
                               struct epa_algorithm **out, struct epa_error *);

/* Arguments of the kernels. */

/* A block copies at least AG_PART_BYTES, where there is so much, before another takes part. */
enum { AG_THREADS = 512, AG_PART_BYTES = AG_THREADS * 16 };

/* Waits of a kernel: for a chunk of a peer; for room in the ring for a chunk of its own. */
enum { AG_FOR_CHUNK, AG_FOR_ROOM };

/* By value. */
struct ag_args {
    struct epa_device_view v;
    uint64_t timeout_ns;
    uint64_t set;    /* the buffer set at hand: offset from the start of any rank's heap */
    uint32_t signal; /* the first of [size][chunks] */
    uint32_t chunks, chunk_rows, row_bytes;
    const uint32_t *rows; /* [size] */
    const char *in;       /* NULL: in place */

    /* This rank's alone. */
    /* Calls that have ended, counted in device memory, so that a graph which is launched again
     * goes on counting: the same number for each block, which reads and writes its own. */
    unsigned long long *calls; /* [blocks] */
    uint32_t *stored;          /* [chunks] blocks that have stored their part; 0 between calls */

    struct epa_device_ring ring; /* to peers of other nodes */
};

#ifdef __cplusplus
extern "C" {
#endif
/* Takes a struct ag_args; AG_THREADS threads a block. far: there are ranks of other nodes. */
const void *ag_kernel(bool pull, bool far);
#ifdef __cplusplus
}
#endif

#endif
