/* Counts the traffic of worlds from the routing of all their ranks. */
#ifndef PREDICT_WORLDS_H
#define PREDICT_WORLDS_H

#include "cli/predict_plan.h"

/* Returns the number of threads of a rank on hosts; 0 on GPUs. */
double predict_threads(const struct experiment *);
/* Computes the traffic of each phase, as means over iterations. */
void predict_count(const struct experiment *, const struct op_source *,
                   struct op_load mean[OP_PHASES]);
/* Counts the requested worlds, and worlds of twice as many ranks each, from the ranks of one node up to a world
 * that is not possible or takes long to count: the prediction finds among them the size up to which the
 * experiment scales. Fails if the smallest requested world is not possible. */
enum epa_status predict_count_worlds(struct predict_plan *);

#endif
