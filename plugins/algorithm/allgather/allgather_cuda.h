/* What the CUDA code of allgather gives its kernels. */
#ifndef ALLGATHER_CUDA_H
#define ALLGATHER_CUDA_H

#include "allgather.h"

/* A block copies at least AG_PART_BYTES, where there is so much, before another takes part. */
enum { AG_THREADS = 512, AG_PART_BYTES = AG_THREADS * 16 };

/* What a kernel waits for: a chunk of a peer; room in the ring for a chunk of its own. */
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
