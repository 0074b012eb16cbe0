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
    {"scalar", {&kernels_scalar, &kernels_scalar_f16}, kernels_gemm_scalar, 3, always, NULL},
    {.name = NULL},
};
