/* Predicts worlds from costs and traffic. */
#ifndef PREDICT_WORLD_H
#define PREDICT_WORLD_H

#include <stdint.h>

#include "cli/predict.h"
#include "report/predict.h"

/* Returns the number of threads of a rank on hosts; 0 on GPUs. */
double prediction_threads(const struct experiment *);
/* Computes the traffic of each phase, as means over iterations. */
void prediction_count(const struct experiment *, const struct op_source *,
                      struct op_load mean[OP_PHASES]);
/* Returns the terms of a phase's cost, without its measured time. */
struct predict_point prediction_point(const struct prediction *, const struct experiment *,
                                      const struct op_load *, uint32_t cores);
/* Plans the experiment of the file for another number of ranks. Returns NULL, or the reason of a
 * failure. */
const char *prediction_resize(struct prediction *, uint32_t ranks, struct experiment *out,
                              uint32_t *planned);
/* Fits the costs to all measured runs. */
void prediction_fit(struct prediction *);
/* Predicts all worlds and fills p->document. */
enum epa_status prediction_make(struct prediction *);

#endif
