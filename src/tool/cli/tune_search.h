/* The search. */
#ifndef TUNE_SEARCH_H
#define TUNE_SEARCH_H

#include <stdbool.h>

#include "cli/tune.h"

/* Returns true for the exit code of a command that a signal stopped. */
bool tune_is_interrupted(int code);
/* Searches from setting 0, the file's settings; sets t.best and t.is_better. Returns an exit
 * code. */
int tune_search(struct tune_search *);

#endif
