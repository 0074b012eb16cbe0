/* The input files of an experiment. */
#ifndef ROUTING_SOURCE_H
#define ROUTING_SOURCE_H

#include "op/moe/routing.h"
#include "op/op.h"

/* Reads the input files. EPA_ERR_CONFIG names path and line or offset. *out stays NULL without input
 * files. Requires 1 <= topk <= experts <= PROBLEM_EXPERTS_MAX. */
enum epa_status routing_open(const struct problem_params *, const struct op_advice *,
                             struct op_source **out, struct epa_error *);
void routing_close(struct op_source *);

#endif
