/* Published waits of a rank. */
#ifndef RANK_WAITS_H
#define RANK_WAITS_H

#include "session/rank.h"

/* Long waits between rank_waits_begin() and rank_waits_end() appear in `shared`. */
void rank_waits_begin(struct rank *);
void rank_waits_end(struct rank *);

#endif
