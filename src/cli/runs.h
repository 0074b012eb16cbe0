/* The runs that files ask for, and their order. */
#ifndef RUNS_H
#define RUNS_H

#include "cli/cli.h"
#include "config/diag.h"
#include "experiment/batch.h"
#include "plugin/registry.h"
#include <sys/stat.h>
#include "report/results.h"

struct documents; /* cli/documents.h */
struct facts;

struct run {
    const struct batch *batch;
    const struct experiment *x; /* NULL: a plugin is not here */
    char *who;                  /* what sentences begin with: "FILE" or "FILE: LABEL" */
    const char *name;           /* in the summary: `who`, or the label of the only file */
    const char *label;
    uint32_t repetition;              /* from 1 */
    bool baseline, variant;           /* as in struct batch_run */
    char *failure;                    /* as in struct cli */
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

/* Reads all files. What is wrong with them goes to diag, anything else to err. They are in order as
 * declared. */
enum epa_status runs_read(const struct cli *, struct registry *, struct diag *, struct runs *out,
                          struct epa_error *);
void runs_finish(struct runs *);

/* interleaved: the first repetition of all in an order by the seed, then the second of all in
 * another, and so on, so that slow changes of a machine are in all alike; shuffled: all of
 * them in one order by the seed. The same on every machine. */
void runs_order(struct runs *, enum runs_order, uint64_t seed);
bool runs_repeat(const struct runs *);
/* "declared", "interleaved", "shuffled". */
const char *runs_order_name(enum runs_order);

/* Whether what the run needs may be missing without ending the command: it is one of
 * several of its file. */
bool run_is_of_several(const struct run *);

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

/* Looks at the folder: what cannot be written to, or holds something else, is refused. With
 * --resume runs that are done there are marked so, in the order that they had. Writes nothing; for
 * all processes. */
enum epa_status run_folder_check(struct run_folder *, const struct cli *, const char *verb,
                                 struct runs *, struct epa_error *);
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

/* Makes a folder, and keeps other processes out of it until the caller closes *fd. */
enum epa_status run_folder_lock(const char *folder, int *fd, struct epa_error *);

#endif
