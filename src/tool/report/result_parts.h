/* Facts of results that do not depend on the run, and access to rows of their JSON. */
#ifndef REPORT_RESULT_PARTS_H
#define REPORT_RESULT_PARTS_H

#include "base/json.h"
#include "report/machine_facts.h"
#include "run/run.h"

enum { RESULT_SCHEMA = 1 }; /* "schema" of a document */

/* Facts of this process, common to all its results. */
struct facts {
    const struct machine_facts *machine;
    const char *const *context; /* "NAME=TEXT" notes of the user */
    uint32_t n_context;
};

/* Returns the last row: "total", "wall" or "latency". */
static inline const json_t *result_total(const json_t *result)
{
    const json_t *stages = json_object_get(result, "stages");

    return json_array_get(stages, json_array_size(stages) - 1);
}

#endif
