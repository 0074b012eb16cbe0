/* Rows that `expect` names. */
#ifndef RANK_EXPECT_H
#define RANK_EXPECT_H

#include "session/rank.h"

/* Fails with EPA_ERR_CONFIG if `expect` names a row that the session does not have. */
void rank_expect_check(struct rank *);

#endif
