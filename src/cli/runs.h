/* The runs of a command: those of all its files, which of them are to run, and in which
 * order. All processes of a launch come to the same. */
#ifndef RUNS_H
#define RUNS_H

#include "cli/cli.h"
#include "config/batch.h"
#include "config/diag.h"
#include "plugin/registry.h"

struct run {
    const struct batch *batch;
    const struct experiment *x; /* NULL: a plugin is not here */
    char *who;                  /* what sentences begin with: "FILE" or "FILE: LABEL" */
    const char *name;           /* in the summary: `who`, or the label of the only file */
    const char *label;
    struct epa_place place;   /* of this process in that run */
    struct epa_error refused; /* it cannot run here; status EPA_OK: it can */
};

struct runs {
    struct batch **batch;
    uint32_t n_batches;
    struct run *run; /* [n], as written */
    uint32_t n;
    uint32_t *order; /* [n], indexes into `run` */
};

/* Reads all files with `sets`. What is wrong with them goes to diag, anything else to err. */
enum epa_status runs_read(const struct cli *, const char *const *sets, uint32_t n_sets,
                          struct registry *, struct diag *, struct runs *out,
                          struct epa_error *);
void runs_finish(struct runs *);

/* Whether what the run needs may be missing without ending the command: it is one of
 * several of its file. */
bool run_is_of_several(const struct run *);

/* Standard output: a line for each run in its order, and why one cannot run. */
void runs_list(const struct runs *);

#endif
