/* Documents of `epa2a doctor`. */
#ifndef DOCTOR_JSON_H
#define DOCTOR_JSON_H

#include "base/json.h"
#include "doctor/doctor.h"

/* Returns the whole document. */
json_t *doctor_json(const struct doctor *);

/* Returns {"machine", "memory", "devices"}. */
json_t *hardware_json(const struct machine *);

/* Returns [{"name", "path", "version", "use"}] of matrix libraries. */
json_t *libraries_json(const struct library_found *, uint32_t n);

#endif
