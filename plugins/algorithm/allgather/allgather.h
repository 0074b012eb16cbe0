/* allgather: options and the layout of the heap, for host and CUDA code.
 *
 * The heap is two buffer sets, which calls use alternately. Each set is the packed output of a
 * call: rank 0's rows, rank 1's rows, and so on. Counts are the same on all ranks, so a row has the
 * same offset everywhere, and puts and pulls read this rank's part of its own set. */
#ifndef ALLGATHER_H
#define ALLGATHER_H

#include <epa2a/algorithm.h>

enum ag_mode { AG_PUSH, AG_PULL };
enum ag_nontemporal { AG_NONTEMPORAL_AUTO, AG_NONTEMPORAL_OFF, AG_NONTEMPORAL_ON };

struct ag_config {
    int mode, nontemporal; /* enum ag_mode and enum ag_nontemporal */
    uint32_t chunks;
    uint32_t blocks; /* CUDA code: maximum of blocks; 0: enough to saturate the links */
};

enum { AG_SETS = 2, AG_RANKS = 64 };

struct ag_layout {
    uint32_t size, max_rows, row_bytes;
    /* chunks of a rank; rows of a chunk, of which the last may have fewer */
    uint32_t chunks, chunk_rows;
    uint64_t set_bytes, heap_bytes;
    uint32_t signals; /* [size][chunks] */
    bool pull, puts;  /* puts: loads and stores may not reach all peers */
};

/* Returns the index of this rank's word for chunk `chunk` of `source`. */
static inline uint32_t ag_signal(const struct ag_layout *l, uint32_t source, uint32_t chunk)
{
    return source * l->chunks + chunk;
}

enum epa_status ag_host_create(const struct epa_algorithm_params *, const struct ag_layout *,
                               struct epa_algorithm **out, struct epa_error *);

/* CUDA code; EPA_ERR_UNSUPPORTED in builds without it. */
enum epa_status ag_cuda_create(const struct epa_algorithm_params *, const struct ag_layout *,
                               struct epa_algorithm **out, struct epa_error *);

/* ---- arguments of the kernels ---- */

/* A block copies at least AG_PART_BYTES of a chunk, if the chunk is long enough. */
enum { AG_THREADS = 512, AG_PART_BYTES = AG_THREADS * 16 };

/* Waits of a kernel: for a chunk of a peer, or for room in the ring for an own chunk. */
enum { AG_FOR_CHUNK, AG_FOR_ROOM };

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
