/* Kernels of fused that quantise the intermediate in groups of 64 channels, with all switches. */
#include "fused_layer.cuh"
#include "fused_groups.h"

extern "C" const void *fused_groups_kernel(struct fused_kernel_kind k)
{
    return k.f16 ? of_input<fused_shape<EPA_DEV_E4M3, true, true, 2>>(k.input)
                 : of_input<fused_shape<EPA_DEV_E4M3, false, true, 2>>(k.input);
}
