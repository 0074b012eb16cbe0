/* A signal from the host, in the order of a stream. */
#include "kernels.h"

#include <epa2a/device.cuh>

/* One thread. The kernel starts once the copies before it in the stream are done; the fence
 * makes whoever sees the word see them, too. */
static __global__ void signal_word(uint64_t *word, uint64_t value, bool add)
{
    epa_dev_fence();
    if (add)
        atomicAdd_system((unsigned long long *)word, (unsigned long long)value);
    else
        epa_dev_store_relaxed(word, value);
}

cudaError_t nvlink_load_signal(void)
{
    cudaFuncAttributes attributes;

    return cudaFuncGetAttributes(&attributes, signal_word);
}

cudaError_t nvlink_queue_signal(cudaStream_t stream, uint64_t *word, uint64_t value,
                                bool add)
{
    signal_word<<<1, 1, 0, stream>>>(word, value, add);
    return cudaGetLastError();
}
