/* Examples of options in help. */
#ifndef OPTION_EXAMPLE_H
#define OPTION_EXAMPLE_H

#include "base/text.h"
#include "config/experiment.h"

/* Adds the value of an option in an example: a valid value that is not the default. */
void option_example_add(const struct epa_option *, const void *defaults, struct text *out);

/* Adds the settings that an option depends on, such as "--set routing.kind=zipf " with a space at
 * the end. Most options depend on none. */
void option_example_add_needs(const struct section *, const struct epa_option *, struct text *out);

#endif
