/* Measures the small worlds of a prediction. */
#ifndef PREDICT_MEASURE_H
#define PREDICT_MEASURE_H

#include "cli/predict.h"

/* Chooses the worlds to measure, and adds their runs. */
enum epa_status prediction_choose_worlds(struct prediction *);

/* Measures all runs in rounds; returns an exit code. */
int prediction_measure(struct prediction *);

#endif
