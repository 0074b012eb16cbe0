/* The figures of a stage: one table for the JSON of a result, CSV, OpenMetrics and the table of bench. The
 * schema of results describes the same names. */
#ifndef FIGURES_H
#define FIGURES_H

#include <stddef.h>

#include "base/json.h"
#include "base/stats.h"

/* Figures of a stage of a run. */
struct stage_figures {
    struct stats ns;                  /* of the slowest rank in each iteration */
    double goodput, wire, bottleneck; /* GB/s, bytes of the stage by the median; NaN: unknown */
    double peak_ns, of_peak;          /* least possible time; NaN: unknown, or above the median */
};

enum figure_kind {
    FIGURE_COUNT,    /* uint64_t */
    FIGURE_NS,       /* double, written in whole nanoseconds */
    FIGURE_INTERVAL, /* two doubles in ns; null if the first is NaN */
    FIGURE_RATE,     /* double, GB/s */
    FIGURE_RATIO,    /* double */
};

struct figure {
    const char *path; /* in the JSON of a stage, "ns.median"; NULL ends the table */
    enum figure_kind kind;
    size_t offset;       /* in struct stage_figures */
    const char *csv;     /* column of CSV behind the stage: "median_us"; NULL: none */
    const char *heading; /* in the table of bench; NULL: not in the table */
    const char *label;   /* OpenMetrics: quantile of a time, or name of a rate; NULL: no metric */
};
extern const struct figure figures[];

/* Adds all figures to the JSON of a stage. */
void figures_write(json_t *stage, const struct stage_figures *);

#endif
