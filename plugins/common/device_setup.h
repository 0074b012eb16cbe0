/* What every algorithm on GPUs does once on the host, before its first call: it checks the
 * device, loads its kernels, takes memory. And how it says why a call of CUDA failed. */
#ifndef DEVICE_SETUP_H
#define DEVICE_SETUP_H

#include <stdbool.h>

#include <epa2a/algorithm.h>
#include <epa2a/backend.h>

/* Refuses, for the algorithm `name`: a GPU that its kernels are not for (of another compute
 * capability than 9.0 where `hopper`, else of an older one), a transport without a view for
 * kernels, a heap that ends before the algorithm's part of `heap_bytes` does. Makes the GPU the
 * thread's own. */
enum epa_status device_check(const char *name, const struct epa_algorithm_params *,
                             uint64_t heap_bytes, bool hopper, struct epa_error *);

/* Whether the rank has all of its GPU. Where ranks share one, a kernel that is set up early
 * would take the room of theirs. */
bool device_is_whole(const struct epa_backend *);

/* A kernel, and what each of its blocks takes. */
struct device_code {
    const void *kernel;
    const char *name; /* for what is said */
    uint32_t threads, shared_bytes;
};

/* Loads it: one that is loaded when it is first launched may have to wait for others that wait
 * for it. *blocks: how many are resident on a multiprocessor at once, 1 or more. */
enum epa_status device_load_kernel(const char *name, const struct epa_backend *,
                                   const struct device_code *, uint32_t *blocks,
                                   struct epa_error *);

/* The rank's own memory is taken part by part, in two rounds: the first, from NULL, only counts
 * what it comes to. */
void *device_take(char *memory, uint64_t *at, uint64_t bytes);

/* Memory of 0, for backend->ops->free(); *out is also set where clearing it fails. */
enum epa_status device_alloc_cleared(const char *name, struct epa_backend *, uint64_t bytes,
                                     void **out, struct epa_error *);

/* What a function of the backend failed with during set-up; EPA_OK: nothing. */
enum epa_status device_explain_setup(const char *name, struct epa_backend *, enum epa_status,
                                     struct epa_error *);

/* Keeps a sentence for who asks later; code: a cudaError_t, 0 is EPA_OK. */
enum epa_status device_check_call(struct epa_error *last, const struct epa_backend *, int code,
                                  const char *what);

#endif
