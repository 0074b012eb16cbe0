/* The folder of --out-dir holds all results of a batch and the input of --resume (see `epa2a help
 * results`). One process at a time writes into the folder. */
#ifndef RUN_FOLDER_H
#define RUN_FOLDER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "cli/documents.h"
#include "cli/runs.h"
#include "report/results.h"
#include "report/result_parts.h"

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

#endif
