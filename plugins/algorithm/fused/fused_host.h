/* fused on hosts: create the algorithm. */
#ifndef FUSED_HOST_H
#define FUSED_HOST_H

#include "fused_layout.h"

/* Returns the bytes beside the heap that fused_host_create() allocates for `workers` workers. */
uint64_t fused_host_bytes(const struct fused_layout *, const struct fused_config *,
                          uint32_t workers);
enum epa_status fused_host_create(const struct epa_algorithm_params *, const struct fused_layout *,
                                  struct epa_algorithm **out, struct epa_error *);

#endif
