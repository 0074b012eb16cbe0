/* A result as a table for people and as JSON. */
#ifndef REPORT_H
#define REPORT_H

#include <stdio.h>

#include "base/text.h"
#include "report/result.h"

/* The table; for VERB_VERIFY the lines that say what was compared. Data only: no warnings.
 * Lines that begin with '#' explain, the others are rows. */
void report_table(FILE *, const struct result *);

enum { REPORT_SCHEMA = 1 }; /* "schema" of the JSON; share/epa2a-result.schema.json */

/* report_json.c: adds a result as JSON, behind a comma where `out` has one already. */
enum epa_status report_json_add(struct text *out, const struct result *, struct epa_error *);

#endif
