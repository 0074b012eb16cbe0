/* Shapes of moes and layers for the public interface. */
#ifndef CALLER_SHAPE_H
#define CALLER_SHAPE_H

#include "caller/caller_state.h"

/* Fills the shape. `options` of the shape belongs to the caller. */
void caller_shape(const struct caller *, struct epa2a_moe_shape *);

/* Raises the maximum of received rows to the capacity of the layout of the interface. Operations that
 * hold or check these rows need this capacity. */
enum epa_status caller_raise_rows(struct caller *, struct epa_footprint *, struct epa_error *);

#endif
