/* The runs of experiment files, and their order. */
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
    const struct experiment *x; /* NULL: a plugin is missing */
    char *who;                  /* prefix of messages: "FILE" or "FILE: LABEL" */
    const char *name;           /* name in the summary: `who`; for a single file the label */
    const char *label;
    uint32_t repetition;    /* from 1 */
    bool baseline, variant; /* as in struct batch_run */
    bool skips;    /* the command has several runs: a missing plugin or device skips this run */
    char *failure; /* as in struct cli */
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

/* Reads the runs of all files in declared order. Reports errors of files to diag, other errors to
 * err. */
enum epa_status runs_read(const struct cli *, struct registry *, struct diag *, struct runs *out,
                          struct epa_error *);
/* Reads the runs and prints errors of files. With `command` (not NULL) more than one run is an
 * error, since that command accepts a single run. */
enum epa_status runs_read_files(const struct cli *, struct registry *, const char *command,
                                struct runs *out, struct epa_error *);
/* Reads the only run of a text. `set` replaces the settings of the command line. `why` receives an
 * error of the text. */
enum epa_status runs_read_text(const struct cli *, struct registry *, const char *text,
                               const char **set, uint32_t n_sets, struct runs *out,
                               char why[CLI_FAILURE], struct epa_error *);
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

/* The folder of --out-dir holds all results of a batch and the input of --resume (see `epa2a help
 * results`). One process at a time writes into the folder. */

struct run_folder {
    const struct cli *cli;
    struct runs *runs;
    char *path, *file;   /* the folder and its results.jsonl; NULL: --out-dir is not given */
    struct results old;  /* --resume: results of the folder */
    struct stat was;     /* state of `file` when read; st_ino 0: the file did not exist */
    struct text pending; /* lines that are not on disk yet */
    int lock_fd, fd;
    bool reported; /* a write error has been reported */
};

/* Initialises the folder. With --resume marks the runs that have results in the folder. All
 * processes of a job call this function; it writes nothing. */
enum epa_status run_folder_read(struct run_folder *, const struct cli *, const char *verb,
                                struct runs *, struct epa_error *);
/* Fails if the folder cannot be written or holds other files. Only the reporting process calls this
 * function: a rank that starts later finds files of the same job there. */
enum epa_status run_folder_check(struct run_folder *, struct epa_error *);
/* Returns order and seed of the batch in the folder; false: the folder has no batch. */
bool run_folder_order(const struct run_folder *, enum runs_order *order, uint64_t *seed);

/* Creates and locks the folder. Adds rows and results of finished runs to the documents. */
enum epa_status run_folder_open(struct run_folder *, struct documents *, const struct facts *,
                                struct epa_error *);

/* Appends the line of run i, whose result is d->one (NULL: none). Reports a write error, keeps the
 * line for the next call and returns false. */
bool run_folder_add(struct run_folder *, const struct documents *d, uint32_t i, bool last);
void run_folder_finish(struct run_folder *);

/* Fails if a document of --out-dir cannot be written into the folder. */
enum epa_status folder_documents_check(const char *folder, struct epa_error *);

/* Creates a folder and locks it for this process until the caller closes *fd. */
enum epa_status run_folder_lock(const char *folder, int *fd, struct epa_error *);

/* The documents of --json, --markdown, --csv, --json-lines, --html, --junit, --openmetrics, and
 * the tables of --out-dir. The command rewrites them during the batch and at its end. */

enum document_kind {
    DOCUMENT_JSON,
    DOCUMENT_MARKDOWN,
    DOCUMENT_CSV,
    DOCUMENT_STREAM, /* --json-lines */
    DOCUMENT_JUNIT,
    DOCUMENT_METRICS,
    DOCUMENT_HTML,
    DOCUMENT_OUT,    /* --out of other commands */
    DOCUMENT_FOLDER, /* first document in --out-dir */
    DOCUMENT_FOLDER_CSV = DOCUMENT_FOLDER,
    DOCUMENT_FOLDER_MARKDOWN,
    DOCUMENTS
};

struct documents {
    const struct cli *cli;
    const struct runs *runs;
    enum verb verb;
    bool ours;             /* this process reports */
    json_t *rows;          /* [runs->n] rows of the summary, in file order */
    char *path[DOCUMENTS]; /* NULL: not requested */
    /* Temporary file of a document that could not be renamed, and the message about it; or NULL. */
    char *kept[DOCUMENTS], *why[DOCUMENTS];
    json_t *one;              /* result of the last run; NULL: the run has none */
    json_t *results;          /* all results, if a document needs them at the end */
    struct warnings warnings; /* warnings of all runs of a batch, printed after the table */
    struct file_stream stream;
    bool is_ours[DOCUMENTS];  /* this command wrote the file and may overwrite it */
    bool reported[DOCUMENTS]; /* a write error has been reported */
    bool delayed;             /* a finished run is not written yet */
    uint64_t written_ns, cost_ns;
};

/* Initialises the documents with a row for each run. `runs` must outlive them. */
void documents_init(struct documents *, const struct cli *, enum verb, const struct runs *,
                    bool ours);
/* Opens the stream of --json-lines. */
enum epa_status documents_open(struct documents *, struct epa_error *);
void documents_finish(struct documents *);

/* Adds the document of one result as one line. */
void documents_line(struct text *out, json_t *result, const struct report_batch *);

/* Adds a result, takes its reference and stores it in `one`. */
void documents_add(struct documents *, json_t *result);

/* Returns true if standard output has lost its reader and no other document is requested. */
bool documents_are_unread(const struct documents *);

/* Returns true if documents_write() has delayed a document and would write it now. Called during the
 * next run, which may take long, and which may end with the program. */
bool documents_are_due(const struct documents *);

/* Writes all documents. Before the end of the batch a call does nothing if writing would take more
 * than a small part of the time. Prints errors and returns false after one. */
bool documents_write(struct documents *, bool last);

/* Adds a self-contained HTML page about a batch. */
void page_html(struct text *out, const struct documents *, const struct report_batch *);

/* Progress of a running command: the progress line, the state of ranks at SIGUSR1, and the status
 * page that `epa2a status` reads. The launching thread updates them between two polls of its
 * ranks. */

struct live;

/* The current run. */
struct live_run {
    const char *file, *label;    /* label "": none */
    uint32_t number, of;         /* from 1 */
    bool reports;                /* this process reports the results */
    struct documents *documents; /* written during the run if documents_are_due() */
};

/* Returns the signals that stop a command: SIGTERM, and SIGINT and SIGHUP unless they are ignored.
 * nohup ignores SIGHUP; a script that runs `epa2a &` ignores SIGINT. */
void live_find_stops(sigset_t *out);
/* Blocks SIGUSR1, so that it requests the state of the ranks and does not end the process; returns
 * the signals of live_find_stops(). The caller has not loaded plugins yet: their libraries may
 * install handlers, as UCX does. */
void live_catch(sigset_t *stops);
/* Blocks the stop signals and opens *stop_fd, a signalfd, so that they end a session and not the
 * program. *stop_fd is -1 before the call. */
enum epa_status live_catch_stops(const sigset_t *stops, int *stop_fd, struct epa_error *);
/* Returns the next pending signal of stop_fd, SIGTERM for SIGHUP; 0: none. */
int live_read_stop(int stop_fd);

struct live *live_create(const struct cli *);
void live_destroy(struct live *);

/* Returns the status page for session_create_on(); NULL: none. */
struct status_page *live_status_page(const struct live *);

/* Calls before and after session_run(). stop_fd is a signalfd. The poll function reads it only
 * while ranks are stopping; the second signal then ends the wait. */
void live_begin(struct live *, struct session *, const struct live_run *, int stop_fd);
void live_end(struct live *, struct session *);

/* Returns the last signal that was read between live_begin() and live_end(), or 0. */
int live_stop_signal(const struct live *);

/* ---- the progress line, on standard error ---- */

/* Returns true for PROGRESS_ALWAYS, and for PROGRESS_AUTO without --quiet on a terminal that is not
 * dumb. */
bool progress_is_on(const struct cli *);
/* Replaces the progress line. Returns false if this process is in the background of the terminal. */
__attribute__((format(printf, 1, 2))) bool progress_show(const char *fmt, ...);
void progress_clear(void);

/* The content of the progress line. */
struct progress_facts {
    const char *verb, *label;
    uint32_t number, of; /* runs */
    uint64_t done, warmup, iterations;
    double median_ns, left_s; /* NAN: not known yet */
    bool at_most;             /* left_s is an upper bound: a stop rule may end the run earlier */
    bool set_up;              /* iterations have not begun */
};

/* Formats the line in at most `columns` columns, without a newline. Control characters and invalid
 * UTF-8 become '?'. */
void progress_line(const struct progress_facts *, uint32_t columns, struct text *out);

#endif
