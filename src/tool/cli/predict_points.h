/* Points of a prediction: traffic, cost terms and measured times of a run. */
#ifndef PREDICT_POINTS_H
#define PREDICT_POINTS_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/predict.h"
#include "result/figures.h"
#include "report/predict.h"

/* Returns the number of threads of a rank on hosts; 0 on GPUs. */
double prediction_threads(const struct experiment *);
/* Computes the traffic of each phase, as means over iterations. */
void prediction_count(const struct experiment *, const struct op_source *,
                      struct op_load mean[OP_PHASES]);
/* Returns the terms of a phase's cost, without its measured time. */
struct predict_point prediction_point(const struct prediction *, const struct experiment *,
                                      const struct op_load *, uint32_t cores);
/* Returns true if the run has all tokens and choices of the file. */
bool prediction_is_whole(const struct prediction *, const struct measured *);
/* Returns the sum of the medians of a phase's stages. The name of such a stage begins with the name
 * of the phase: "dispatch_send". */
double prediction_phase_ns(const struct run_stage *, uint32_t n, const char *phase);

#endif
