/* One option as JSON Schema: a part of cmd_schema.c. */
#ifndef SCHEMA_OPTIONS_H
#define SCHEMA_OPTIONS_H

#include <epa2a/option.h>
#include <jansson.h>

/* ${NAME}, which the environment fills in when the file is read; $${ is none. */
#define SCHEMA_VARIABLE "(^|[^$])[$]\\{"

/* What such a text is. */
json_t *schema_of_variable(void);

/* With its help, and its default in the struct `defaults`. */
json_t *schema_of_option(const struct epa_option *, const void *defaults);

#endif
