/* The points of `matrix:` or `zip:`, a list of maps of keys to values, and the plan of a run. */
#ifndef EXPERIMENT_POINTS_H
#define EXPERIMENT_POINTS_H

#include "config/experiment.h"
#include "config/tree.h"

/* Calls the algorithm's plan() for a transport with `flags`; fills `footprint`. */
enum epa_status experiment_plan(struct experiment *, uint32_t flags, struct epa_error *);

/* The same for another number of ranks, which may exceed this machine. Between nodes, a transport
 * of one node is assumed to have puts. Beyond the ranks that the algorithm accepts, the plan is
 * extrapolated from *planned ranks. Other errors are added to diag, with EPA_ERR_CONFIG. *out lives
 * as long as `from`. */
enum epa_status experiment_resize(const struct experiment *from, uint32_t ranks,
                                  uint32_t ranks_per_node, struct diag *, struct experiment *out,
                                  uint32_t *planned);

/* Reads the points of `matrix` or `zip` at the top of the tree; an empty point without the key. Any
 * number above `most` counts as most + 1. Errors are added to the tree's diag. */
struct node *points_read(struct tree *, const char *of, uint32_t most);

/* Rejects keys of the whole file in overrides of a run. */
void points_check_overrides(struct tree *, const struct node *map, const char *of);

/* Returns a map of the keys in which two points differ. */
struct node *points_varying(struct arena *, const struct node *points);

#endif
