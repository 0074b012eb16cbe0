/* A kernel on CPUs: what threads of its blocks do where they meet, and how it is launched.
 * README.md says how it works. Device code sees CUDA's names (include/simt_cuda.h); this is
 * what those are made of. */
#ifndef SIMT_H
#define SIMT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SIMT_EXPORT __attribute__((visibility("default")))

enum { SIMT_WARP = 32, SIMT_THREADS = 1024, SIMT_SHARED_BYTES = 227 * 1024 };

/* Where a thread is. */
struct simt_place {
    uint3 thread, block;
    dim3 threads, blocks;
    uint32_t number; /* of the thread in its block */
    struct worker *worker;
};

/* A thread of a block has a stack that begins at a multiple of its size, the last SIMT_SELF
 * bytes of which are no stack: its place stands there. */
enum { SIMT_STACK = 256 * 1024, SIMT_SELF = 2048 };

static inline const struct simt_place *simt_place(void)
{
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);

    return (const struct simt_place *)((here | (SIMT_STACK - 1)) + 1 - SIMT_SELF);
}

/* What lanes of a warp do together. */
enum simt_warp_op {
    SIMT_NOTHING,
    SIMT_SYNCWARP,
    SIMT_SHFL, /* `arg`: the lane whose value is wanted */
    SIMT_BALLOT,
    SIMT_OR,
};
SIMT_EXPORT uint64_t simt_warp(enum simt_warp_op, uint32_t mask, uint64_t value, uint32_t arg);

/* What a block does together. */
enum simt_block_op {
    SIMT_SYNCTHREADS = 1,
    SIMT_SYNC_AND,
    SIMT_SYNC_OR,
};
SIMT_EXPORT int simt_block(enum simt_block_op, int value);

/* What `threads` threads of a block do together: barrier `id`. */
SIMT_EXPORT void simt_named(uint32_t id, uint32_t threads);
/* Of a warpgroup, which from then on has as many registers a thread. */
SIMT_EXPORT void simt_registers(uint32_t registers, bool more);

/* ---- words that ranks share ---- */

/* A load that a thread makes again and again is one that waits: others get their turn. */
SIMT_EXPORT uint64_t simt_load(const uint64_t *word);
/* Eight lanes that load or store a line of 128 bytes at once, 16 bytes each, find or leave it
 * whole, as NVLink and the caches of GPUs have it. */
SIMT_EXPORT void simt_load_pair(const char *from, uint64_t *first, uint64_t *second);
SIMT_EXPORT void simt_store_pair(char *to, uint64_t first, uint64_t second);
SIMT_EXPORT void simt_polled(void); /* by what else a loop may wait with */
SIMT_EXPORT uint64_t simt_time(void);

/* ---- launches ---- */

/* A block's shared memory whose size the launch says. Device code calls it `shared`; where that is
 * declared in a function, `compile` makes it this. */
SIMT_EXPORT void *simt_shared(void);
struct simt_grid {
    dim3 blocks, threads;
    size_t shared_bytes;
    uint32_t cluster; /* blocks: 1 or 2 */
};

/* A kernel with its arguments: run(args) in each thread. */
struct simt_kernel {
    void (*run)(const void *kernel, const void *args);
    const void *kernel;
    size_t bytes; /* of args */
};

/* Queues it; false: it could not be, and cudaGetLastError() says why. */
SIMT_EXPORT cudaError_t simt_queue(const struct simt_grid *, const struct simt_kernel *,
                                   const void *args, cudaStream_t);

/* What the kernels of a module take that cudaLaunchKernelExC() launches: one struct, by
 * value. Called when the module is loaded (params.cpp.in). */
SIMT_EXPORT void simt_params(const void *here, const struct simt_kernel *);

/* ---- what Hopper does beside its threads, as the functions of epa2a/sm90.cuh ---- */

/* Pointers are a kernel's own; addresses of shared memory are those of PTX. */
enum { SIMT_SHARED_BASE = 1024 }; /* the address of the first byte of dynamic shared memory */
SIMT_EXPORT uint32_t simt_shared_address(const void *at);
SIMT_EXPORT void simt_mbar_init(uint64_t *bar, uint32_t arrivals);
SIMT_EXPORT void simt_mbar_init_done(void);
SIMT_EXPORT void simt_mbar_arrive(uint64_t *bar, uint32_t bytes); /* that it expects */
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
