/* Conversion of nodes and texts to structs and back, by the tables of epa2a/plugin.h. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/plugin.h>

struct arena;
struct diag;
struct node;

/* ---- texts to values ---- */

/* Reason why a text is rejected, phrased to follow it ("'4x' is not a whole number"), and a
 * suggestion; hint is "" if only the type can be suggested. */
struct value_error {
    char what[96], hint[256];
};

bool value_u64(const char *text, uint64_t *out, struct value_error *);
bool value_duration(const char *text, uint64_t *out, struct value_error *); /* ns of "10us" */

/* Writes a text that reads back as the same value. Returns buf. */
char *value_duration_text(char *buf, size_t room, uint64_t ns);
/* The same for a real number: the shortest text. */
char *value_real_text(char *buf, size_t room, double value);

/* ---- options ---- */

struct text;

const struct epa_option *option_find(const struct epa_options *, const char *name);

/* Stores the value of `key` ("bench.warmup" in messages) in its field of `out`, or reports an error
 * to diag and marks `value` as refused. Strings and lists are allocated in the arena. */
void option_read(const struct epa_option *, const char *key, struct node *value, struct arena *,
                 struct diag *, void *out);

/* Fills `out` from the defaults, then from `map` (NULL: none), a section named `section`.
 * `own` (or NULL) is a key of the map that is not an option: the name of a plugin. */
void options_read(const struct epa_options *, const char *section, const char *own,
                  const struct node *map, struct arena *, struct diag *, void *out);

/* Parses one value from text; a string points to the text; lists are not supported. On false
 * `error` has the reason. */
bool option_parse(const struct epa_option *, const char *text, void *out, struct value_error *);

/* Returns true for "x-..." keys, which are notes of the user. */
bool option_is_note(const char *key);

/* Returns true for types without a native notation in YAML and JSON: strings, choices, sizes,
 * durations. */
bool option_is_text(const struct epa_option *);

/* Returns "a whole number"; option_range() ", 1 to 32" after `before` = ", ", or "" without a
 * bound. */
const char *option_type(const struct epa_option *);
void option_range(const struct epa_option *, const char *before, struct text *out);
/* Returns "ns, us, ms or s"; NULL: numbers of that type have no unit. */
const char *option_unit(const struct epa_option *);

/* Returns true for a whole number, alone or in a list, a size or a duration. */
bool option_is_number(const struct epa_option *);

/* Returns true if a real number has bounds. */
bool option_is_bounded(const struct epa_option *);

/* Returns the largest value of a number, and formats a number in the notation of the option. */
uint64_t option_greatest(const struct epa_option *);
void option_number_text(const struct epa_option *, uint64_t value, struct text *out);

#endif
