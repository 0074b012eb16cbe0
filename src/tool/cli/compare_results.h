/* Compares two results. */
#ifndef COMPARE_RESULTS_H
#define COMPARE_RESULTS_H

#include "cli/cli.h"
#include "report/results.h"

/* Compares results by --threshold and --alpha; returns the exit code. different: also compare
 * different experiments. documents: write the comparison to --json and --markdown. */
int compare_results(const struct cli *, const struct results *a, const struct results *b,
                    bool different, bool documents);

/* Checks that the only runs of `a` and `b` can be compared; prints their differences to `notes`, which
 * are errors without `different`. */
enum epa_status compare_check(bool different, FILE *notes, const struct results *a,
                              const struct results *b, struct epa_error *);

#endif
