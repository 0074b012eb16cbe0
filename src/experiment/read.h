/* From the tree of one run to a checked experiment: typed, its plugins found, its plan made. */
#ifndef READ_H
#define READ_H

#include "config/experiment.h"
#include "config/tree.h"

/* Reads the tree, in the arena that the experiment will own: resolves plugins, and asks the
 * algorithm for its plan, so that what can be refused is. All errors go to the tree's diag; EPA_ERR_CONFIG if
 * there was any, EPA_ERR_UNSUPPORTED if all there is to say is that plugins cannot be loaded here.
 * flawed: something was told of the file already, so the algorithm is not asked. *absent is set
 * where all that is wrong is that plugins are not here. */
enum epa_status experiment_build(const char *file, struct tree *, bool flawed, struct registry *,
                                 struct epa_error *absent, struct experiment **out);
void experiment_destroy(struct experiment *);

/* check.c: what one value alone does not tell. Errors go to diag; without any, and unless it is
 * `flawed`, the plugins are asked too, and plan. */
void experiment_check(struct experiment *, bool flawed, struct diag *);

#endif
