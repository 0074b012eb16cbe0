/* Set-up on the host that all algorithms on GPUs share: checks of the device, loading of kernels,
 * allocation of memory, and messages of failed CUDA calls. */
#ifndef DEVICE_SETUP_H
#define DEVICE_SETUP_H

#include <stdbool.h>

#include <epa2a/algorithm.h>
#include <epa2a/backend.h>

/* Checks the device and the transport for the algorithm `name` and makes the GPU current for the
 * thread. Errors: the GPU cannot run the kernels (`hopper`: another compute capability than 9.x;
 * else: below 9.0), the transport has no view for kernels, or the heap ends before the algorithm's
 * part of `heap_bytes`. */
enum epa_status device_check(const char *name, const struct epa_algorithm_params *,
                             uint64_t heap_bytes, bool hopper, struct epa_error *);

/* Returns true if the rank does not share its GPU. On a shared GPU, a kernel that is set up early
 * would occupy the room of the other ranks' kernels. */
bool device_is_whole(const struct epa_backend *);

/* A kernel, and the resources of each of its blocks. */
struct device_code {
    const void *kernel;
    const char *name; /* for messages */
    uint32_t threads, shared_bytes;
};

/* Loads the kernel. Lazy loading at the first launch may wait for running kernels, and these may
 * wait for the new kernel. *blocks: maximum number of resident blocks per multiprocessor, at least
 * 1. */
enum epa_status device_load_kernel(const char *name, const struct epa_backend *,
                                   const struct device_code *, uint32_t *blocks,
                                   struct epa_error *);

/* Returns the maximum number of blocks of a kernel that waits for other ranks. `per`: resident
 * blocks per multiprocessor. A rank's own GPU has up to two per multiprocessor. A rank that shares
 * its GPU has one block for each multiprocessor that it may occupy: with more, waiting blocks of
 * this rank could occupy all multiprocessors. A kernel of real experts of another rank needs a
 * multiprocessor without other blocks, and would never start. */
uint32_t device_waiting_blocks(const struct epa_backend *, uint32_t per);

/* Takes a part of the rank's private memory. The caller makes two rounds: the first, with memory
 * NULL, only counts the total. */
void *device_take(char *memory, uint64_t *at, uint64_t bytes);

/* Allocates zeroed memory, for backend->ops->free(). *out is also set if clearing fails. */
enum epa_status device_alloc_cleared(const char *name, struct epa_backend *, uint64_t bytes,
                                     void **out, struct epa_error *);

/* Reports why a function of the backend failed during set-up; EPA_OK passes through. */
enum epa_status device_explain_setup(const char *name, struct epa_backend *, enum epa_status,
                                     struct epa_error *);

/* Converts a cudaError_t: 0 is EPA_OK; others store a message in `last` for explain(). */
enum epa_status device_check_call(struct epa_error *last, const struct epa_backend *, int code,
                                  const char *what);

#endif
