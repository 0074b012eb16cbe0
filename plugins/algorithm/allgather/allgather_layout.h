/* allgather: options and the layout of the heap, for host and CUDA code.
 *
 * The heap is two buffer sets, which calls use alternately. Each set is the packed output of a
 * call: rank 0's rows, rank 1's rows, and so on. Counts are the same on all ranks, so a row has the
 * same offset everywhere, and puts and pulls read this rank's part of its own set. */
#ifndef ALLGATHER_LAYOUT_H
#define ALLGATHER_LAYOUT_H

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

#endif
