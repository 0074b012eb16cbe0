/* The JSON Schema of experiments. */
#ifndef CMD_SCHEMA_H
#define CMD_SCHEMA_H

#include <stdio.h>

#include "plugin/registry.h"

/* `entry` as registry_list() gives it. */
enum epa_status schema_print(const struct registry_entry *entry, uint32_t n, FILE *,
                             struct epa_error *);

#endif
