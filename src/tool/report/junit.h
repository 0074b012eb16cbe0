/* JUnit XML. */
#ifndef JUNIT_H
#define JUNIT_H

#include "base/text.h"
#include "report/rows.h"

/* Adds a test case for each row, by file. */
void export_junit(struct text *, const struct report_batch *);

#endif
