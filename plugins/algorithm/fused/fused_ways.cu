/* Kernels of fused with the switches of struct fused_ways. They have their own file so that the
 * kernels for the defaults have no registers, branches or instructions for the switches, and so
 * that the files compile in parallel. */
#include "fused_layer.cuh"
#include "fused_ways.h"

extern "C" const void *fused_ways_kernel(struct fused_kernel_kind k)
{
    return of_kind<true>(&k);
}
