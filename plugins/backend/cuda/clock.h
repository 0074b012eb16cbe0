/* The kernel of cuda_clock(). */
#ifndef EPA2A_BACKEND_CUDA_CLOCK_H
#define EPA2A_BACKEND_CUDA_CLOCK_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CLOCK_WAITS_NS 2000000000u /* the kernel, for the host's next question, at most */

/* In pinned memory that both see. */
struct clock_words {
    uint64_t asked;    /* release: the host; a round */
    uint64_t time_ns;  /* of the device, in round `answered` */
    uint64_t answered; /* release: the kernel */
};

/* Queues the kernel that answers so many rounds. `words`: their address on the device. */
cudaError_t clock_queue(struct clock_words *words, uint32_t rounds, cudaStream_t);

#ifdef __cplusplus
}
#endif
#endif
