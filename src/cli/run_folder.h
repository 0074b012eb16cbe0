/* --out-dir: a folder with all that a batch leaves behind, an index of its runs, and what
 * --resume needs. One process at a time writes there; `epa2a help results` says what is in
 * it. */
#ifndef RUN_FOLDER_H
#define RUN_FOLDER_H

#include "cli/cli.h"
#include "cli/run_documents.h"
#include "cli/runs.h"
#include "report/batch_index.h"

struct run_folder {
    const struct cli *cli;
    struct runs *runs;
    const char *verb;
    char *path;               /* NULL: no folder is asked for, and nothing is done */
    struct text was;          /* the index as it was found; empty: there was none */
    struct batch_index old;   /* that, read */
    struct batch_index index; /* what is written: a run for each of `runs` */
    struct text *result;      /* [runs->n] JSON of done runs, and of those not on disk yet */
    int lock_fd;
    bool ours, reported; /* the lock is held; that writing failed was told */
};

/* Looks at the folder: what cannot be written to, or holds something else, is refused. With
 * --resume runs that are done there are marked so. Writes nothing; for all processes. */
enum epa_status run_folder_look(struct run_folder *, const struct cli *, const char *verb,
                                struct runs *, struct epa_error *);

/* Makes the folder, keeps others out, and writes down what is to be run. Rows and results of
 * runs that are done go into the documents. */
enum epa_status run_folder_open(struct run_folder *, struct documents *, const char *host,
                                struct epa_error *);

/* Around each run. What cannot be written is told, tried again with the next, and false;
 * `result` is taken, and may be empty. */
bool run_folder_begin(struct run_folder *, uint32_t i);
bool run_folder_end(struct run_folder *, uint32_t i, const struct report_row *, struct text *result,
                    int exit_code);
bool run_folder_last(struct run_folder *, int exit_code);
void run_folder_finish(struct run_folder *);

#endif
