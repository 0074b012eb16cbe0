/* The kernels of fused with the defaults for up to FUSED_PICKED tokens of all ranks
 * (fused_picks.cuh), apart so that others have no instructions for them. */
#include "fused_layer.cuh"

extern "C" const void *fused_picks_kernel(struct fused_kernel_kind k)
{
    return of_kind<false, true>(&k);
}
