/* Ranks of a launch: processes, or threads of this process. */
#ifndef LAUNCH_RANK_H
#define LAUNCH_RANK_H

#include <epa2a/world.h>

#include "launch/launch.h"

/* Records a failure in this process and asks all ranks to end. A word without text means that the rank
 * has recorded the reason. */
void launch_fail(struct launch *, struct conn_word);

/* Computes local_rank and local_size from world->node. Both are 0 before. */
void launch_find_neighbours(struct epa_world *);

/* Pins and runs a rank, and records its status; called in the process or thread of the rank. */
enum epa_status launch_run_rank(struct launch *, struct epa_world *, int wake);

/* rank_main() of a rank has returned the status. */
void launch_rank_returned(struct launch *, enum epa_status);

/* Reports the death of a rank of this process. `signal`: of the death, or 0; `how`: "was killed by ..." */
void launch_rank_died(struct launch_rank *, uint32_t signal, const char *how);

/* Starts a process that runs run(rank). Reports an error by launch_fail(). */
bool launch_start_process(struct launch_rank *, int (*run)(void *rank));
int launch_process_main(void *rank); /* the run function of the launcher fork */
/* Relays the output of a rank's process and checks for its return or end. */
void launch_check_process(struct launch_rank *);

/* Starts a thread for a rank: with room on its stack, and with signals of faults only. Returns an errno
 * value. */
int launch_create_thread(pthread_t *out, void *(*run)(void *arg), void *arg);

/* Starts a thread for each rank. Reports an error by launch_fail(). */
void launch_start_threads(struct launch *);
/* Checks for the return of a rank's thread. */
void launch_check_thread(struct launch_rank *);
/* Reports a thread that did not return in time, and leaves it behind. */
void launch_leak_thread(struct launch_rank *);

#endif
