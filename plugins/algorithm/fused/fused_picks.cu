/* Kernels of fused for the defaults and up to FUSED_PICKED tokens of all ranks (fused_picks.cuh).
 * They are separate so that other kernels have no instructions for them. */
#include "fused_layer.cuh"
#include "fused_picks.h"

extern "C" const void *fused_picks_kernel(struct fused_kernel_kind k)
{
    return of_kind<false, true>(&k);
}
