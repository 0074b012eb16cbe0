/* Measures the small worlds of a prediction. */
#ifndef PREDICT_MEASURE_H
#define PREDICT_MEASURE_H

#include <stdbool.h>

#include "base/json.h"
#include "cli/predict.h"

/* Returns true if the run has all tokens and choices of the file. */
bool prediction_is_whole(const struct prediction *, const struct measured *);
/* Returns the sum of the medians of a phase's stages. The name of such a stage begins with the name
 * of the phase: "dispatch_send". */
double prediction_phase_ns(const json_t *result, const char *phase);

/* Chooses the worlds to measure, and adds their runs. */
enum epa_status prediction_choose_worlds(struct prediction *);

/* Measures all runs in rounds; returns an exit code. */
int prediction_measure(struct prediction *);

#endif
