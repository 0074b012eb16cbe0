/* Checks of the name, the ABI and the descriptor of a plugin. Each error is phrased to follow
 * "... cannot be loaded: ". */
#ifndef PLUGIN_CHECK_H
#define PLUGIN_CHECK_H

#include <epa2a/algorithm.h>
#include <epa2a/backend.h>

enum { PLUGIN_KINDS = 4, PLUGIN_NAME_MAX = 32 };

/* Returns the kind in the spelling of file names and `epa2a list`: "transport". */
const char *plugin_kind_name(enum epa_plugin_kind);

/* Returns true for [a-z0-9_]{1,32}. */
bool plugin_name_ok(const char *name);

EPA_CHECKED enum epa_status plugin_check(const struct epa_plugin *, enum epa_plugin_kind,
                                         const char *name, struct epa_error *);

#endif
