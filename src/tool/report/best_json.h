/* The document of `epa2a best`. */
#ifndef REPORT_BEST_JSON_H
#define REPORT_BEST_JSON_H

#include "base/json.h"
#include "report/best.h"

json_t *best_json(const struct best *);

#endif
