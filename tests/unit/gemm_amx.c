/* Builds the matrix kernels of AMX on emulated tiles for gemm.c, so that the test runs on CPUs
 * without AMX. */
#include "amx_tiles.h"

#define kernels_gemm_amx emulated_gemm_amx
#define AMX_L2_BYTES (72 << 10) /* so that small products have blocks of both kinds */
#include "kernels/gemm_amx.c"
