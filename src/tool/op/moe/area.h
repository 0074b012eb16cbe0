/* Growable host buffers. */
#ifndef OP_MOE_AREA_H
#define OP_MOE_AREA_H

#include <stdint.h>

#include "op/moe/moe_state.h"

/* Grows the area to at least `bytes`. */
enum epa_status op_moe_area(struct area *, const char *what, uint64_t bytes, struct epa_error *err);

#endif
