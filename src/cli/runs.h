/* The runs that files ask for, and their order. */
#ifndef RUNS_H
#define RUNS_H

#include <signal.h>

#include "cli/cli.h"
#include "config/tree.h"
#include "experiment/batch.h"
#include "plugin/registry.h"
#include <sys/stat.h>
#include <stdbool.h>
#include <stdint.h>
#include "report/results.h"
#include "base/file.h"
#include "report/summary.h"
#include "base/text.h"
#include "session/session.h"

struct documents;
struct facts;

struct run {
    const struct batch *batch;
    const struct experiment *x; /* NULL: a plugin is not here */
    char *who;                  /* what sentences begin with: "FILE" or "FILE: LABEL" */
    const char *name;           /* in the summary: `who`, or the label of the only file */
    const char *label;
    uint32_t repetition;    /* from 1 */
    bool baseline, variant; /* as in struct batch_run */
    bool skips;    /* the command has several runs: a missing plugin or device skips this one */
    char *failure; /* as in struct cli */
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

/* Reads all files, in declared order. Errors of files go to diag, all others to err. */
enum epa_status runs_read(const struct cli *, struct registry *, struct diag *, struct runs *out,
                          struct epa_error *);
/* The same where errors of files are printed. `command` takes one run alone; NULL: any. */
enum epa_status runs_read_files(const struct cli *, struct registry *, const char *command,
                                struct runs *out, struct epa_error *);
/* The only run of a text, by settings that replace those of the command line; `why` says what is
 * wrong with it. */
enum epa_status runs_read_text(const struct cli *, struct registry *, const char *text,
                               const char **set, uint32_t n_sets, struct runs *out,
                               char why[CLI_FAILURE], struct epa_error *);
void runs_finish(struct runs *);

/* interleaved: the first repetition of all runs in random order, then the second in another
 * order, and so on, so that slow drift of the machine affects all equally; shuffled: all in one
 * random order. The order depends on the seed alone. */
void runs_order(struct runs *, enum runs_order, uint64_t seed);
bool runs_repeat(const struct runs *);
/* "declared", "interleaved", "shuffled". */
const char *runs_order_name(enum runs_order);

/* Standard output: a line for each run in its order, and why one cannot run. */
void runs_list(const struct runs *);

/* --out-dir: a folder with all that a batch leaves behind, and what --resume needs. One process at
 * a time writes there; `epa2a help results` says what is in it. */

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

/* With --resume marks the runs that the folder has results of, in the order of its batch. All
 * processes of a job call this function, and it writes nothing. */
enum epa_status run_folder_read(struct run_folder *, const struct cli *, const char *verb,
                                struct runs *, struct epa_error *);
/* Refuses a folder that cannot be written or that holds other files. Only the process that reports
 * calls this function: a rank that starts later finds the files of the same job there. */
enum epa_status run_folder_check(struct run_folder *, struct epa_error *);
/* The order of the batch that was found; false: there is none. */
bool run_folder_order(const struct run_folder *, enum runs_order *order, uint64_t *seed);

/* Makes the folder and keeps others out. Rows and results of runs that are done go into the
 * documents. */
enum epa_status run_folder_open(struct run_folder *, struct documents *, const struct facts *,
                                struct epa_error *);

/* After run i, whose result is d->one (NULL: none). What cannot be written is reported, tried
 * again with the next, and false. */
bool run_folder_add(struct run_folder *, const struct documents *d, uint32_t i, bool last);
void run_folder_finish(struct run_folder *);

/* Refuses a folder in which a document of --out-dir could not be written. */
enum epa_status folder_documents_check(const char *folder, struct epa_error *);

/* Makes a folder, and keeps other processes out of it until the caller closes *fd. */
enum epa_status run_folder_lock(const char *folder, int *fd, struct epa_error *);

/* The documents of --json, --markdown, --csv, --json-lines, --html, --junit, --openmetrics, and
 * the tables of --out-dir: rewritten while runs go on and at their end. */

enum document_kind {
    DOCUMENT_JSON,
    DOCUMENT_MARKDOWN,
    DOCUMENT_CSV,
    DOCUMENT_STREAM, /* --json-lines */
    DOCUMENT_JUNIT,
    DOCUMENT_METRICS,
    DOCUMENT_HTML,
    DOCUMENT_OUT,    /* --out of other commands */
    DOCUMENT_FOLDER, /* the first of those in --out-dir */
    DOCUMENT_FOLDER_CSV = DOCUMENT_FOLDER,
    DOCUMENT_FOLDER_MARKDOWN,
    DOCUMENTS
};

struct documents {
    const struct cli *cli;
    const struct runs *runs;
    enum verb verb;
    bool ours;             /* this process reports */
    json_t *rows;          /* of runs, as written */
    char *path[DOCUMENTS]; /* NULL: not asked for */
    /* The file of a document that could not get its name, and the message about it; or NULL. */
    char *kept[DOCUMENTS], *why[DOCUMENTS];
    json_t *one;              /* the last result; NULL: it has none */
    json_t *results;          /* all of them, where a document wants them */
    struct warnings warnings; /* of runs of a batch, printed after its table */
    struct file_stream stream;
    bool is_ours[DOCUMENTS];  /* written by this command, so to be written over */
    bool reported[DOCUMENTS]; /* that it cannot be written */
    uint64_t written_ns, cost_ns;
};

/* With a row for each run; `runs` must outlive it. */
void documents_init(struct documents *, const struct cli *, enum verb, const struct runs *,
                    bool ours);
/* Begins what is written while runs go on. */
enum epa_status documents_open(struct documents *, struct epa_error *);
void documents_finish(struct documents *);

/* A document of one result, on a line. */
void documents_line(struct text *out, json_t *result, const struct report_batch *);

/* Adds a result, which it takes, and leaves it in `one`. */
void documents_add(struct documents *, json_t *result);

/* Standard output has lost its reader, and no other document is asked for. */
bool documents_are_unread(const struct documents *);

/* Writes all; before the last time only if it was long enough ago that writing stays a small
 * part of the whole. Says what is wrong, and is false then. */
bool documents_write(struct documents *, bool last);

/* A page of a batch for a browser, with nothing outside it. */
void page_html(struct text *out, const struct documents *, const struct report_batch *);

/* Progress of a running command: the progress line, the state of ranks at SIGUSR1, and the
 * status page that `epa2a status` reads. The launching thread does all of it between two polls
 * of its ranks. */

struct live;

/* The current run. */
struct live_run {
    const char *file, *label; /* label "": none */
    uint32_t number, of;      /* from 1 */
    bool reports;             /* this process is the one that says what comes out */
};

/* The signals that stop a command: SIGTERM, and SIGINT and SIGHUP unless they are ignored, as nohup
 * and `epa2a &` in a script leave them. */
void live_find_stops(sigset_t *out);
/* From here on SIGUSR1 does not end the process, but is answered; finds the stops. Before plugins
 * are loaded: libraries of theirs may install handlers, as UCX does. */
void live_catch(sigset_t *stops);
/* From here on these signals end a session and not the program: *stop_fd, which is -1, becomes a
 * signalfd. The next that was read there, SIGHUP as SIGTERM; 0: none. */
enum epa_status live_catch_stops(const sigset_t *stops, int *stop_fd, struct epa_error *);
int live_read_stop(int stop_fd);

struct live *live_create(const struct cli *);
void live_destroy(struct live *);

/* For session_create_on(); NULL: there is none. */
struct status_page *live_status_page(const struct live *);

/* Around session_run(). stop_fd: a signalfd, which is read at the second signal alone, or by
 * live_stop_signal(). */
void live_begin(struct live *, struct session *, const struct live_run *, int stop_fd);
void live_end(struct live *, struct session *);

/* The signal that was read in between, or 0. */
int live_stop_signal(const struct live *);

/* ---- the progress line, on standard error ---- */

/* Always or, where that is a terminal that is not dumb and nobody wants it quiet, auto. */
bool progress_is_on(const struct cli *);
/* In place of the line before; false: it is the terminal of somebody else now. */
__attribute__((format(printf, 1, 2))) bool progress_show(const char *fmt, ...);
void progress_clear(void);

/* The content of the progress line. */
struct progress_facts {
    const char *verb, *label;
    uint32_t number, of; /* runs */
    uint64_t done, warmup, iterations;
    double median_ns, left_s; /* NAN: not known yet */
    bool at_most;             /* left_s: a rule may end it sooner */
    bool set_up;              /* iterations have not begun */
};

/* The line, in so many columns at most, without a line's end. Control characters become ?,
 * and so does what is no UTF-8. */
void progress_line(const struct progress_facts *, uint32_t columns, struct text *out);

#endif
