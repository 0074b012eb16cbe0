/* The figures of a stage: one table for the JSON of a result and its schema, CSV, OpenMetrics, tables,
 * `best` and `compare`. A new figure is a member of struct stage_figures and a row of the table. */
#ifndef FIGURES_H
#define FIGURES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/status.h>

#include "base/stats.h"

/* Figures of a stage of a run. */
struct stage_figures {
    struct stats ns; /* of the slowest rank in each iteration */
    double in_pair;  /* ns inside a pair, median of the slowest rank; NaN: unknown */
    double goodput, wire, bottleneck; /* GB/s, bytes of the stage by the median; NaN: unknown */
    double peak_ns, of_peak;          /* least possible time; NaN: unknown, or above the median */
};

/* A row of the table: a stage, or whole iterations. */
struct run_stage {
    const char *name;
    double *sample; /* [n] ns of the slowest rank, in order */
    uint64_t n;
    struct stage_figures figures;
    bool beaten; /* the measured time is below the least possible time */
    uint32_t n_ranks;
    struct stats *rank; /* [n_ranks]; of a file: min, median, p95 and max alone */
};

enum figure_kind {
    FIGURE_COUNT,    /* uint64_t */
    FIGURE_NS,       /* double, written in whole nanoseconds */
    FIGURE_INTERVAL, /* two doubles in ns; null if the first is NaN */
    FIGURE_RATE,     /* double, GB/s */
    FIGURE_RATIO,    /* double */
};

/* Direction of a better figure; FIGURE_NEITHER: `best` and `compare` do not compare the figure. */
enum figure_better { FIGURE_NEITHER, FIGURE_SMALLER, FIGURE_LARGER };

/* Condition for a column in the table of bench. */
enum figure_needs {
    FIGURE_ALWAYS,
    FIGURE_LINKS, /* the limits of links are known */
    FIGURE_PAIRS, /* pairs of dispatch and combine were split */
    FIGURE_TAIL,  /* STATS_P999_LEAST samples */
};

struct figure {
    const char *path; /* in the JSON of a stage, "ns.median"; NULL ends the table */
    enum figure_kind kind;
    size_t offset; /* in struct stage_figures */
    enum figure_better better;
    enum figure_needs needs;
    const char *csv;     /* column of CSV behind the stage: "median_us"; NULL: none */
    const char *heading; /* in tables; NULL: not in tables of stages */
    const char *label;   /* OpenMetrics: quantile of a time, or name of a rate; NULL: no metric */
    const char *help;    /* description in the schema; NULL: none */
};
extern const struct figure figures[];

/* Returns the number of figures. */
uint32_t figures_count(void);
/* Returns the last part of the path: "median". */
const char *figure_name(const struct figure *);
/* Returns the figure of that name, or NULL. */
const struct figure *figure_find(const char *name);
/* Returns the figure that `best` and `compare` use by default: the median, from samples. */
const struct figure *figure_default(void);
/* Finds a figure that has a direction; NULL: figure_default(). */
enum epa_status figure_select(const char *name, const struct figure **out, struct epa_error *);
/* Returns the unit of the value in JSON: "ns", "GB/s" or "part" (1 is 100 %); "": a number. */
const char *figure_unit(const struct figure *);
/* Returns the value; NaN: unknown, or an interval. */
double figure_value(const struct figure *, const struct stage_figures *);
/* Rounds times to whole nanoseconds and other figures to nine digits, as in JSON. So figures that are
 * read from a document equal the figures of the run, and CSV has the same digits of both. */
void figures_round(struct stage_figures *);

#endif
