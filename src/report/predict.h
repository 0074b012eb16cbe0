/* Prediction of the time of more ranks. */
#ifndef REPORT_PREDICT_H
#define REPORT_PREDICT_H

#include "report/summary.h"

/* Fits costs in ns, at least 0, with the least sum of squared relative errors. With fewer distinct
 * points than terms, some costs are 0. */
void predict_fit(const struct predict_point *, uint32_t n, double cost[PREDICT_TERMS]);
double predict_local(const double cost[PREDICT_TERMS], const struct predict_point *);

/* Parses "50GB/s,2us", then optionally ",10ns" and ",node". */
enum epa_status predict_link_read(const char *text, struct predict_link *, struct epa_error *);

struct predict_time predict_time(double local_ns, const struct op_load *,
                                 const struct predict_link *, double signal_ns);

/* Prints a prediction. Keys: "file", "link" (null), "cores", "worlds" (the requested one, or the
 * worlds of a sweep), "scales", "measured", "error", "check" (null), "machine"; `epa2a help
 * predicting` describes them. The prediction comes first; then a table with a row for each stage,
 * or for each world of a sweep. */
void predict_text(FILE *, const json_t *);
void predict_markdown(struct text *, const json_t *);
void predict_csv(struct text *, const json_t *);

/* Returns the display name of a row of "worlds". */
const char *predict_bound_name(enum predict_bound);

#endif
