/* Options as text: "transport=shm, backend.workers=4, lanes=[1, 2]".
 *
 * Commas or newlines separate options; empty ones are skipped. Spaces around names and values do
 * not count. [] encloses a list of numbers. A value in '...' or "..." may contain commas, newlines
 * and brackets; the quotes are not part of the value, and there are no escapes. */
#ifndef OPTIONS_FROM_TEXT_H
#define OPTIONS_FROM_TEXT_H

#include "options/option.h"

/* Limits; more is an error. */
enum { OPTIONS_TEXT_BYTES = 65536, OPTIONS_ENTRIES = 256 };

/* Owner of the strings, lists and structs that the functions below allocate; {0} is empty. The
 * memory stays valid until options_memory_free(). Default strings belong to the option table. */
struct options_memory {
    struct options_block *last;
};
/* Returns zeroed memory, aligned for any type; NULL: out of memory. */
void *options_memory_alloc(struct options_memory *, size_t bytes);
void options_memory_free(struct options_memory *);

/* One option of a text. */
struct options_entry {
    const char *key;
    struct option_value value; /* a scalar, or a list with `item` */
    const struct option_value *item;
    uint32_t n;
};

/* Divides a text into options. `source` names the text in messages: "options". EPA_ERR_CONFIG: the
 * syntax is wrong. */
enum epa_status options_split(const char *source, const char *text, struct options_memory *,
                              const struct options_entry **out, uint32_t *n, struct epa_error *);

/* Stores the value of an entry in the field of `option` in `out`. The message has the key, the
 * reason and the suggestion of option_set(), as the program reports them for a YAML value. */
enum epa_status options_store(const char *source, const struct epa_option *option,
                              const struct options_entry *, struct options_memory *, void *out,
                              struct epa_error *);

/* Copies the defaults of a table to `out` and stores the options of the text (NULL: none). Unknown
 * keys, keys that occur twice and wrong values are errors (EPA_ERR_CONFIG), which leave `out`
 * unchanged. */
enum epa_status options_from_text(const struct epa_options *, const char *text,
                                  struct options_memory *, void *out, struct epa_error *);

#endif
