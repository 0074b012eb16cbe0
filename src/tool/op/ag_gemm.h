/* AllGather and GEMM as an operation. */
#ifndef OP_AG_GEMM_H
#define OP_AG_GEMM_H

#include "op/op.h"

/* Returns the maximum number of rows of one rank. */
uint32_t ag_gemm_max_rows(const struct problem_params *);

#endif
