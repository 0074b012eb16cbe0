/* The JSON Schema of an experiment. */
#ifndef EXPERIMENT_SCHEMA_H
#define EXPERIMENT_SCHEMA_H

#include <stdint.h>

#include "registry/registry.h"

/* Prints the JSON Schema of an experiment to standard output. `entry` is the list of
 * registry_list(). */
void experiment_schema_print(const struct registry_entry *entry, uint32_t n);

#endif
