/* The verb verify. */
#ifndef RANK_VERIFY_H
#define RANK_VERIFY_H

#include "session/rank.h"

void rank_verify(struct rank *);

#endif
