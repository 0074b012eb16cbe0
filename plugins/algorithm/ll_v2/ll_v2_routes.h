/* ll_v2 on hosts: exchange of routes or counts, and assignment of places. */
#ifndef LL_V2_ROUTES_H
#define LL_V2_ROUTES_H

#include "ll_v2_state.h"

enum epa_status ll_exchange(struct ll_task *);
enum epa_status ll_give_places(struct ll_host *, struct ll_set *, const struct epa_moe *);

#endif
