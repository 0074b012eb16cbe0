/* The document of `epa2a status`. */
#ifndef STATUS_JSON_H
#define STATUS_JSON_H

#include "base/json.h"
#include "session/status.h"

json_t *status_json(const struct status *command, uint32_t n);

#endif
