/* Library of the launchers env and mpi, for ranks that mpirun, srun, torchrun or a script starts one by
 * one.
 *
 * The rank is a thread of this process. The main thread watches it and holds the connection to the
 * rendezvous, which is part of the process of rank 0. A signal that kills the rank is caught and
 * reported by its own process; SIGKILL and an exit are reported by the other ranks.
 * The rendezvous forwards the steps of the set-up, receives every failure, and sends the verdict of the
 * launch to all launchers. */
#ifndef LAUNCHER_H
#define LAUNCHER_H

#include <epa2a/world.h>
#include "launch/launcher_params.h"

struct launcher;

/* Creates a launcher. Rank 0 listens from here on. Starts no thread. */
enum epa_status launcher_create(const struct launcher_params *, struct launcher **out,
                                struct epa_error *);

/* Implements launch() of epa_launcher_plugin, one launch at a time. `asked` is identical on all ranks
 * except for the targets of `arg` and `block`. If rank 0 reports a failure for all ranks, only rank 0
 * sets `err` and `failed_rank`. A launcher that has lost its rank fails further launches on all ranks. */
enum epa_status launcher_launch(struct launcher *, const struct launcher_settings *,
                                const struct epa_launch *asked, struct epa_error *);

/* Ends the thread of the rank, with a time limit for leave(). After a failure, ranks other than 0 then wait
 * some seconds for the end of rank 0's launcher, which reports the failure: mpirun may kill all
 * processes as soon as one ends with an error. Returns false if the thread of the rank goes on. Accepts
 * NULL. */
bool launcher_destroy(struct launcher *);

#endif
