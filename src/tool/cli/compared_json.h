/* The document of a comparison for --json. */
#ifndef COMPARED_JSON_H
#define COMPARED_JSON_H

#include "base/json.h"
#include "cli/compared.h"

json_t *compared_json(const struct compared *);

#endif
