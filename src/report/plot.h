/* Charts of results, drawn by gnuplot: as text, SVG or PNG. */
#ifndef PLOT_H
#define PLOT_H

#include "base/text.h"
#include "report/results.h"

enum plot_kind {
    PLOT_AUTO,         /* by what the results hold */
    PLOT_TOKENS,       /* latency against tokens, a line for each algorithm and transport */
    PLOT_DISTRIBUTION, /* of samples: a histogram of one run, ECDFs of several */
    PLOT_SKEW,         /* medians of ranks against each other */
    PLOT_STAGES,       /* medians of stages on top of each other, with the limit */
};

enum plot_form { PLOT_TEXT, PLOT_SVG, PLOT_PNG };

struct plot_wish {
    enum plot_kind kind;
    enum plot_form form;
    struct results_wish which;
};

/* The script that makes gnuplot draw to its standard output. Text of results comes from
 * elsewhere: nothing of it can be a command there. */
enum epa_status plot_script(struct results *, const struct plot_wish *, struct text *out,
                            struct epa_error *err);

/* The same of a sweep of `epa2a predict` (report/predict.h): its times against ranks. */
enum epa_status plot_prediction(const json_t *document, enum plot_form, struct text *out,
                                struct epa_error *err);

#endif
