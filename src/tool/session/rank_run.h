/* The verb run. */
#ifndef RANK_RUN_H
#define RANK_RUN_H

#include "session/rank.h"

void rank_run(struct rank *);

#endif
