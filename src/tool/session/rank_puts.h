/* Count of the bytes that an algorithm puts under verify. */
#ifndef RANK_PUTS_H
#define RANK_PUTS_H

#include "session/rank.h"

/* Fills session.puts, or session.uncounted if puts cannot be counted. */
void session_plan_puts(struct session *);

/* verify, after the last iteration: runs a few more iterations with puts only and compares the bytes
 * put to other ranks with the plan. Collective. */
void rank_count_puts(struct rank *);

#endif
