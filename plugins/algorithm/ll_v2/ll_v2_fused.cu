/* Kernels of combines that do the experts' work themselves, of the rows that came. */
#include "ll_v2_combine.cuh"

#define KERNELS(mode, pushed) \
    { \
        {(const void *)combine<mode, LL_FROM_ROWS, false, false, pushed, false>, \
         (const void *)combine<mode, LL_FROM_ROWS, true, false, pushed, false>}, \
        { \
            (const void *)combine<mode, LL_FROM_CODES, false, false, pushed, false>, \
                (const void *)combine<mode, LL_FROM_CODES, true, false, pushed, false> \
        } \
    }

const void *ll_fused_kernel(struct ll_combine_kind k)
{
    static const void *const pulls[2][2] = KERNELS(LL_DIRECT, false);
    static const void *const pushes[2][2] = KERNELS(LL_DIRECT, true);
    static const void *const sums[2][2] = KERNELS(LL_DEDUP, true);
    uint32_t codes = k.from == LL_FROM_CODES;

    if (k.profile || k.fp8 || k.mode == LL_BY_RANK)
        return NULL;
    return k.mode == LL_DEDUP ? sums[codes][k.f16]
           : k.pushed        ? pushes[codes][k.f16]
                             : pulls[codes][k.f16];
}
