/* The kernels of the nvlink transport, and what they share with the host that queues them. */
#ifndef KERNELS_H
#define KERNELS_H

#include <cuda_runtime_api.h>
#include <epa2a/transport.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Words of each rank behind the signals that the experiment asked for: of device_peak(). */
enum own_word {
    OWN_MEET = 0,                           /* [rank]: it has arrived where stores begin */
    OWN_PING = OWN_MEET + EPA_DEVICE_RANKS, /* [rank]: turns */
    OWN_TIME = OWN_PING + EPA_DEVICE_RANKS, /* ns that the turns took */
    OWN_FAULT = OWN_TIME + 1,               /* struct epa_fault of these kernels */
    OWN_WORDS = OWN_FAULT + (sizeof(struct epa_fault) + 7) / 8,
};

struct ping_run {
    uint32_t peer, word, turns; /* word: the signal that is OWN_PING */
    uint64_t base;              /* value of the first signal; counts up from there */
    uint64_t timeout_ns;
    uint64_t *time; /* OWN_TIME */
};

/* Brings the kernels to the thread's device. A kernel that is loaded when it is first
 * launched may have to wait for those that run there, which may wait for it. */
cudaError_t nvlink_load_kernels(void);

/* Each queues one kernel. */
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
