/* Chooses the runs that a prediction measures. */
#ifndef PREDICT_RUNS_H
#define PREDICT_RUNS_H

#include "cli/predict_plan.h"

/* Adds the runs of small worlds to the plan, and with --check the run of the predicted world. */
enum epa_status predict_choose_runs(struct predict_plan *);

#endif
