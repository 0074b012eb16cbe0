/* From the tree of one run to a checked experiment. */
#ifndef EXPERIMENT_READ_H
#define EXPERIMENT_READ_H

#include "config/experiment.h"
#include "config/tree.h"

/* Reads the tree in the arena that the experiment will own: resolves plugins, and calls the
 * algorithm's plan(), so that all errors are found early. All errors are added to the tree's diag.
 * Returns EPA_ERR_CONFIG after an error, EPA_ERR_UNSUPPORTED if the only errors are plugins that
 * cannot be loaded here. flawed: the file already has errors, so plan() is not called. Sets *absent
 * if the only errors are missing plugins. */
enum epa_status experiment_build(const char *file, struct tree *, bool flawed, struct registry *,
                                 struct epa_error *absent, struct experiment **out);

#endif
