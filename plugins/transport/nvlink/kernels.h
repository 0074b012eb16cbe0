/* The kernels of the nvlink transport, and what they share with who queues them. */
#ifndef KERNELS_H
#define KERNELS_H

#include <cuda_runtime_api.h>
#include <epa2a/transport.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    LIMIT_BATCHES = 32,      /* of signals there and back, each timed as a whole */
    STORE_THREADS = 512,     /* of a block */
    STORE_CHUNK = 32 * 1024, /* bytes that a block stores at once */
};

/* Words of each rank behind the signals that the experiment asked for. */
enum own_word {
    OWN_MEET = 0, /* [rank]: it has come to where rates are measured */
    OWN_PING = OWN_MEET + EPA_DEVICE_RANKS, /* [rank]: latency */
    OWN_TIME = OWN_PING + EPA_DEVICE_RANKS, /* [LIMIT_BATCHES]: ns of each batch */
    OWN_FAULT = OWN_TIME + LIMIT_BATCHES, /* struct epa_fault of the kernels that measure */
    OWN_WORDS = OWN_FAULT + (sizeof(struct epa_fault) + 7) / 8,
};

/* What a kernel that measures waits for. */
enum limit_wait { LIMIT_MEET, LIMIT_PING };

/* `part` bytes, at `at` + its place among the senders * `part` of each peer's heap, again
 * and again for `passes`. */
struct store_run {
    uint64_t at, part;
    uint32_t passes, blocks;
};

struct ping_run {
    uint32_t peer, word;     /* word: the signal behind which OWN_PING's words are */
    uint32_t batches, turns; /* batches: LIMIT_BATCHES at most; turns of each */
    uint64_t base;           /* what is counted up from */
    uint64_t timeout_ns;
    uint64_t *times; /* NULL: expert outputs only */
};

/* Bring kernels to the thread's device. A kernel that is loaded when it is first launched
 * may have to wait for those that run there, which may wait for it. */
cudaError_t nvlink_load_signal(void);
cudaError_t nvlink_load_peak(void);

/* Each queues one kernel. */
cudaError_t nvlink_queue_signal(cudaStream_t, uint64_t *word, uint64_t value, bool add);
cudaError_t nvlink_queue_meet(cudaStream_t, const struct epa_device_view *, uint32_t word,
                              uint64_t epoch, uint64_t timeout_ns);
cudaError_t nvlink_queue_store(cudaStream_t, const struct epa_device_view *,
                               const struct store_run *);
cudaError_t nvlink_queue_ping(cudaStream_t, const struct epa_device_view *,
                              const struct ping_run *);

#ifdef __cplusplus
}
#endif
#endif
