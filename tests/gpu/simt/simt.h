/* Kernels on CPUs: common operations of threads in a block, and launches. README.md describes the
 * design. Device code uses the names of CUDA (include/simt_cuda.h), which are built on these
 * functions. */
#ifndef SIMT_H
#define SIMT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "../fake/fake_traffic.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SIMT_EXPORT __attribute__((visibility("default")))

enum { SIMT_WARP = 32, SIMT_THREADS = 1024, SIMT_SHARED_BYTES = 227 * 1024 };

/* Position of a thread. */
struct simt_place {
    uint3 thread, block;
    dim3 threads, blocks;
    uint32_t number; /* number of the thread in its block */
    struct worker *worker;
};

/* The stack of a thread begins at a multiple of its size. Its last SIMT_SELF bytes hold the
 * position of the thread. */
enum { SIMT_STACK = 256 * 1024, SIMT_SELF = 2048 };

static inline const struct simt_place *simt_place(void)
{
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);

    return (const struct simt_place *)((here | (SIMT_STACK - 1)) + 1 - SIMT_SELF);
}

/* Common operations of the lanes of a warp. */
enum simt_warp_op {
    SIMT_NOTHING,
    SIMT_SYNCWARP,
    SIMT_SHFL, /* `arg`: source lane */
    SIMT_BALLOT,
    SIMT_OR,
};
SIMT_EXPORT uint64_t simt_warp(enum simt_warp_op, uint32_t mask, uint64_t value, uint32_t arg);

/* Common operations of a block. */
enum simt_block_op {
    SIMT_SYNCTHREADS = 1,
    SIMT_SYNC_AND,
    SIMT_SYNC_OR,
};
SIMT_EXPORT int simt_block(enum simt_block_op, int value);

/* Joins named barrier `id` of `threads` threads. */
SIMT_EXPORT void simt_named(uint32_t id, uint32_t threads);
/* Sets the registers per thread of a warpgroup. */
SIMT_EXPORT void simt_registers(uint32_t registers, bool more);

/* ---- words that ranks share ---- */

/* A repeated load counts as a poll and gives other threads a turn. */
SIMT_EXPORT uint64_t simt_load(const uint64_t *word);
/* Eight lanes that load or store a line of 128 bytes together, 16 bytes each, access it as a whole,
 * as NVLink and the caches of GPUs do. */
SIMT_EXPORT void simt_load_pair(const char *from, uint64_t *first, uint64_t *second);
SIMT_EXPORT void simt_store_pair(char *to, uint64_t first, uint64_t second);
SIMT_EXPORT void simt_polled(void); /* for other operations in polling loops */
SIMT_EXPORT uint64_t simt_time(void);

/* Counts an access to global memory; see fake_traffic.h. */
SIMT_EXPORT void simt_count(const void *at, size_t bytes, enum fake_access);

static inline void simt_accessed(const void *at, size_t bytes, enum fake_access access)
{
    if (__atomic_load_n(&fake_traffic_counts, __ATOMIC_RELAXED) != 0)
        simt_count(at, bytes, access);
}

/* ---- launches ---- */

/* Returns dynamic shared memory, whose size the launch sets. Device code calls it `shared`;
 * `compile` rewrites a declaration inside a function to this call. */
SIMT_EXPORT void *simt_shared(void);
struct simt_grid {
    dim3 blocks, threads;
    size_t shared_bytes;
    uint32_t cluster; /* blocks per cluster: 1 or 2 */
};

/* A kernel with its arguments: each thread calls run(args). */
struct simt_kernel {
    void (*run)(const void *kernel, const void *args);
    const void *kernel;
    size_t bytes; /* size of args */
};

/* Queues a kernel. If that fails, cudaGetLastError() returns the reason. */
SIMT_EXPORT cudaError_t simt_queue(const struct simt_grid *, const struct simt_kernel *,
                                   const void *args, cudaStream_t);

/* Registers the argument struct of the kernels of a module that cudaLaunchKernelExC() launches.
 * Called when the module is loaded (params.cpp.in). */
SIMT_EXPORT void simt_params(const void *here, const struct simt_kernel *);

/* ---- asynchronous units of Hopper, as in epa2a/sm90.cuh ---- */

/* Pointers are pointers of the kernel; addresses of shared memory have the form of PTX. */
enum { SIMT_SHARED_BASE = 1024 }; /* address of the first byte of dynamic shared memory */
SIMT_EXPORT uint32_t simt_shared_address(const void *at);
SIMT_EXPORT void simt_mbar_init(uint64_t *bar, uint32_t arrivals);
SIMT_EXPORT void simt_mbar_init_done(void);
SIMT_EXPORT void simt_mbar_arrive(uint64_t *bar, uint32_t bytes); /* bytes: expected bytes */
SIMT_EXPORT bool simt_mbar_try(uint64_t *bar, uint32_t parity);
SIMT_EXPORT void simt_fence_async(void);
SIMT_EXPORT void simt_bulk_load(void *to, const void *from, uint32_t bytes, uint64_t *bar);
SIMT_EXPORT void simt_bulk_store(void *to, const void *from, uint32_t bytes);
SIMT_EXPORT void simt_bulk_commit(void);
SIMT_EXPORT void simt_bulk_wait(uint32_t pending, bool read);
SIMT_EXPORT void simt_copy16(void *to, const void *from);
SIMT_EXPORT void simt_copy_commit(void);
SIMT_EXPORT void simt_copy_wait(uint32_t pending);
SIMT_EXPORT void simt_tile_load(void *to, const CUtensorMap *, int32_t x, int32_t y, uint64_t *bar);

/* Clusters of two blocks. */
SIMT_EXPORT uint32_t simt_cluster_rank(void);
SIMT_EXPORT void simt_cluster_sync(void);
SIMT_EXPORT void simt_cluster_arrive(uint64_t *bar, uint32_t rank);
SIMT_EXPORT void simt_cluster_store(uint64_t *to, uint64_t value, uint64_t *bar, uint32_t rank);
SIMT_EXPORT void simt_tile_multicast(void *to, const CUtensorMap *, int32_t x, int32_t y,
                                     uint64_t *bar, uint32_t blocks);

/* wgmma: D = A * B^T (+ D if `sum`), 64 x n, over 32 bytes of K. */
enum simt_type { SIMT_BF16, SIMT_F16, SIMT_E4M3 };
struct simt_product {
    uint64_t a, b; /* descriptors */
    uint32_t n;
    enum simt_type type;
    uint32_t sum;
};
SIMT_EXPORT void simt_wgmma_begin(void);
SIMT_EXPORT void simt_wgmma(float *d, const struct simt_product *);
SIMT_EXPORT void simt_wgmma_commit(void);
SIMT_EXPORT void simt_wgmma_wait(uint32_t pending);

#ifdef __cplusplus
}
#endif
#endif
