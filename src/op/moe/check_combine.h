/* The check of combine against the oracle. */
#ifndef OP_MOE_CHECK_COMBINE_H
#define OP_MOE_CHECK_COMBINE_H

#include <stdint.h>

#include "op/moe/check.h"

/* Checks the outputs of combine; a stage of kind WHOLE has the same outputs. */
enum epa_status op_moe_check_out(struct op_rank *, uint32_t slot, struct op_finding *);

/* Allocates the arrays of check_combine.c from the pool; and bytes of its other memory. */
void check_combine_lay_out(const struct experiment *, struct moe_check *);
uint64_t check_combine_bytes(const struct experiment *);

#endif
