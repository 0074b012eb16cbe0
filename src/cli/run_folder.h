/* --out-dir: a folder with all that a batch leaves behind, and what --resume needs. One process at
 * a time writes there; `epa2a help results` says what is in it. */
#ifndef RUN_FOLDER_H
#define RUN_FOLDER_H

#include <sys/stat.h>

#include "cli/run_documents.h"
#include "report/results.h"

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

/* After run i, whose result is in d->one (empty: none). What cannot be written is told, tried
 * again with the next, and false. */
bool run_folder_add(struct run_folder *, const struct documents *d, uint32_t i, bool last);
void run_folder_finish(struct run_folder *);

#endif
