/* The hardware of this machine, and findings about it. */
#ifndef DOCTOR_MACHINE_H
#define DOCTOR_MACHINE_H

#include "base/json.h"
#include "registry/registry.h"

/* Returns {"machine", "memory", "devices"}. `root` is the prefix of /proc, /sys and /dev: "" except
 * in tests. Programs are searched on PATH in any case. The function does not fail: unknown values
 * are null. */
json_t *machine_collect(const char *root);

/* Returns [{"name", "path", "version", "use"}] of the matrix libraries on this machine. */
json_t *libraries_json(void);

/* Adds "warnings" and "missing" to a document that also has "plugins", of the `n` entries of the
 * registry. `no_plugins`: folders without plugins; NULL: there are plugins. */
void machine_judge(json_t *document, const char *no_plugins, const struct registry_entry *,
                   uint32_t n);

#endif
