/* A thread for each channel. */
#include "calls_experts.h"

enum { THREADS = 128 };

static __global__ void output(epa_moe m, uint32_t rank, uint32_t local, uint16_t *y)
{
    uint32_t channel = blockIdx.x * THREADS + threadIdx.x;

    if (channel < m.hidden)
        calls_output(&m, rank, local, channel, y);
}

int kernel_output(struct epa_backend *b, const struct epa_moe *m, uint32_t rank, uint32_t local,
                  uint16_t *y)
{
    /* This program and each plugin have a CUDA runtime of their own, with a device of its own. */
    cudaError_t code = cudaSetDevice(b->device);

    if (code != cudaSuccess)
        return (int)code;
    output<<<(m->hidden + THREADS - 1) / THREADS, THREADS, 0, (cudaStream_t)b->stream>>>(*m, rank,
                                                                                         local, y);
    return (int)cudaGetLastError();
}
