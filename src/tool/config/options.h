/* Conversion of YAML nodes to the structs that the option tables describe. */
#ifndef CONFIG_OPTIONS_H
#define CONFIG_OPTIONS_H

#include "options/option.h"

struct arena;
struct diag;
struct node;

/* Returns true for "x-..." keys, which are notes of the user. */
bool option_is_note(const char *key);

/* Stores the value of `key` ("bench.warmup" in messages) in its field of `out`, or reports an error
 * to diag and marks `value` as refused. Strings and lists are allocated in the arena. */
void option_read(const struct epa_option *, const char *key, struct node *value, struct arena *,
                 struct diag *, void *out);

/* Fills `out` from the defaults, then from `map` (NULL: none), a section named `section`.
 * `own` (or NULL) is a key of the map that is not an option: the name of a plugin. */
void options_read(const struct epa_options *, const char *section, const char *own,
                  const struct node *map, struct arena *, struct diag *, void *out);

#endif
