/* The experiments of results, as YAML that can be read again. */
#ifndef RERUN_YAML_H
#define RERUN_YAML_H

#include "base/text.h"
#include "report/results.h"

/* One of them stands as it is; several, or one with a label, are `runs:` of those labels. */
enum epa_status rerun_yaml(const struct results *, struct text *out, struct epa_error *);

#endif
