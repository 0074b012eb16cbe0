/* ll_v1 on hosts: create the algorithm. */
#ifndef LL_V1_HOST_H
#define LL_V1_HOST_H

#include "ll_v1_layout.h"

enum epa_status v1_host_create(const struct epa_algorithm_params *, const struct v1_layout *,
                               struct epa_algorithm **out, struct epa_error *);

#endif
