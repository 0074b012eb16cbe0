/* From nodes and texts to structs and back, by the tables of epa2a/option.h. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <epa2a/option.h>

#include "config/node.h"
#include "config/value.h"

struct text;

const struct epa_option *option_find(const struct epa_options *, const char *name);

/* What `key` ("bench.warmup" in messages) holds goes to its field in `out`, or an error to
 * diag and `value` is marked as refused. Strings and lists are put into the arena. */
void option_read(const struct epa_option *, const char *key, struct node *value, struct arena *,
                 struct diag *, void *out);

/* Fills `out` from the defaults, then from `map` (NULL: none), a section named `section`.
 * `own` (or NULL) is a key of the map that is not an option: the name of a plugin. */
void options_read(const struct epa_options *, const char *section, const char *own,
                  const struct node *map, struct arena *, struct diag *, void *out);

/* The same of one value as text, which a string points to; lists are none. False: why not. */
bool option_parse(const struct epa_option *, const char *text, void *out, struct value_error *);

/* "x-..." keys are the user's notes. */
bool option_is_note(const char *key);

/* A default out of its own bounds, or a string that is NULL, means: not set. Such a value
 * has no text and is left out where an experiment is shown. */
bool option_is_set(const struct epa_option *, const void *from);

/* The value as YAML reads it back, a string without quotes. */
void option_text(const struct epa_option *, const void *from, struct text *out);

/* True for what YAML and JSON have no notation of their own for: strings, choices, sizes,
 * durations. */
bool option_is_text(const struct epa_option *);

/* "a whole number"; ", 1 to 32" after `before` = ", ", or nothing where there is no bound. */
const char *option_type(const struct epa_option *);
void option_range(const struct epa_option *, const char *before, struct text *out);
/* "ns, us, ms or s"; NULL: numbers of that type are without. */
const char *option_unit(const struct epa_option *);

/* The largest that a number may be; one in that option's notation. */
uint64_t option_greatest(const struct epa_option *);
void option_number_text(const struct epa_option *, uint64_t value, struct text *out);

#endif
