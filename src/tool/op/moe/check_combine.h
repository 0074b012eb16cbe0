/* The check of combine against the oracle. */
#ifndef OP_MOE_CHECK_COMBINE_H
#define OP_MOE_CHECK_COMBINE_H

#include <stdint.h>

#include "op/moe/moe_state.h"

/* Checks the outputs of combine; a stage of kind WHOLE has the same outputs. */
enum epa_status op_moe_check_out(struct op_rank *, uint32_t slot, struct op_finding *);

#endif
