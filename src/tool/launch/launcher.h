/* Library of the launchers env and mpi, for ranks that mpirun, srun, torchrun or a script starts one by
 * one.
 *
 * This process becomes the launcher of its rank: it forks the rank's process and watches it, since only
 * a parent learns the cause of a death. Launchers connect to the rendezvous in the launcher of rank 0.
 * The rendezvous forwards the steps of the set-up, receives every failure, and sends the verdict of the
 * launch to all launchers. */
#ifndef LAUNCHER_H
#define LAUNCHER_H

#include <epa2a/world.h>
#include "launch/launcher_params.h"

struct launcher;

/* Creates a launcher. Rank 0 listens from here on. Starts no process. */
enum epa_status launcher_create(const struct launcher_params *, struct launcher **out,
                                struct epa_error *);

/* Implements launch() of epa_launcher_plugin, one launch at a time. `asked` is identical on all ranks
 * except for the targets of `arg` and `block`. If rank 0 reports a failure for all ranks, only rank 0
 * sets `err` and `failed_rank`. A launcher that has lost its kept process fails further launches on all
 * ranks. */
enum epa_status launcher_launch(struct launcher *, const struct launcher_settings *,
                                const struct epa_launch *asked, struct epa_error *);

/* Ends the kept process, with a time limit for leave(). After a failure, ranks other than 0 then wait
 * some seconds for the end of rank 0's launcher, which reports the failure: mpirun may kill all
 * processes as soon as one ends with an error. Accepts NULL. */
void launcher_destroy(struct launcher *);

#endif
