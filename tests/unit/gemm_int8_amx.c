/* Builds the INT8 kernel of AMX on emulated tiles for gemm_int8.c, so that the test runs on CPUs without
 * AMX. */
#include "amx_tiles.h"

#define kernels_gemm_int8_amx emulated_gemm_int8_amx
#include "kernels/gemm_int8_amx.c"
