/* Kernels of fused for rows that have one FP8 scale per 64 channels, with all switches: for weights
 * in FP8, with intermediates in groups of 64 or 128 channels, and for weights of 16 bits. */
#include "fused_layer.cuh"
#include "fused_rows64.h"

template <int TYPE, bool F16, int SUBS>
using fused_rows64_shape = fused_shape<TYPE, F16, true, SUBS, false, 0, 2>;

/* Returns the kernel for FP8 weights. */
template <int SUBS> static const void *of_groups(const struct fused_kernel_kind *k)
{
    return k->f16 ? of_input<fused_rows64_shape<EPA_DEV_E4M3, true, SUBS>>(k->input)
                  : of_input<fused_rows64_shape<EPA_DEV_E4M3, false, SUBS>>(k->input);
}

extern "C" const void *fused_rows64_kernel(struct fused_kernel_kind k)
{
    if (k.fp8)
        return k.groups64 ? of_groups<2>(&k) : of_groups<1>(&k);
    return k.f16 ? of_input<fused_rows64_shape<EPA_DEV_F16, true, 1>>(k.input)
                 : of_input<fused_rows64_shape<EPA_DEV_BF16, false, 1>>(k.input);
}
