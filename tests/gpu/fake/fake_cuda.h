/* A made-up CUDA in host memory, for tests of what plugins do around it and, with ../simt, of
 * their kernels: what is open, and which call fails. It exports that as FAKE_CUDA_SYMBOL;
 * whatever is linked with it finds it there. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_CUDA_SYMBOL "fake_cuda"

/* Of each device: as on Hopper, but for the number of multiprocessors. */
enum {
    FAKE_MULTIPROCESSORS = 4,
    FAKE_THREADS = 2048,
    FAKE_SHARED_BYTES = 227 * 1024,  /* of a block */
    FAKE_SHARED_OF_ALL = 228 * 1024, /* of a multiprocessor, */
    FAKE_SHARED_RESERVED = 1024,     /* of which CUDA has so much for each block */
};

struct fake_cuda {
    int64_t live;       /* allocations, handles, mappings, streams, ... of this process */
    uint64_t calls;     /* that could fail, so far */
    uint64_t fail_at;   /* the call that fails; 0: none */
    int unreachable;    /* the GPU that no other reaches; -1: none */
    int no_descriptors; /* not 0: GPUs cannot pass memory by descriptors */
};

/* For the fake alone. A call that can fail asks whether it is the one; files are its
 * memory. */
extern __attribute__((visibility("default"))) struct fake_cuda fake_cuda;
bool fake_fails(void);
void fake_count(int by);
void fake_last_error(cudaError_t);
int fake_file(size_t bytes);

/* A function that does no more than that: it may be the one that fails, or always works. */
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

/* In the order of a stream, with a copy of `data`, which is a multiple of 16. Of NULL: at
 * once. */
cudaError_t fake_queue(cudaStream_t, void (*run)(void *data), const void *data, size_t bytes);
/* What was queued seems to take `ns` longer, by events of its stream. */
void fake_takes(uint64_t ns);

#endif
