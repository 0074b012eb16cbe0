/* Predicts worlds from costs and traffic. */
#ifndef PREDICT_WORLD_H
#define PREDICT_WORLD_H

#include <stdint.h>

#include "cli/predict.h"
#include "report/predict.h"

/* Plans the experiment of the file for another number of ranks. Returns NULL, or the reason of a
 * failure. */
const char *prediction_resize(struct prediction *, uint32_t ranks, struct experiment *out,
                              uint32_t *planned);
/* Fits the costs to all measured runs. */
void prediction_fit(struct prediction *);
/* Predicts all worlds and fills p->report. */
enum epa_status prediction_make(struct prediction *);

#endif
