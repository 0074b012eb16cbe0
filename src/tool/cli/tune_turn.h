/* Turns of a search. */
#ifndef TUNE_TURN_H
#define TUNE_TURN_H

#include "cli/tune.h"

/* Implements tune_search.take: runs the experiment of a setting. */
int tune_take_turn(struct tune_search *, const struct tune_setting *, enum tune_verb verb,
                   struct tune_turn *out);

#endif
