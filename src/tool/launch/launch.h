/* One launch in the process that watches its ranks: the state of the ranks, and the result. */
#ifndef LAUNCH_H
#define LAUNCH_H

#include <epa2a/world.h>

#include <poll.h>
#include <pthread.h>

#include "boot/bootstrap.h"
#include "boot/conn.h"
#include "host/pin.h"
#include "launch/process.h"

struct launcher;

struct launch_rank {
    struct launch *launch;
    uint32_t number;
    bool live; /* the rank has started, and has neither returned nor ended */
    struct process process;
    pthread_t thread;
};

struct launch {
    struct epa_launch asked;
    bool threads, prefix;
    bool meeting;              /* before rendezvous; a failure then ends the rank at once */
    bool launcher_over;        /* the launcher has its verdict */
    int pause_ms;              /* time limit of an idle poll; 0: until the next deadline */
    const char *host;          /* host name for messages; NULL: all ranks are on one host */
    struct launcher *launcher; /* connection to ranks of other processes; NULL: no others */
    struct control *control;   /* owned if there is no launcher */
    uint32_t *node;            /* as in epa_world; NULL: one node */
    struct pin_plan pins;
    struct launch_rank *rank; /* [n]: ranks of this process */
    uint32_t n, live;
    struct conn_word failure; /* first failure in this process that has its own reason */
    struct conn_word death;   /* death of a rank of this process; status 0: none */
    uint64_t failed_ns;       /* time of the failure */
    bool leaked;              /* the thread of a rank was left behind */
    bool abort_known;         /* the launcher knows of the abort */
    int stop_fd;              /* -1: no longer polled */
    bool stopping;            /* stop_fd was readable */
    int wake;                 /* an eventfd that ranks write; -1: none */
    uint64_t first_ns;        /* time of the first return of a rank; 0: none returned */
    struct wait_limit last;   /* limit of the wait for the other ranks */
    uint64_t polled_ns;       /* last reading of the clock; 0: none yet */
    uint64_t grace_end_ns;    /* deadline for ranks still running after a failure; 0: no failure */
    bool grace_over;
    struct pollfd *poll;
    uint32_t users; /* number of threads that may still use this struct, with the launching one */
};

/* Creates a launch with ranks first to first + ranks - 1 in this process, and room to poll `more`
 * descriptors. */
struct launch *launch_create(const struct epa_launch *, uint32_t first, uint32_t ranks,
                             uint32_t more);
void launch_release(struct launch *);

static inline void launch_set_live(struct launch_rank *rank, bool live)
{
    rank->launch->live += (uint32_t)live - (uint32_t)rank->live;
    rank->live = live;
}

/* Returns the status of `verdict`, and its rank and message. */
enum epa_status launch_report(const struct launch *, const struct conn_word *verdict,
                              struct epa_error *);

#endif
