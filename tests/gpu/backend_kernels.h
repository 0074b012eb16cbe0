/* Kernels for the test of the backend, as functions that queue one. */
#ifndef BACKEND_KERNELS_H
#define BACKEND_KERNELS_H

#include <stdint.h>

struct epa_backend;

#ifdef __cplusplus
extern "C" {
#endif

/* Adds to *word, one thread. Returns a cudaError_t. */
int kernel_add(struct epa_backend *, uint32_t *word, uint32_t value);
/* Keeps the device busy. */
int kernel_busy(struct epa_backend *, uint64_t ns);
/* Waits for *signal to be `wanted`, as kernels of algorithms do; counts in *left, which
 * may be NULL, that it has left. */
int kernel_wait(struct epa_backend *, uint64_t *signal, uint64_t wanted, uint64_t timeout_ns,
                uint32_t *left);

#ifdef __cplusplus
}
#endif
#endif
