/* From nodes and texts to structs and back, by the tables of epa2a/plugin.h. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/plugin.h>

#include "config/tree.h"

/* ---- texts to values ---- */

/* Why a text is refused, phrased to follow it ("'4x' is not a whole number"), and what to write
 * instead; hint is "" if only the type can be suggested. */
struct value_error {
    char what[96], hint[256];
};

bool value_u64(const char *text, uint64_t *out, struct value_error *);
bool value_duration(const char *text, uint64_t *out, struct value_error *); /* ns of 10us */

/* A text that reads back as the same value. Returns buf. */
char *value_duration_text(char *buf, size_t room, uint64_t ns);

/* ---- options ---- */

struct text;

const struct epa_option *option_find(const struct epa_options *, const char *name);

/* Stores the value of `key` ("bench.warmup" in messages) in its field of `out`, or reports an
 * error to diag and marks `value` as refused. Strings and lists go to the arena. */
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

/* The i-th value that `epa2a tune` tries, from 0; false: there are no more. */
bool option_candidate(const struct epa_option *, bool on_gpus, uint32_t i, struct text *out);

/* True for what YAML and JSON have no notation of their own for: strings, choices, sizes,
 * durations. */
bool option_is_text(const struct epa_option *);

/* "a whole number"; ", 1 to 32" after `before` = ", ", or nothing where there is no bound. */
const char *option_type(const struct epa_option *);
void option_range(const struct epa_option *, const char *before, struct text *out);
/* "ns, us, ms or s"; NULL: numbers of that type are without. */
const char *option_unit(const struct epa_option *);

/* Of a real number: it has bounds. */
bool option_is_bounded(const struct epa_option *);

/* The largest that a number may be; one in that option's notation. */
uint64_t option_greatest(const struct epa_option *);
void option_number_text(const struct epa_option *, uint64_t value, struct text *out);

#endif
