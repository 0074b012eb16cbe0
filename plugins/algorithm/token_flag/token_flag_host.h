/* token_flag on hosts: create the algorithm. */
#ifndef TOKEN_FLAG_HOST_H
#define TOKEN_FLAG_HOST_H

#include "token_flag_layout.h"

enum epa_status tf_host_create(const struct epa_algorithm_params *, const struct tf_layout *,
                               struct epa_algorithm **out, struct epa_error *);

#endif
