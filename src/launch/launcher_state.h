/* What the files of a team share: launcher.c has its life and its poll loop, launcher_talk.c what
 * the agent says to the hub, launcher_rank.c the process of the rank. */
#ifndef LAUNCHER_STATE_H
#define LAUNCHER_STATE_H

#include "launch/conn.h"
#include "launch/rendezvous.h"
#include "launch/net.h"
#include "launch/nodes.h"
#include "launch/process.h"
#include "launch/launcher.h"

enum launcher_phase {
    MEETING, /* meet() has not returned: the hub's address is not known */
    DIALING,
    JOINING, /* hello is said, and whether that is the hub not clear */
    WAITING, /* for all ranks */
    RUNNING,
    LEAVING, /* what the rank left is on its way */
    DONE,
};

/* The launch at hand. */
struct launcher_run_state {
    const struct launcher_settings *settings;
    const struct epa_launch *asked;
    enum launcher_phase phase;
    bool stopping;            /* stop_fd could be read */
    bool ran, returned;       /* the rank was told to run; it has, or will not */
    bool left;                /* the process was told to end */
    bool word_ready, judged;  /* of the words below */
    struct wire_word word;    /* what went wrong here first */
    struct wire_word verdict; /* how it ended for all */
    bool rank_0_tells;        /* the verdict is the hub's, so rank 0 has it as well */
    size_t block_at;
    int stop_fd;
    uint64_t began_ns, grace_end_ns;
    uint64_t looked_ns; /* for signs of life of the hub, last */
};

struct launcher {
    struct launcher_params params;
    struct launcher_contact contact;
    struct nodes_host host;
    int listener[NET_LISTENERS];
    uint32_t listeners;
    struct control *control; /* of one rank */
    struct process process;
    struct conn child; /* to it */
    int child_end;     /* its end of that, while it is forked */
    bool met;          /* meet() has returned, or there is none */
    bool failed_rank;  /* the process was to be kept, and is gone */
    struct rendezvous
        *rendezvous; /* rank 0; stays until the next launch, and so do its connections */
    struct net_dial dial;
    struct conn conn; /* to the hub */
    char rendezvous_name[200];
    struct pin_plan pins;
    struct launcher_run_state run;
};

/* Sent to the process with WIRE_RUN; behind it the node of each rank and all cores. */
struct launcher_run {
    enum epa_status (*rank_main)(struct epa_bootstrap *, void *arg);
    void *arg;
    uint64_t timeout_ns;
    struct epa_world world;         /* without its pointers */
    uint32_t all_cores, first_core; /* world.cores of all, from the first on */
};

/* Sent by the process with WIRE_CONTACT. */
struct launcher_met {
    struct epa_error err;
    struct launcher_contact contact;
};

static inline bool launcher_keeps(const struct launcher *launcher)
{
    return launcher->params.meet != NULL;
}

/* The process of the rank: a process_start() function; `team` as it was when it forked. */
int launcher_rank_process(void *launcher);

/* Something went wrong here: the hub is told, or, where there is none, that is how it ends. */
void launcher_fail(struct launcher *, const struct wire_word *);
EPA_PRINTF(4, 5)
void launcher_fail_with(struct launcher *, enum epa_status, uint32_t failed_rank, const char *fmt,
                        ...);

/* The rank has returned, with that status. */
void launcher_returned(struct launcher *, enum epa_status);

/* Whether the process does nothing for this launch any more. */
bool launcher_quiet(const struct launcher *);

/* How poll() is to look for the hub, and what there is to do then, or just by the time. */
struct pollfd launcher_rendezvous_poll(const struct launcher *);
void launcher_rendezvous_turn(struct launcher *, short revents, uint64_t now);

/* Begins to look for the hub; `fd` is a connection to it, or -1. */
void launcher_dial(struct launcher *, int fd);

#endif
