/* Kernels of fused for the defaults that record intervals of tiles for the profile. They are separate
 * so that other kernels keep their registers. */
#include "fused_layer.cuh"
#include "fused_profile.h"

extern "C" const void *fused_profile_kernel(struct fused_kernel_kind k)
{
    return k.picks  ? of_kind<false, true, true>(&k)
           : k.more ? of_more<true>(&k)
                    : of_kind<false, false, true>(&k);
}
