/* Source locations of the values of an experiment, and of the option that an error names. */
#ifndef CONFIG_ORIGIN_H
#define CONFIG_ORIGIN_H

#include <epa2a/status.h>

#include "config/node.h"

struct experiment;

/* Returns the node that set `key` ("ranks", "moe.hidden"); NULL: the default applies. */
const struct node *origin_find(const struct experiment *, const char *key);

/* Returns the first key of an error that a file has set; NULL: none. */
const struct node *origin_in_file(const struct experiment *, const struct epa_error *);

/* Returns the location of an error that rejects the experiment: the first key of the error that the
 * user has set, otherwise the name of the plugin that the key belongs to, otherwise the algorithm's
 * name, otherwise the file. */
struct source_location origin_of_error(const struct experiment *, const struct epa_error *);

#endif
