/* The process of a launcher's rank: run functions for launch_start_process(). */
#ifndef LAUNCHER_RANK_H
#define LAUNCHER_RANK_H

/* Runs the rank of one launch. */
int launcher_rank_process(void *rank);
/* Runs the ranks of all launches. */
int launcher_kept_process(void *rank);

#endif
