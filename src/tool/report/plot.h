/* Charts of results and predictions. */
#ifndef REPORT_PLOT_H
#define REPORT_PLOT_H

#include "report/predict.h"
#include "report/results.h"

/* Writes the script with which gnuplot draws to its standard output. Text of results is untrusted:
 * none of it can act as a command. */
enum epa_status plot_script(struct results *, const struct plot_wish *, struct text *out,
                            struct epa_error *err);

/* The same for a sweep of `epa2a predict` on this machine: times over ranks. */
enum epa_status plot_prediction(const struct predict_report *, const struct machine_facts *,
                                enum plot_form, uint32_t columns, struct text *out,
                                struct epa_error *err);

#endif
