/* What run, bench and verify are made of: a command from its first file to its last report. */
#ifndef RUN_COMMAND_H
#define RUN_COMMAND_H

#include "cli/cli.h"
#include "cli/live.h"
#include "cli/run_documents.h"
#include "cli/run_folder.h"
#include "cli/runs.h"
#include "session/session.h"

struct run_command {
    const struct cli *cli;
    enum verb verb;
    struct registry *registry;
    struct runs runs;
    struct session **session; /* [runs.n] made by the checks and kept; see run_prepare.c */
    struct documents documents;
    struct run_folder folder;
    struct facts facts;
    struct epa_process_id process_id; /* by the environment; size 0: not one of several */
    struct live *live;                /* what it shows of itself */
    uint32_t number;                  /* of the run under way, from 1 */
    int stop_fd;
    bool stays; /* threads that cannot be ended use a session */
};

/* ---- run_prepare.c: files to runs, and what can be refused before a rank starts ---- */

enum epa_status run_read(struct run_command *, struct epa_error *);
/* Makes each session once, to see that it can be. */
enum epa_status run_check(struct run_command *, struct epa_error *);
/* Which ranks these are is found and not asked for, so it is said. */
void run_write_processes(const struct run_command *);
/* Which of all runs each is, so that processes that do not agree on them find out. */
void run_write_fingerprint(struct run_command *);

/* "WHO: error: WHAT" for people; a run of several that lacks something here is skipped. */
void run_write(const struct epa_process_id *, const char *who, const char *what);
void run_write_end(const struct run *, const struct epa_process_id *, enum epa_status,
                   const char *what);
bool run_is_skipped(const struct run *, enum epa_status);

/* ---- run_all.c: one run after the other ---- */

/* Returns the exit code of all. */
int run_all(struct run_command *);

#endif
