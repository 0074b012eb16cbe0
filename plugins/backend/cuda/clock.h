/* The kernel that replies with the time of the device. */
#ifndef CUDA_CLOCK_H
#define CUDA_CLOCK_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include <epa2a/transport.h>

/* Time limits of the host for a reply and of the kernel for the next request. Earlier kernels of the
 * stream, other processes on the GPU and a loaded machine delay replies. The host ends the kernel
 * when its own limit expires, so the limit of the kernel serves only if the host ends. */
#define CLOCK_REPLY_NS 20000000000u
#define CLOCK_REQUEST_NS (2u * CLOCK_REPLY_NS)

#ifdef __cplusplus
extern "C" {
#endif

/* In pinned memory that host and kernel share. */
struct clock_words {
    uint64_t asked; /* round that the host requests, or UINT64_MAX; the host stores with release */
    uint64_t time_ns;  /* device time in round `answered` */
    uint64_t answered; /* round of the reply; the kernel stores with release */
};

/* Queues the kernel that replies in `rounds` rounds. `words` is a device address; the view has no
 * heap and no signals. */
cudaError_t clock_queue(const struct epa_device_view *, struct clock_words *words, uint32_t rounds,
                        cudaStream_t);

#ifdef __cplusplus
}
#endif

#endif
