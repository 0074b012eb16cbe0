/* Kernels of allgather and their arguments. */
#ifndef ALLGATHER_KERNELS_H
#define ALLGATHER_KERNELS_H

#include "../../common/device_stamps.h"
#include "allgather_layout.h"

/* A block copies at least AG_PART_BYTES of a chunk, if the chunk is long enough. */
enum { AG_THREADS = 512, AG_WARPS = AG_THREADS / 32, AG_PART_BYTES = AG_THREADS * 16 };

/* Waits of a kernel: for a chunk of a peer, or for room in the ring for an own chunk. */
enum { AG_FOR_CHUNK, AG_FOR_ROOM };

/* Stamped phases of a warp. */
enum ag_phase { AG_PHASE_SEND, AG_PHASE_PULL, AG_PHASE_WAIT, AG_PHASES };

/* Passed by value. */
struct ag_args {
    struct epa_device_view v;
    uint64_t timeout_ns;
    uint64_t set;    /* offset of the call's buffer set, from the start of any rank's heap */
    uint32_t signal; /* the first of [size][chunks] words */
    uint32_t chunks, chunk_rows, row_bytes;
    const uint32_t *rows; /* [size]: number of rows of each rank */
    const char *in;       /* NULL: in place */

    /* Memory of this rank. */
    /* Number of ended calls, in device memory, so that repeated launches of a graph continue the
     * count. Each block reads and writes its own copy of the same number. */
    unsigned long long *calls; /* [blocks] */
    /* [chunks]: number of blocks that have stored their part; 0 between calls */
    uint32_t *stored;
    struct device_stamp *stamps; /* [blocks][AG_WARPS][AG_PHASES]; NULL: the run has no profile */

    struct epa_device_ring ring; /* ring of puts to peers of other nodes */
};

#ifdef __cplusplus
extern "C" {
#endif
/* A kernel with a struct ag_args and AG_THREADS threads per block. far: other nodes have ranks. */
const void *ag_kernel(bool pull, bool far);
#ifdef __cplusplus
}
#endif

#endif
