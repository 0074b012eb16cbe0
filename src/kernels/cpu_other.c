/* The instruction sets where there is none but the portable one. */
#include "kernels/sets.h"

static bool always(void)
{
    return true;
}

void epa_store_drain(void)
{
    /* The portable set streams nothing. */
}

const struct kernels_isa kernels_isas[] = {
    {"scalar", always, NULL},
    {NULL, NULL, NULL},
};

const struct epa_kernels *const kernels_all[] = {&kernels_scalar, &kernels_scalar_f16, NULL};

const struct epa_gemm *const kernels_all_gemms[] = {
    &kernels_gemm_scalar[0],
    &kernels_gemm_scalar[1],
    &kernels_gemm_scalar[2],
    NULL,
};
