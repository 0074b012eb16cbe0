/* Verdicts on the expectations of a result. */
#ifndef VERDICTS_H
#define VERDICTS_H

#include "base/text.h"
#include "result/result.h"

/* Adds the verdicts of a successful run, after all else is complete; after a missed expectation also
 * sets the status, the exit code and the error. */
void verdicts_make(struct run_figures *, const struct session *);

/* Returns the name of the figure and the unit in JSON: "median" and "ns", "wrong" and "elements". */
const char *verdict_name(const struct run_verdict *);
const char *verdict_unit(const struct run_verdict *);

/* Adds "total median <= 120 us", the expectation, then `between`, then "131.4 us (+9.5 %)", or the
 * reason of a missing figure. */
void verdict_add(struct text *, const struct run_figures *, const struct run_verdict *,
                 const char *between);

#endif
