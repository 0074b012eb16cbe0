/* The document of `epa2a predict --dry-run`. */
#ifndef PREDICT_JSON_H
#define PREDICT_JSON_H

#include "base/json.h"
#include "cli/predict_plan.h"

/* Returns the document; `epa2a help predicting` describes its keys. */
json_t *predict_json(const struct predict_plan *);

#endif
