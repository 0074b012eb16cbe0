/* Whether a plugin's descriptor can be worked with. */
#ifndef PLUGIN_CHECK_H
#define PLUGIN_CHECK_H

#include <epa2a/plugin.h>

enum { PLUGIN_KINDS = 4, PLUGIN_NAME_MAX = 32 };

/* What stands before the first pointer of struct epa_plugin. */
struct plugin_numbers {
    uint32_t abi, size, kind;
};

/* The name as file names and `epa2a list` have it: "transport". */
const char *plugin_kind_name(enum epa_plugin_kind);

/* [a-z0-9_]{1,32} */
bool plugin_name_ok(const char *name);

/* Each refuses with the reason, to stand behind "... cannot be loaded: ". The numbers
 * come out of a file that is not loaded; the descriptor is one in memory and is checked
 * whole. */
EPA_CHECKED enum epa_status plugin_check_numbers(const struct plugin_numbers *,
                                                 enum epa_plugin_kind, struct epa_error *);
EPA_CHECKED enum epa_status plugin_check(const struct epa_plugin *, enum epa_plugin_kind,
                                         const char *name, struct epa_error *);

#endif
