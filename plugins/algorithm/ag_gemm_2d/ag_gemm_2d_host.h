/* ag_gemm_2d on hosts: create the algorithm. */
#ifndef AG_GEMM_2D_HOST_H
#define AG_GEMM_2D_HOST_H

#include "ag_gemm_2d_layout.h"

enum epa_status ag2_host_create(const struct epa_algorithm_params *, const struct ag2_layout *,
                                struct epa_algorithm **out, struct epa_error *);

#endif
