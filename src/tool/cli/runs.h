/* The runs of experiment files, and their order. */
#ifndef RUNS_H
#define RUNS_H

#include "cli/cli.h"
#include "config/tree.h"
#include "experiment/batch.h"
#include "registry/registry.h"
#include <stdbool.h>
#include <stdint.h>
#include "report/results.h"
#include "session/session.h"

struct run {
    const struct batch *batch;
    const struct experiment *x; /* NULL: a plugin is missing, or it has passed and is released */
    const char *id;             /* NULL: a plugin is missing */
    char *who;                  /* prefix of messages: "FILE" or "FILE: LABEL" */
    const char *name;           /* name in the summary: `who`; for a single file the label */
    const char *label;
    uint32_t repetition;    /* from 1 */
    bool baseline, variant; /* as in struct batch_run */
    bool skips; /* the command has several runs: a missing plugin or device skips this run */
    struct epa_process_id process_id; /* of this process in this run */
    struct epa_error refused;         /* reason why the run cannot start here; EPA_OK: it can */
    const struct results_run *done;   /* result of an earlier command: --resume skips the run */
};

struct runs {
    struct batch **batch;
    uint32_t n_batches;
    struct run *run; /* [n], in file order */
    uint32_t n;
    uint32_t *order; /* [n]: indexes into `run`, in execution order */
    enum runs_order how;
    uint64_t seed; /* seed of `order`; unused for RUNS_DECLARED */
};

enum { RUNS_FAILURE = 300 }; /* room for the reason why a text has no run */

/* Files to read, and the selected runs of them. */
struct runs_wish {
    const char *const *file; /* [n_files] */
    uint32_t n_files;
    const char *text; /* content of the only file; NULL: the file is read */
    const char **set; /* [n_sets] "key=value", in order */
    uint32_t n_sets;
    const char *const *only; /* [n_only] patterns of labels and ids; none: all runs */
    uint32_t n_only;
    uint32_t max_runs; /* maximum number of runs of one file */
    bool thorough;     /* also the variants of each run */
    /* As in struct batch_pick. */
    bool (*passes)(void *arg, const struct experiment *);
    void *passes_arg;
};

/* Returns the files, settings and selection of a command line. */
struct runs_wish runs_wish(const struct cli *);

/* Reads the runs of all files in declared order. Reports errors of files to diag, other errors to
 * err. */
enum epa_status runs_read(const struct runs_wish *, struct registry *, struct diag *,
                          struct runs *out, struct epa_error *);
/* Reads the runs and prints errors of files. With `command` (not NULL) more than one run is an
 * error, since that command accepts a single run. */
enum epa_status runs_read_files(const struct runs_wish *, struct registry *, const char *command,
                                struct runs *out, struct epa_error *);
/* Reads the only run of `text`, the content of the file of `cli`, with `set` instead of the settings
 * of the command line. `why` receives an error of the text. */
enum epa_status runs_read_text(const struct cli *, struct registry *, const char *text,
                               const char **set, uint32_t n_sets, struct runs *out,
                               char why[RUNS_FAILURE], struct epa_error *);
void runs_finish(struct runs *);

/* Sets the execution order, which depends on the seed alone. interleaved: the first repetition of
 * all runs in random order, then the second in another order, and so on, so that slow drift of the
 * machine affects all runs equally. shuffled: all runs in one random order. */
void runs_order(struct runs *, enum runs_order, uint64_t seed);
/* Returns true if a run has several repetitions. */
bool runs_repeat(const struct runs *);
/* Returns "declared", "interleaved" or "shuffled". */
const char *runs_order_name(enum runs_order);

/* Prints a line for each run to standard output, in execution order, with the reason if the run
 * cannot start. */
void runs_list(const struct runs *);

#endif
