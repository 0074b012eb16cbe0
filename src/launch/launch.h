/* One launch, as the process sees it that watches over its ranks: how they run, and how it ends. */
#ifndef LAUNCH_H
#define LAUNCH_H

#include <pthread.h>

#include "launch/conn.h"
#include "launch/process.h"

struct launcher;

struct launch_rank {
    struct launch *launch;
    uint32_t number;
    bool live; /* started, and has neither returned nor ended */
    struct process process;
    pthread_t thread;
};

struct launch {
    struct epa_launch asked;
    bool threads, prefix;
    const char *host;          /* to name ranks by; NULL: there is one */
    struct launcher *launcher; /* to ranks of other processes; NULL: there are none */
    struct control *control;   /* owned where there is no launcher */
    uint32_t *node;            /* as in epa_world; NULL: there is one */
    struct pin_plan pins;
    struct launch_rank *rank; /* [n], of this process */
    uint32_t n, live;
    struct conn_word failure; /* what went wrong here first, for a reason of its own */
    struct conn_word death;   /* of a rank here; status 0: none died */
    bool abort_known;         /* to the launcher */
    int stop_fd;              /* -1: no more */
    bool stopping;            /* because it could be read */
    int wake;                 /* an eventfd that ranks write; -1: none */
    uint64_t first_ns;        /* when the first rank returned; 0: none has */
    struct wait_limit last;   /* with those that have not */
    uint64_t grace_end_ns;    /* when who has not returned is given up; 0: nobody failed yet */
    bool grace_over;
    struct pollfd *poll;
    uint32_t users; /* threads that may still use this, the launching one included */
};

/* Of `ranks` ranks from `first` on in this process; room to poll `more` descriptors. */
enum epa_status launch_create(const struct epa_launch *, uint32_t first, uint32_t ranks,
                              uint32_t more, struct launch **out, struct epa_error *);
void launch_release(struct launch *);

/* Starts a process that runs run(rank). Says why not by launch_fail(). */
bool launch_start_process(struct launch_rank *, int (*run)(void *rank));

/* A process that an earlier launch has started prints for this one from now on. */
void launch_take_output(struct launch_rank *);

static inline void launch_set_live(struct launch_rank *rank, bool live)
{
    rank->launch->live += (uint32_t)live - (uint32_t)rank->live;
    rank->live = live;
}

/* In the process or thread of a rank: pins it, runs it and records what it returned. */
enum epa_status launch_run_rank(struct launch *, struct epa_world *, int wake);

/* Polls until all ranks have ended, and the launcher is done. Returns how the launch ended. */
void launch_watch(struct launch *);

/* Something failed here: all ranks are to leave. Without text: the rank has said why. */
void launch_fail(struct launch *, struct conn_word);

/* How it ended, by `verdict`. */
enum epa_status launch_report(const struct launch *, const struct conn_word *verdict,
                              struct epa_error *);

/* ---- launcher.c, called by launch_watch() ---- */

/* A rank returned (status 0) or something failed; the rendezvous is informed. */
void launcher_report(struct launcher *, const struct conn_word *);
uint32_t launcher_polls(const struct launcher *, struct pollfd *out);
void launcher_turn(struct launcher *, const struct pollfd *, uint32_t n);
int launcher_pause_ms(const struct launcher *);
/* Whether what failed before the ranks met is to end without a grace period. */
bool launcher_is_meeting(const struct launcher *);
bool launcher_keeps_process(const struct launcher *);
/* The rank's process is gone. */
void launcher_lose_process(struct launcher *);
bool launcher_over(const struct launcher *);

#endif
