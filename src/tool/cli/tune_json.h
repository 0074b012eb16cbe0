/* Documents of searches for --json. */
#ifndef TUNE_JSON_H
#define TUNE_JSON_H

#include "base/json.h"
#include "cli/tune_tasks.h"

json_t *tune_json(const struct tune *);
json_t *tune_tasks_json(const struct tune_tasks *, const char *from, bool interrupted);

/* Adds a name as a JSON string, which YAML reads, too. */
void tune_json_name(const char *name, struct text *out);

#endif
