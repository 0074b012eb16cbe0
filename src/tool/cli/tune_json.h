/* The document of a search for --json. */
#ifndef TUNE_JSON_H
#define TUNE_JSON_H

#include "base/json.h"
#include "cli/tune.h"

json_t *tune_json(const struct tune *);

#endif
