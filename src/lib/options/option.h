/* Tables of options (epa2a/plugin.h): look-up, description, and the setter of one value. The
 * functions allocate no memory. */
#ifndef OPTIONS_OPTION_H
#define OPTIONS_OPTION_H

#include <epa2a/plugin.h>

#include "options/value.h"

const struct epa_option *option_find(const struct epa_options *, const char *name);

/* ---- description ---- */

/* Returns true for types without a native notation in YAML and JSON: strings, choices, sizes,
 * durations. */
bool option_is_text(const struct epa_option *);
/* Returns true for a whole number, alone or in a list, a size or a duration. */
bool option_is_number(const struct epa_option *);
/* Returns true if a real number has bounds. */
bool option_is_bounded(const struct epa_option *);

/* Returns "a whole number". */
const char *option_type(const struct epa_option *);
/* Returns "ns, us, ms or s"; NULL: numbers of that type have no unit. */
const char *option_unit(const struct epa_option *);
/* Returns the largest value of a number. */
uint64_t option_greatest(const struct epa_option *);
/* Writes a number in the notation of the option. Returns buf. */
char *option_number_text(const struct epa_option *, uint64_t value, char *buf, size_t room);
/* Writes ", 1 to 32" with before = ", ", or "" without a bound. Returns buf. */
enum { OPTION_RANGE_ROOM = 160 };
char *option_range(const struct epa_option *, const char *before, char *buf, size_t room);

/* Writes a suggestion for a key that the table lacks, and returns true for "did you mean 'hidden'?",
 * false for "it has: ...". `own` (or NULL) is another valid key. */
enum { OPTION_HINT_ROOM = 1024 };
bool option_unknown_hint(const struct epa_options *, const char *own, const char *key, char *buf,
                         size_t room);

/* ---- values ---- */

/* A value in the notation of the user, from YAML or from a text of options. */
enum option_form { OPTION_SCALAR, OPTION_LIST, OPTION_MAP };
struct option_value {
    enum option_form form;
    const char *text; /* scalar; otherwise unused */
    bool quoted;      /* scalar in quotes, so always a string */
    bool expanded;    /* quotes are allowed for any type, since the text comes from a variable */
};

/* Stores the value in its field of `out`. A string then points to the text, or is NULL for an
 * unquoted `null` or `~`. On false, `what` is the complete reason ("'4x' is not a whole number"),
 * and `hint` is never empty. Options with a list have the two functions below. */
bool option_set(const struct epa_option *, const struct option_value *, void *out,
                struct value_error *);

/* Check that the value is a list, and read one number of the list. */
bool option_check_list(const struct epa_option *, const struct option_value *,
                       struct value_error *);
bool option_set_item(const struct epa_option *, const struct option_value *item, uint32_t *out,
                     struct value_error *);

/* The same as option_set() for a bare text; `what` does not contain the text. */
bool option_parse(const struct epa_option *, const char *text, void *out, struct value_error *);

#endif
