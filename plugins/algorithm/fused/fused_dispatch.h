/* fused on hosts: routes, headers, rows, and the index of received rows. */
#ifndef FUSED_DISPATCH_H
#define FUSED_DISPATCH_H

#include "fused_state.h"

/* Computes the routes of all rows, and sends each rank its header. */
void fused_route(struct fused_host *);
void fused_send(struct fused_host *, uint32_t worker, uint32_t chunk);
void fused_index(struct fused_host *, uint32_t worker);
/* Lists the GEMM tasks of the index and resets their counters. */
void fused_list_gemms(struct fused_host *);

#endif
