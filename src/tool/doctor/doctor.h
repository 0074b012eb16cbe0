/* `epa2a doctor`: the hardware of this machine, the plugins that work on it, the rates of its
 * links, and problems with the command that fixes each. doctor_json.h writes the results as JSON;
 * tests/cli/doctor.py checks the shape of the document. */
#ifndef DOCTOR_H
#define DOCTOR_H

#include <stdio.h>

#include <epa2a/status.h>

#include "doctor/machine.h"

/* Results of an examination; its texts are in the arena of the caller. */
struct doctor {
    struct machine machine;
    struct examined *plugin; /* [n_plugins], by kind */
    uint32_t n_plugins;
    struct findings found;
    bool runs; /* ranks of this host can use transport shm */
};

/* Describes the path of GPU data to other nodes over a transport, if nvlink's between_nodes names
 * it: direct or staged, and the reason. Returns false if the transport does not reach other nodes,
 * or not alone. */
struct epa_transport_plugin;
bool doctor_gpu_data(const struct epa_transport_plugin *, char *out, size_t room);

/* Examines the machine; missing or broken plugins are findings, not failures. `quick`: links are
 * not measured. *shm: reason why ranks of this host cannot use transport shm; status EPA_OK: they
 * can. */
enum epa_status doctor_examine(const char *const *plugin_path, bool quick, struct arena *,
                               struct doctor *out, struct epa_error *shm, struct epa_error *err);

void doctor_print(FILE *, const struct doctor *);

#endif
