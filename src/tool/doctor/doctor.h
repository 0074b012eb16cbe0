/* `epa2a doctor`: the hardware of this machine, the plugins that work on it, the rates of its
 * links, and problems with the command that fixes each. All results are one JSON document, which
 * --json writes; tests/cli/doctor.py checks its shape. */
#ifndef DOCTOR_H
#define DOCTOR_H

#include <stdio.h>

#include <epa2a/status.h>

#include "base/json.h"

enum { DOCTOR_SCHEMA = 4 };

/* Describes the path of GPU data to other nodes over a transport, if nvlink's between_nodes names
 * it: direct or staged, and the reason. Returns false if the transport does not reach other nodes,
 * or not alone. */
struct epa_transport_plugin;
bool doctor_gpu_data(const struct epa_transport_plugin *, char *out, size_t room);

/* Examines the machine; missing or broken plugins are findings, not failures. `quick`: links are
 * not measured. *shm: reason why ranks of this host cannot use transport shm; status EPA_OK: they
 * can. */
enum epa_status doctor_examine(const char *const *plugin_path, bool quick, json_t **out,
                               struct epa_error *shm, struct epa_error *err);

void doctor_print(FILE *, const json_t *document);

#endif
