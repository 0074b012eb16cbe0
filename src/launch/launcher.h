/* One rank of several that somebody else has started (mpirun, srun, torchrun), each by
 * itself: what the launchers env and mpi share, a library of its own.
 *
 * This process becomes the agent of its rank: it forks the rank's process and watches over
 * it, so that it is known how a rank died. Agents connect to a rendezvous in the agent of rank 0,
 * which knows who came, gathers for the set-up, hears of every death, and tells all how the
 * launch ended. */
#ifndef LAUNCHER_H
#define LAUNCHER_H

#include <epa2a/world.h>

#include "launch/pin.h"

enum { LAUNCHER_TOKEN = 64, LAUNCHER_ADDRESSES = 8, LAUNCHER_ADDRESS = 256 };

/* How the rendezvous is reached. No pointers: its bytes may be sent to other hosts. */
struct launcher_contact {
    char token[LAUNCHER_TOKEN + 1]; /* what all of a job know, and no stranger */
    char local[64]; /* an abstract unix socket, for ranks of this host and user; "": addresses */
    char address[LAUNCHER_ADDRESSES]
                [LAUNCHER_ADDRESS]; /* numbers or names, tried in turn; "": end */
    uint32_t port;
};

/* Options of a launcher that are the same for all of them. */
struct launcher_settings {
    int pin;               /* enum pin */
    bool prefix;           /* "[rank 3] " before each line of the rank's standard error */
    uint64_t start_ns;     /* that all ranks have to come */
    uint64_t heartbeat_ns; /* silence after which an agent is taken for gone */
};

struct launcher_params {
    struct epa_process_id process_id;
    /* Of this host, where rank 0 listens; NULL: at the address that contact names, or at
     * any where there is no contact. */
    const char *interface;
    /* Where the rendezvous is to be found, with meet() or without; NULL: rank 0 listens at a port that is free, makes a
     * token, and meet() takes both to the others. */
    const struct launcher_contact *contact;
    /* In the process of the rank, before it runs anything. On rank 0 `contact` is filled,
     * on others it is to be filled with the same bytes. Where it is given, that process is
     * started once and kept: it runs the ranks of all launches. What it waits for has a limit
     * of start_ns: then it is killed. */
    enum epa_status (*meet)(void *arg, struct launcher_contact *contact, struct epa_error *);
    void (*leave)(void *arg); /* in that process, before it ends; may be NULL */
    void *arg;
};

struct launcher;

/* For ranks of one host: an abstract socket, by contact->port and what only this job has (`job`),
 * where the kernel knows whose process comes. */
void launcher_meet_here(struct launcher_contact *contact, uint32_t job);

/* Rank 0 listens from here on. No process is started. */
enum epa_status launcher_create(const struct launcher_params *, struct launcher **out,
                                struct epa_error *);

/* As launch() of epa_launcher_plugin; `asked` is alike on all ranks but for what `arg` and
 * `block` point to. One launch at a time. What rank 0 can say for all only its `err` and
 * `lost` tell. One that keeps its process and has lost it refuses further launches, on all
 * ranks. */
enum epa_status launcher_launch(struct launcher *, const struct launcher_settings *,
                                const struct epa_launch *asked, struct epa_error *);

/* Ends the process that was kept: leave() has a second for it. Then, rank 0 aside, waits
 * some seconds for rank 0 to do the same, which is done with its report then: who started
 * us may kill all once one has left with an error. NULL is good. */
void launcher_destroy(struct launcher *);

#endif
