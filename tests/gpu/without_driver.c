/* Runs the command that its arguments are where there is no NVIDIA driver; elsewhere it is
 * skipped. */
#include <stdio.h>
#include <unistd.h>

#include "gpu.h"

int main(int argc, char **argv)
{
    int driver = 0;

    if (argc < 2)
        return 99;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver != 0) {
        printf("SKIP: this machine has an NVIDIA driver, for CUDA %d.%d\n", driver / 1000,
               driver % 1000 / 10);
        return GPU_SKIP;
    }
    execv(argv[1], argv + 1);
    perror(argv[1]);
    return 99;
}
