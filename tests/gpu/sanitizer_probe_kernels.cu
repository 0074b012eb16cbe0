/* Kernels for sanitizer_probe.c. Results of calls are ignored: the tool must report the faults. */
#include <cuda_runtime.h>

enum { WORDS = 64 };

static __global__ void write_behind(int *words)
{
    words[WORDS + threadIdx.x] = 1;
}

/* Two warps write one word of shared memory. */
static __global__ void write_at_once(int *words)
{
    __shared__ volatile int word;

    word = threadIdx.x;
    words[threadIdx.x] = word;
}

static __global__ void read_unwritten(int *words)
{
    words[threadIdx.x] += 1;
}

extern "C" void probe(const char *tool)
{
    int *words = nullptr;

    if (cudaMalloc(&words, WORDS * sizeof(*words)) != cudaSuccess)
        return;
    if (tool[0] == 'm')
        write_behind<<<1, WORDS>>>(words);
    else if (tool[0] == 'r')
        write_at_once<<<1, WORDS>>>(words);
    else
        read_unwritten<<<1, WORDS>>>(words);
    (void)cudaDeviceSynchronize();
    (void)cudaFree(words);
}
