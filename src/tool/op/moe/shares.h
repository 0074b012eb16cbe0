/* Entries of a view in order of rows. */
#ifndef OP_MOE_SHARES_H
#define OP_MOE_SHARES_H

#include "op/moe/moe_state.h"

/* Layout rank: sorts the entries of a view by row and expert into op->row_first and op->share. */
enum epa_status op_moe_sort_shares(struct op_moe *, const struct view *, struct epa_error *);

#endif
