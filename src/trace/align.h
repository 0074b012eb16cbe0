/* What the clocks of other hosts show more than that of rank 0. */
#ifndef TRACE_ALIGN_H
#define TRACE_ALIGN_H

#include <epa2a/world.h>

#include "trace/record.h"

/* Whether the clock of this rank is that of rank 0. */
bool align_is_near(const struct epa_world *);

/* Collective, where any rank is of another host than rank 0; takes some milliseconds. out is
 * known on return if all went well. */
enum epa_status align_clocks(struct epa_bootstrap *, struct record_clock *out);

#endif
