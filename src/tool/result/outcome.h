/* The end of a run: its status and its error. */
#ifndef OUTCOME_H
#define OUTCOME_H

#include "result/result.h"

struct arena;

/* Returns the message of a failed run: of the caller, otherwise of the first rank that failed by
 * itself. */
const char *result_message(const struct result *, const struct session *, struct arena *);
/* Returns the word of "status". */
const char *result_outcome(const struct result *);

#endif
