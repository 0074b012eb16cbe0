/* Documents of results. */
#ifndef SUMMARY_JSON_H
#define SUMMARY_JSON_H

#include "base/json.h"
#include "report/rows.h"

/* Returns the document of a list of results, whose reference is taken; with the rows as `summary`,
 * unless `batch` is NULL. */
json_t *report_document(json_t *results, const struct report_batch *);

#endif
