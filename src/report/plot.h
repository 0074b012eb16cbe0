/* A chart of results, apart from how it is drawn: what is on the axes, and the points. It is
 * made once, and then drawn as text or by gnuplot; both show the same numbers. */
#ifndef PLOT_H
#define PLOT_H

#include <stdbool.h>

#include "base/text.h"
#include "report/plot_axis.h"
#include "report/results.h"

enum plot_kind {
    PLOT_AUTO,         /* by what the results hold */
    PLOT_TOKENS,       /* latency against tokens, a line for each algorithm and transport */
    PLOT_DISTRIBUTION, /* of samples: a histogram of one run, ECDFs of several */
    PLOT_SKEW,         /* medians of ranks against each other */
    PLOT_STAGES,       /* medians of stages on top of each other, with the limit */
    PLOT_KINDS,
};

struct plot_point {
    double x, y;
    double low, high; /* a whisker; NaN: none. Of a histogram: the edges of its bin */
};

struct plot_series {
    const char *name;
    struct plot_point *point; /* [n], x going up */
    uint32_t n;
};

struct plot_row {
    const char *name;
    double *value; /* [n_columns]; NaN: not known */
    double mark;   /* stages: the limit; skew: the median of its ranks; NaN: not known */
};

enum { PLOT_SERIES = 24, PLOT_ROWS = 64 }; /* more than that nobody can tell apart */

struct plot {
    struct arena *arena;                /* owns all that follows */
    enum plot_kind kind;                /* not AUTO */
    const char *title, *caption, *note; /* note: how to read it */
    struct plot_axis x, y;
    const char *unit; /* of sizes: "tokens" */
    /* Lines; or, if `bars`, the bins of a histogram, the last of which may be open. */
    struct plot_series *series;
    uint32_t n_series;
    bool bars, open;
    /* Rows: a stacked bar each (stages), or cells of a heat map (skew). */
    const char **column;
    uint32_t n_columns;
    struct plot_row *row;
    uint32_t n_rows;
};

struct plot_wish {
    enum plot_kind kind;
    const char *stage;       /* NULL: total, or wall where there is no total */
    const char *const *only; /* globs of labels or ids; none: all runs */
    uint32_t n_only;
};

/* "tokens", "distribution", ...; NULL behind the last. */
const char *plot_kind_name(enum plot_kind);

/* What was left out is told on standard error, what cannot be by `err`. */
enum epa_status plot_make(const struct results *, uint32_t n, const struct plot_wish *,
                          struct plot *out, struct epa_error *err);
void plot_free(struct plot *);

/* Draws with characters, 78 columns wide at least where names are short. */
void plot_text(const struct plot *, bool unicode, struct text *out);

/* The script that makes gnuplot draw it to its standard output. What stands in results comes
 * from elsewhere: nothing of it can be a command there. */
enum plot_form { PLOT_SVG, PLOT_PNG };
void plot_script(const struct plot *, enum plot_form, struct text *out);

/* Runs gnuplot (of PATH, without the user's settings) on a script; `out` gets what it
 * writes. EPA_ERR_UNSUPPORTED: there is none. */
enum epa_status gnuplot_run(const struct text *script, struct text *out, struct epa_error *err);

#endif
