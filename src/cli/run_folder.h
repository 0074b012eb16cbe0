/* --out-dir: a folder with all that a batch leaves behind, and what --resume needs. One process at
 * a time writes there; `epa2a help results` says what is in it. */
#ifndef RUN_FOLDER_H
#define RUN_FOLDER_H

#include <sys/stat.h>

#include "base/file.h"
#include "cli/cli.h"
#include "config/diag.h"
#include "experiment/batch.h"
#include "plugin/registry.h"
#include "report/report.h"
#include "report/results.h"
#include "report/summary.h"

/* ---- runs (runs.c) ---- */

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

/* ---- what they leave ---- */

/* ---- documents ---- */

enum document_kind {
    DOCUMENT_JSON,
    DOCUMENT_MARKDOWN,
    DOCUMENT_CSV,
    DOCUMENT_STREAM, /* --json-lines */
    DOCUMENT_FOLDER, /* the first of those in --out-dir */
    DOCUMENT_FOLDER_CSV = DOCUMENT_FOLDER,
    DOCUMENT_FOLDER_MARKDOWN,
    DOCUMENTS
};

struct documents {
    const struct cli *cli;
    const struct runs *runs;
    enum verb verb;
    bool ours;              /* this process reports */
    struct report_row *row; /* [n], as written */
    uint32_t n;
    char *path[DOCUMENTS];    /* NULL: not asked for */
    struct text one;          /* JSON of the last result */
    struct text results;      /* see report_json_add() */
    struct warnings warnings; /* of runs of a batch, printed after its table */
    struct file_stream stream;
    bool is_ours[DOCUMENTS];  /* written by this command, so to be written over */
    bool reported[DOCUMENTS]; /* that it cannot be written */
    uint64_t written_ns, cost_ns;
};

/* Whether the files can be written. */
enum epa_status documents_check(const struct cli *, struct epa_error *);

/* With a row for each run; `runs` must outlive it. */
enum epa_status documents_init(struct documents *, const struct cli *, enum verb,
                               const struct runs *, bool ours, struct epa_error *);
/* Begins what is written while runs go on. */
enum epa_status documents_open(struct documents *, struct epa_error *);
void documents_finish(struct documents *);

/* Adds a result, and leaves it in `one`; take() adds one that is JSON already. */
enum epa_status documents_add(struct documents *, const struct result *, struct epa_error *);
enum epa_status documents_take(struct documents *, const struct text *result, struct epa_error *);

/* One of them is standard output, where nothing else may be then. */
bool documents_have_stdout(const struct documents *);

/* Writes all; before the last time only if it was long enough ago that writing stays a small
 * part of the whole. Says what is wrong, and is false then. */
bool documents_write(struct documents *, bool last);

/* ---- the folder ---- */

struct run_folder {
    const struct cli *cli;
    struct runs *runs;
    char *path, *file;   /* the folder, its results; NULL: none is asked for, and nothing is done */
    struct results old;  /* --resume: what was found */
    struct stat was;     /* of `file`; st_ino 0: it was not there */
    struct text pending; /* lines that are not on disk yet */
    int lock_fd, fd;
    bool reported; /* that writing failed */
};

/* Looks at the folder: what cannot be written to, or holds something else, is refused. With
 * --resume runs that are done there are marked so, in the order that they had. Writes nothing; for
 * all processes. */
enum epa_status run_folder_look(struct run_folder *, const struct cli *, const char *verb,
                                struct runs *, struct epa_error *);
/* The order of the batch that was found; false: there is none. */
bool run_folder_order(const struct run_folder *, enum runs_order *order, uint64_t *seed);

/* Makes the folder and keeps others out. Rows and results of runs that are done go into the
 * documents. */
enum epa_status run_folder_open(struct run_folder *, struct documents *, const struct facts *,
                                struct epa_error *);

/* After run i, whose result is in d->one (empty: none). What cannot be written is reported, tried
 * again with the next, and false. */
bool run_folder_add(struct run_folder *, const struct documents *d, uint32_t i, bool last);
void run_folder_finish(struct run_folder *);

#endif
