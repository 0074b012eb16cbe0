/* The kernels of the nvlink transport, and data that kernels and host share. */
#ifndef NVLINK_KERNELS_H
#define NVLINK_KERNELS_H

#include <cuda_runtime_api.h>
#include <epa2a/transport.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Words of device_peak() in each rank's region, behind the signals of the experiment. */
enum own_word {
    OWN_MEET = 0,                           /* [rank]: arrivals before a run of stores */
    OWN_PING = OWN_MEET + EPA_DEVICE_RANKS, /* [rank]: number of turns */
    OWN_TIME = OWN_PING + EPA_DEVICE_RANKS, /* duration of the turns in ns */
    OWN_FAULT = OWN_TIME + 1,               /* struct epa_fault of these kernels */
    OWN_WORDS = OWN_FAULT + (sizeof(struct epa_fault) + 7) / 8,
};

struct ping_run {
    uint32_t peer, word, turns; /* word: index of OWN_PING */
    uint64_t base;              /* value of the first signal; later signals count up */
    uint64_t timeout_ns;
    uint64_t *time; /* OWN_TIME */
};

/* Loads the kernels onto the thread's device. CUDA would otherwise load a kernel at its first launch,
 * and the load could wait for a running kernel that waits for the new one. */
cudaError_t nvlink_load_kernels(void);

/* Each function queues one kernel. */
cudaError_t nvlink_queue_signal(cudaStream_t, uint64_t *word, uint64_t value, bool add);
cudaError_t nvlink_queue_meet(cudaStream_t, const struct epa_device_view *, uint32_t word,
                              uint64_t epoch, uint64_t timeout_ns);
cudaError_t nvlink_queue_stores(cudaStream_t, const struct epa_device_view *, uint64_t part,
                                uint32_t passes, uint32_t blocks);
cudaError_t nvlink_queue_ping(cudaStream_t, const struct epa_device_view *,
                              const struct ping_run *);

#ifdef __cplusplus
}
#endif
#endif
