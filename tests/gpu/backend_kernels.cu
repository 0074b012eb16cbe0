/* One block each, of one thread: what matters is when they run and when they end. */
#include "backend_kernels.h"

#include <epa2a/device.cuh>

static __global__ void add(uint32_t *word, uint32_t value)
{
    atomicAdd(word, value);
}

static __global__ void busy(uint64_t ns)
{
    uint64_t start = epa_dev_time();

    while (epa_dev_time() - start < ns) {
    }
}

static __global__ void wait_for(epa_device_view v, uint64_t wanted, uint64_t timeout_ns,
                                uint32_t *left)
{
    epa_dev_wait_for(v, 0, wanted, timeout_ns, epa_dev_wait{1, 2, 3, 4});
    if (left != nullptr)
        atomicAdd(left, 1u);
}

int kernel_add(struct epa_backend *b, uint32_t *word, uint32_t value)
{
    add<<<1, 1, 0, (cudaStream_t)b->stream>>>(word, value);
    return (int)cudaGetLastError();
}

int kernel_busy(struct epa_backend *b, uint64_t ns)
{
    busy<<<1, 1, 0, (cudaStream_t)b->stream>>>(ns);
    return (int)cudaGetLastError();
}

int kernel_wait(struct epa_backend *b, uint64_t *signal, uint64_t wanted, uint64_t timeout_ns,
                uint32_t *left)
{
    epa_device_view v = {};

    v.size = 1;
    v.peer_signal[0] = signal;
    v.stop = b->stop;
    v.fault = b->device_fault;
    wait_for<<<1, 1, 0, (cudaStream_t)b->stream>>>(v, wanted, timeout_ns, left);
    return (int)cudaGetLastError();
}
