/* The runs of a command: those of all its files, which of them are to run, and in which
 * order. All processes of a launch come to the same. */
#ifndef RUNS_H
#define RUNS_H

#include "cli/cli.h"
#include "experiment/batch.h"
#include "config/diag.h"
#include "plugin/registry.h"

struct results_run;

struct run {
    const struct batch *batch;
    const struct experiment *x; /* NULL: a plugin is not here */
    char *who;                  /* what sentences begin with: "FILE" or "FILE: LABEL" */
    const char *name;           /* in the summary: `who`, or the label of the only file */
    const char *label;
    uint32_t repetition;              /* from 1 */
    bool baseline;                    /* as in struct batch_run */
    struct epa_process_id process_id; /* of this process in that run */
    struct epa_error refused;         /* it cannot run here; status EPA_OK: it can */
    const struct results_run *done;   /* what an earlier command measured: not to be run */
};

struct runs {
    struct batch **batch;
    uint32_t n_batches;
    struct run *run; /* [n], as written */
    uint32_t n;
    uint32_t *order; /* [n], indexes into `run` */
    enum runs_order how;
    uint64_t seed; /* of that order, unless it is declared */
};

/* Reads all files with `sets`. What is wrong with them goes to diag, anything else to err.
 * They are in order as declared. */
enum epa_status runs_read(const struct cli *, const char *const *sets, uint32_t n_sets,
                          struct registry *, struct diag *, struct runs *out, struct epa_error *);
void runs_finish(struct runs *);

/* interleaved: the first repetition of all in an order by the seed, then the second of all in
 * another, and so on, so that slow changes of a machine are in all alike; shuffled: all of
 * them in one order by the seed. The same on every machine. */
void runs_order(struct runs *, enum runs_order, uint64_t seed);
bool runs_repeat(const struct runs *);
/* "declared", "interleaved", "shuffled". */
const char *runs_order_name(enum runs_order);
bool runs_order_find(const char *name, enum runs_order *out);

/* Whether what the run needs may be missing without ending the command: it is one of
 * several of its file. */
bool run_is_of_several(const struct run *);

/* Standard output: a line for each run in its order, and why one cannot run. */
void runs_list(const struct runs *);

#endif
