/* Builds the matrix kernels of AMX on emulated tiles for gemm.c, so that the test runs on CPUs
 * without AMX. */
#include "amx_tiles.h"

#define kernels_gemm_amx emulated_gemm_amx
#include "kernels/gemm_amx.c"
