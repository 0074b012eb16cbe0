/* Kernels of combines of expert outputs that experts gave, of bf16 and f16. */
#include "ll_v2_combine.cuh"

#define KERNELS(mode, fp8, pushed) \
    { \
        {(const void *)combine<mode, LL_FROM_Y, false, fp8, pushed, false>, \
         (const void *)combine<mode, LL_FROM_Y, false, fp8, pushed, true>}, \
        { \
            (const void *)combine<mode, LL_FROM_Y, true, fp8, pushed, false>, NULL \
        } \
    }

const void *ll_combine_kernel(struct ll_combine_kind k)
{
    static const void *const pulls[LL_MODES][2][2] = {
        [LL_BY_RANK] = KERNELS(LL_BY_RANK, false, false),
        [LL_DEDUP] = {}, /* there is nothing to pull before it is added up */
        [LL_DIRECT] = KERNELS(LL_DIRECT, false, false)};
    static const void *const pushes[LL_MODES][2][2][2] = {
        {KERNELS(LL_BY_RANK, false, true), KERNELS(LL_BY_RANK, true, true)},
        {KERNELS(LL_DEDUP, false, true), KERNELS(LL_DEDUP, true, true)},
        {KERNELS(LL_DIRECT, false, true), KERNELS(LL_DIRECT, true, true)}};

    if (k.from != LL_FROM_Y)
        return ll_fused_kernel(k);
    return k.pushed ? pushes[k.mode][k.fp8][k.f16][k.profile]
                    : pulls[k.mode][k.f16][k.profile];
}
