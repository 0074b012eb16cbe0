/* JUnit XML. */
#ifndef JUNIT_H
#define JUNIT_H

#include "base/json.h"
#include "base/text.h"
#include "report/rows.h"

/* Adds a test case for each row, by file; `results` (a list) contain the durations of runs. */
void export_junit(struct text *, const struct report_batch *, const json_t *results);

#endif
