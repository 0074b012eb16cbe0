/* Expert outputs between dispatch and combine; synthetic experts on hosts. */
#ifndef OP_MOE_EXPERTS_H
#define OP_MOE_EXPERTS_H

#include <stdint.h>

#include "op/moe/moe_state.h"

/* Computes the expert outputs y of `slot` (in_place or separate) from recv. No effect if the algorithm
 * computes the experts. */
enum epa_status op_moe_experts(struct op_rank *, uint32_t slot, struct epa_error *);

#endif
