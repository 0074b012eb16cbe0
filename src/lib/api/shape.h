/* struct epa2a_moe_shape to the shape of struct epa_moe. */
#ifndef API_SHAPE_H
#define API_SHAPE_H

#include <epa2a.h>
#include <epa2a/problem.h>
#include <epa2a/status.h>

/* Checks the struct of the caller for a comm of `ranks` ranks, replaces zeros by defaults in `out`,
 * and sets the shape of `moe`; all other fields of `moe` become 0. */
enum epa_status shape_read(const struct epa2a_moe_shape *from, uint32_t ranks,
                           struct epa2a_moe_shape *out, struct epa_moe *moe, struct epa_error *err);

#endif
