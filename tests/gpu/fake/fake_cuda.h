/* A simulated CUDA in host memory, for tests of host code of plugins and, with ../simt, of their
 * kernels. It counts open resources and fails a chosen call. The state is exported as
 * FAKE_CUDA_SYMBOL, where programs that link with it find it. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define FAKE_CUDA_SYMBOL "fake_cuda"

/* Properties of each device: as on Hopper, except for the number of multiprocessors. */
enum {
    FAKE_MULTIPROCESSORS = 4, /* or FAKE_MULTIPROCESSORS of the environment */
    FAKE_THREADS = 2048,
    FAKE_SHARED_BYTES = 227 * 1024,  /* per block */
    FAKE_SHARED_OF_ALL = 228 * 1024, /* per multiprocessor */
    FAKE_SHARED_RESERVED = 1024,     /* part that CUDA reserves per block */
};

/* Returns the number of multiprocessors of each device. Ranks that share a device need one each. */
static inline uint32_t fake_multiprocessors(void)
{
    const char *other = getenv("FAKE_MULTIPROCESSORS");

    return other != NULL ? (uint32_t)atoi(other) : FAKE_MULTIPROCESSORS;
}

struct fake_cuda {
    int64_t live;         /* allocations, handles, mappings, streams and so on of this process */
    uint64_t calls;       /* number of fallible calls so far */
    uint64_t fail_at;     /* number of the call that fails; 0: none */
    int unreachable;      /* GPU that no other GPU reaches; -1: none */
    int no_descriptors;   /* not 0: GPUs cannot pass memory by descriptors */
    uint64_t allocations; /* number of allocations of memory so far */
    uint64_t deny_at;     /* number of the allocation without memory; 0: none */
};

/* For the implementation only. Each fallible call checks whether it has to fail; memory is backed
 * by files. */
extern __attribute__((visibility("default"))) struct fake_cuda fake_cuda;
bool fake_fails(void);
bool fake_denies(void); /* the same for an allocation of memory */
void fake_count(int by);
void fake_last_error(cudaError_t);
int fake_file(size_t bytes);

/* Defines a function without further effect. It may be the failing call, unless `failure` is
 * cudaSuccess. */
#define FAKE(name, parameters, failure, ...) \
    cudaError_t name parameters \
    { \
        __VA_ARGS__; \
        return fake_fails() ? failure : cudaSuccess; \
    }
#define FAKE_SAFE(name, parameters, ...) \
    cudaError_t name parameters \
    { \
        __VA_ARGS__; \
        return cudaSuccess; \
    }

/* Runs a function in stream order with a copy of `data`, whose size is a multiple of 16. Without a
 * stream it runs at once. */
cudaError_t fake_queue(cudaStream_t, void (*run)(void *data), const void *data, size_t bytes);
/* Returns the count of the rank that created the stream, or NULL. */
struct kernel_traffic *fake_traffic_of_stream(cudaStream_t);
/* Returns true if the recording of a graph, by this thread or in the global mode by another one, forbids
 * the thread to allocate and to query streams. */
bool fake_recording_forbids(void);
/* Extends the last queued work by `ns` in the events of its stream. */
void fake_takes(uint64_t ns);

#endif
