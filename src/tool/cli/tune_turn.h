/* Turns of a search. */
#ifndef TUNE_TURN_H
#define TUNE_TURN_H

#include <stdbool.h>

#include "cli/tune.h"

/* Returns true if the ranks of all turns can be threads of one process. */
bool tune_can_be_threads(struct tune_search *);

/* Implements tune_search.take: reads the turn from the journal or takes it. */
int tune_take_turn(struct tune_search *, const struct tune_setting *, enum tune_verb,
                   struct tune_turn *out);

/* Ends the process of the turns, if it was started. */
void tune_end_process(struct tune_process *);

#endif
