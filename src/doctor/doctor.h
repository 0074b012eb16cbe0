/* `epa2a doctor`: the hardware of this machine, the plugins that work on it, the rates of its
 * links, and problems with the command that fixes each. Everything is one JSON document, which
 * --json writes; tests/cli/doctor.py has its shape. */
#ifndef DOCTOR_H
#define DOCTOR_H

#include <stdio.h>

#include <epa2a/status.h>

#include "base/json.h"

enum { DOCTOR_SCHEMA = 4 };

/* {"machine", "memory", "devices"}. `root` is put before /proc, /sys and /dev: "" except in tests.
 * Programs are looked for on PATH whatever it is. Nothing fails: what is not known is null. */
json_t *machine_collect(const char *root);

/* [{"name", "path", "version", "use"}] of libraries that multiply and are here. */
json_t *libraries_json(void);

/* How data of GPUs go to other nodes by a transport, where nvlink's between_nodes names it: direct
 * or staged, and why. False: it does not go to other nodes, or not by itself. */
struct epa_transport_plugin;
bool doctor_gpu_data(const struct epa_transport_plugin *, char *out, size_t room);

/* Adds "warnings" and "missing" to a document that has "plugins", too. `no_plugins`: which folders
 * hold none; NULL: there are some. */
void machine_judge(json_t *document, const char *no_plugins);

/* All of it; plugins that are not there as they should be are no failure. `quick`: links are not
 * measured. *shm: why ranks of this host cannot use transport shm; status EPA_OK: they can. */
enum epa_status doctor_examine(const char *const *plugin_path, bool quick, json_t **out,
                               struct epa_error *shm, struct epa_error *err);

void doctor_print(FILE *, const json_t *document);

#endif
