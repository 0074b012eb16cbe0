/* The matrix kernels of AMX, on emulated tiles, for gemm.c: no CPU at hand need have them. */
#include "amx_tiles.h"

#define kernels_gemm_amx emulated_gemm_amx
#include "kernels/gemm_amx.c"
