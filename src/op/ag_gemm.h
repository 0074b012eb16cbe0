/* AllGather and GEMM: each rank's rows of A to all ranks, times the weights of each. */
#ifndef AG_GEMM_H
#define AG_GEMM_H

#include "op/op.h"

extern const struct operation op_ag_gemm;

#endif
