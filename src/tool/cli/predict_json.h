/* The document of `epa2a predict`. */
#ifndef PREDICT_JSON_H
#define PREDICT_JSON_H

#include "base/json.h"
#include "cli/predict.h"

/* Returns the document; `epa2a help predicting` describes its keys. */
json_t *predict_json(const struct prediction *);
/* Adds the document as text. */
void predict_json_text(const struct prediction *, struct text *out);

#endif
