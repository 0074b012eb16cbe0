/* The rank of a launcher: a thread of this process that runs the ranks of all launches. */
#ifndef LAUNCHER_RANK_H
#define LAUNCHER_RANK_H

#include <stdbool.h>
#include <stdint.h>

#include <epa2a/status.h>

struct launcher;

/* Starts the thread, which calls meet() and then waits for launches. */
enum epa_status launcher_start_rank(struct launcher *, struct epa_error *);

/* Lets the thread run the launch in l->order. */
void launcher_run_rank(struct launcher *);

/* Finds the return or the crash of the rank, and reports it. */
void launcher_check_rank(struct launcher *);

/* Ends the thread after leave(), which may take up to `ms`. Returns false if the thread goes on. */
bool launcher_end_rank(struct launcher *, uint32_t ms);

#endif
