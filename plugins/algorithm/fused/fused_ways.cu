/* The kernels of fused with the switches of struct fused_ways. They are in a file of their own so
 * that those with the defaults have no registers, branches or instructions for them, and so that
 * files compile side by side. */
#include "fused_layer.cuh"

extern "C" const void *fused_ways_kernel(struct fused_kernel_kind k)
{
    return of_kind<true>(&k);
}
