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
    const char *stage;       /* NULL: total, wall or latency */
    const char *const *only; /* globs of labels or ids; none: all runs */
    uint32_t n_only;
};

/* The script that makes gnuplot draw to its standard output. What stands in results comes from
 * elsewhere: nothing of it can be a command there. */
enum epa_status plot_script(const struct results *, uint32_t n, const struct plot_wish *,
                            struct text *out, struct epa_error *err);

#endif
