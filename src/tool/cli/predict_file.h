/* Reads the file of a prediction. */
#ifndef PREDICT_FILE_H
#define PREDICT_FILE_H

#include "cli/predict_plan.h"

/* Reads the file and replaces its bench section, so that runs are a closed loop with stages. */
enum epa_status predict_read_file(struct predict_plan *);

#endif
