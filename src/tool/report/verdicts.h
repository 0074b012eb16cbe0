/* Verdicts on the expectations of a result. */
#ifndef VERDICTS_H
#define VERDICTS_H

#include "base/json.h"
#include "base/text.h"
#include "report/result_parts.h"

/* Fills "expect" of a successful result, after all else is complete; after a missed expectation
 * also sets "status", "exit_code" and "error". */
void verdicts_make(json_t *result, const struct session *);

/* Adds "total median <= 120 us", the expectation, then `between`, then "131.4 us (+9.5 %)", or the
 * reason of a missing figure. */
void verdict_add(struct text *, const json_t *result, const json_t *verdict, const char *between);

#endif
