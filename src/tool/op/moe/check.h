/* The check of dispatch against the oracle. */
#ifndef OP_MOE_CHECK_H
#define OP_MOE_CHECK_H

#include <stdint.h>

#include "op/moe/moe_state.h"

enum epa_status op_moe_check_dispatch(struct op_rank *, uint32_t slot, struct op_finding *);

/* After combine: checks that the views of dispatch still contain the values that op_moe_check_dispatch()
 * read. */
enum epa_status op_moe_check_views(struct op_rank *, uint32_t slot, struct op_finding *);

#endif
