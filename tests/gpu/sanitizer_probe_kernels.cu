/* See sanitizer_probe.h. What these return nobody looks at: the tool is to speak. */
#include "sanitizer_probe.h"

#include <cuda_runtime.h>

enum { WORDS = 64 };

static __global__ void write_behind(int *words)
{
    words[WORDS + threadIdx.x] = 1;
}

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

static void run(void (*kernel)(int *))
{
    int *words = nullptr;

    if (cudaMalloc(&words, WORDS * sizeof(*words)) != cudaSuccess)
        return;
    kernel<<<1, WORDS>>>(words);
    (void)cudaDeviceSynchronize();
    (void)cudaFree(words);
}

void probe_memcheck(void)
{
    run(write_behind);
}

void probe_racecheck(void)
{
    run(write_at_once);
}

void probe_initcheck(void)
{
    run(read_unwritten);
}
