/* Kernels of fused in FP8 for experts of about GEMM_ROWS rows: a block has up to GEMM_MORE further
 * rows, since a second tile for these would load all weights again. */
#include "fused_layer.cuh"
#include "fused_more.h"

extern "C" const void *fused_more_kernel(struct fused_kernel_kind k)
{
    return of_more(&k);
}
