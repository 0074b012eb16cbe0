/* Views of delivered rows. */
#ifndef OP_MOE_VIEW_H
#define OP_MOE_VIEW_H

#include "op/moe/moe_state.h"

/* Makes the view of a slot after dispatch. Checks that pointers are set and ranges are within the limits
 * of plan(); EPA_ERR_MISMATCH names a violation. The view is valid until the next call. */
enum epa_status op_moe_view(struct op_moe *, const struct op_slot *, struct view *out,
                            struct epa_error *err);

#endif
