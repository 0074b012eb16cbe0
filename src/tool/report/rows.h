/* Rows of a summary: the runs of a command, and their ends. */
#ifndef REPORT_ROWS_H
#define REPORT_ROWS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "session/session.h"

struct results_key;
struct run_stage;

/* `end` of a row */
#define REPORT_NOT_RUN "not run" /* the command ended before */
#define REPORT_OK "ok"
#define REPORT_FAILED "failed"
#define REPORT_SKIPPED "skipped" /* a requirement is missing here */

enum row_time { ROW_DISPATCH, ROW_EXPERTS, ROW_COMBINE, ROW_TOTAL, ROW_TIMES };
enum row_count { ROW_ITERATIONS, ROW_ELEMENTS, ROW_WRONG, ROW_COUNTS };

/* A run; in the arena of its caller. Unknown numbers are NaN. */
struct report_row {
    const char *who, *file, *label; /* who: the label, with the file if there are several */
    const char *id;                 /* NULL: unknown */
    const char *question;           /* equal for runs of the same problem; NULL: unknown */
    uint32_t repetition;            /* from 1; 0: the run is not repeated */
    bool baseline;                  /* ratios of its question use its total as denominator */
    const char *end, *status;
    const char *error;                  /* NULL: none */
    double time_ns[ROW_TIMES], mean_ns; /* medians of the result's table, and the mean total */
    double limit_ns, count[ROW_COUNTS];
    double samples, ci95, partial; /* partial: samples of a run that ended early */
    double elapsed_s;              /* NaN: the run did not start */
    const char *stop;              /* NULL: unknown */
    const struct run_stage *stage; /* [n_stages], without samples */
    uint32_t n_stages;
    const struct results_key *key; /* [n_keys] of the experiment */
    uint32_t n_keys;
    /* Of a row in a table. */
    double ratio, spread;
    const char *ended; /* NULL: ok */
};

/* All runs of a command, in written order, and their ends. */
struct report_batch {
    enum verb verb;
    const struct report_row *row; /* [n] */
    uint32_t n;
    const char *order;          /* "declared", "interleaved" or "shuffled" */
    uint64_t seed;              /* of that order; unused for declared */
    const char *const *context; /* "NAME=TEXT", see struct facts */
    uint32_t n_context;
};

/* Returns true if the runs took place in the written order. */
static inline bool report_is_declared(const struct report_batch *batch)
{
    return strcmp(batch->order, "declared") == 0;
}

#endif
