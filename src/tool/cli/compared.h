/* The document of a comparison, with a row for each stage. */
#ifndef COMPARED_H
#define COMPARED_H

#include "base/stats.h"
#include "cli/cli.h"
#include "report/results.h"

/* Creates the document of a comparison of sides `a` and `b`, without rows and with null as the
 * number of rounds. */
json_t *compared_create(const char *a, const char *b, double threshold, double alpha);
/* Adds a row. Without `judged` the row has no verdict: it only explains another row. */
void compared_add(json_t *compared, const struct results_run *, const char *stage,
                  const struct comparison *, enum compare_verdict, bool judged);
bool compared_is_slower(const json_t *);
/* Writes the label of a run without the number of its repetition, or its name. Returns out. */
char *compared_name(const struct results_run *, char *out, size_t room);

/* Prints a comparison and writes it to the documents. Takes the reference to `compared`. */
enum epa_status compare_print(const struct cli *, json_t *compared, const char *taken,
                              bool documents, struct epa_error *);

#endif
