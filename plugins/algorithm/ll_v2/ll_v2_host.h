/* ll_v2 on hosts: create the algorithm. */
#ifndef LL_V2_HOST_H
#define LL_V2_HOST_H

#include "ll_v2_layout.h"

enum epa_status ll_host_create(const struct epa_algorithm_params *, const struct ll_layout *,
                               struct epa_algorithm **out, struct epa_error *);

#endif
