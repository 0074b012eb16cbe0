/* Helpers for tests that need GPUs. */
#ifndef GPU_H
#define GPU_H

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GPU_SKIP = 77 };

/* Returns the number of GPUs. With fewer than `wanted` it prints so and returns 0; the test program
 * then returns GPU_SKIP. A child makes the query, since a process that has used CUDA cannot fork
 * ranks. */
static inline int gpu_count(int wanted)
{
    int n = 0, code = 0;
    pid_t child = fork();

    if (child == 0) {
        cudaError_t status = cudaGetDeviceCount(&n);

        if (status != cudaSuccess || n < wanted)
            printf("SKIP: this test wants %d GPU%s, and there are %d%s%s\n", wanted,
                   wanted == 1 ? "" : "s", status == cudaSuccess ? n : 0,
                   status == cudaSuccess ? "" : ": ",
                   status == cudaSuccess ? "" : cudaGetErrorString(status));
        fflush(stdout);
        _exit(status == cudaSuccess ? n : 0);
    }
    if (child < 0 || waitpid(child, &code, 0) != child || !WIFEXITED(code))
        return 0;
    n = WEXITSTATUS(code);
    return n >= wanted ? n : 0;
}

/* Set-up for TEST_GROUP(). */
static inline int want_gpu(void **state)
{
    if (gpu_count(1) == 0)
        exit(GPU_SKIP);
    return 0;
}

#endif
