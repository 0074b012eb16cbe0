/* See probe.h. Blocks have two warps. */
#include "probe.h"

#include <epa2a/ptx.cuh>

#include <cuda_runtime.h>

enum { THREADS = 64, ODD = 40 };

static __global__ void nothing(int *words)
{
    __syncthreads();
    words[threadIdx.x] = __shfl_sync(0xffffffffu, (int)threadIdx.x, 3);
}

static __global__ void lost_barrier(int *words)
{
    if (threadIdx.x == ODD)
        words[0] = __shfl_sync(0xffffffffu, 1, 0);
    else
        __syncthreads();
}

static __global__ void other_barrier(int *words)
{
    if (threadIdx.x < 32)
        words[0] = __syncthreads_and(1);
    else
        __syncthreads();
}

static __global__ void foreign_lane(int *words)
{
    if (threadIdx.x < 16)
        words[threadIdx.x] = __shfl_sync(0xffffu, 1, 20);
}

static __global__ void crooked_store(int *words)
{
    if (threadIdx.x == 0)
        epa_dev_store_pair((char *)words + 8, 1, 2);
}

static __global__ void behind_memory(int *words)
{
    words[THREADS + threadIdx.x] = 1;
}

static void run(void (*kernel)(int *))
{
    int *words = nullptr;

    if (cudaMalloc((void **)&words, THREADS * sizeof(*words)) != cudaSuccess)
        return;
    kernel<<<1, THREADS>>>(words);
    (void)cudaDeviceSynchronize();
    (void)cudaFree(words);
}

void probe_nothing(void)
{
    run(nothing);
}

void probe_lost_barrier(void)
{
    run(lost_barrier);
}

void probe_other_barrier(void)
{
    run(other_barrier);
}

void probe_foreign_lane(void)
{
    run(foreign_lane);
}

void probe_crooked_store(void)
{
    run(crooked_store);
}

void probe_behind_memory(void)
{
    run(behind_memory);
}
