/* Bytes that the kernels of a rank move to and from the heaps of other ranks. An emulator of CUDA
 * counts them (tests/gpu/simt); GPUs do not. */
#ifndef KERNEL_TRAFFIC_H
#define KERNEL_TRAFFIC_H

#include <epa2a/backend.h>

enum { KERNEL_TRAFFIC_REGIONS = 2 * 64 }; /* a heap and signals per rank */

/* A heap, or the signals, of another rank. */
struct kernel_region {
    const char *begin;
    uint64_t bytes;
    uint32_t rank;
    uint64_t loaded; /* bytes that kernels of this rank loaded */
};

struct kernel_traffic {
    struct kernel_region region[KERNEL_TRAFFIC_REGIONS];
    uint32_t n;
    /* Bytes that kernels of this rank stored in the regions, and bytes of descriptors that they
     * wrote for ranks of other nodes. */
    uint64_t stored;
    /* Bytes of atomic additions, whose number depends on timing, and of copy engines, which also
     * copy rows between the valid rows and the capacity: a plan may leave them out. */
    uint64_t optional;
};

/* Name and type of the function of an emulator: counts the work of all streams that the calling
 * thread has created, from now on. NULL ends the count. */
#define KERNEL_TRAFFIC_SYMBOL "epa2a_count_kernel_traffic"
typedef void kernel_traffic_function(struct kernel_traffic *);

/* Returns the function of the emulator that the backend is linked with, or NULL. */
kernel_traffic_function *kernel_traffic_find(const struct epa_backend_plugin *);

#endif
