/* AllGather: each rank's rows to all ranks. */
#ifndef ALLGATHER_H
#define ALLGATHER_H

#include "op/op.h"

extern const struct operation op_allgather;

#endif
