/* ll_v2 on hosts: combine. */
#ifndef LL_V2_COMBINE_H
#define LL_V2_COMBINE_H

#include "ll_v2_state.h"

enum epa_status ll_combine(struct epa_algorithm *, struct epa_problem *);

#endif
