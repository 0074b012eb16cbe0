/* allgather on hosts: create the algorithm. */
#ifndef ALLGATHER_HOST_H
#define ALLGATHER_HOST_H

#include "allgather_layout.h"

enum epa_status ag_host_create(const struct epa_algorithm_params *, const struct ag_layout *,
                               struct epa_algorithm **out, struct epa_error *);

#endif
