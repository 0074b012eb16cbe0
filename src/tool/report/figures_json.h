/* The figures of a stage in JSON: the only writer and the only reader. */
#ifndef FIGURES_JSON_H
#define FIGURES_JSON_H

#include "base/json.h"
#include "result/figures.h"

/* Adds all figures to the JSON of a stage. */
void figures_write(json_t *stage, const struct stage_figures *);
/* Reads all figures from the JSON of a stage. Missing figures are NaN or 0. */
void figures_read(const json_t *stage, struct stage_figures *out);

#endif
