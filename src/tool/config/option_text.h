/* Texts of option values, and the values that `epa2a tune` tries. */
#ifndef CONFIG_OPTION_TEXT_H
#define CONFIG_OPTION_TEXT_H

#include <stdbool.h>
#include <stdint.h>

#include <epa2a/plugin.h>

struct text;

/* Returns false for a default outside its own bounds, or a string that is NULL: the option is not
 * set. Such a value has no text and is left out where an experiment is shown. */
bool option_is_set(const struct epa_option *, const void *from);

/* Adds the value as YAML reads it, a string without quotes. */
void option_text(const struct epa_option *, const void *from, struct text *out);

/* Adds the i-th value that `epa2a tune` tries, from 0; returns false after the last value. */
bool option_candidate(const struct epa_option *, bool on_gpus, uint32_t i, struct text *out);

#endif
