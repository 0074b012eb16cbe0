/* What the files of a team share: team.c has its life and its poll loop, team_talk.c what
 * the agent says to the hub, team_rank.c the process of the rank. */
#ifndef TEAM_STATE_H
#define TEAM_STATE_H

#include "launch/conn.h"
#include "launch/hub.h"
#include "launch/net.h"
#include "launch/nodes.h"
#include "launch/process.h"
#include "launch/team.h"

enum team_phase {
    MEETING, /* meet() has not returned: the hub's address is not known */
    DIALING,
    JOINING, /* hello is said, and whether that is the hub not clear */
    WAITING, /* for all ranks */
    RUNNING,
    LEAVING, /* what the rank left is on its way */
    DONE,
};

/* The launch at hand. */
struct team_run_state {
    const struct team_settings *settings;
    const struct epa_launch *asked;
    enum team_phase phase;
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

struct team {
    struct team_params params;
    struct team_contact contact;
    struct nodes_host host;
    int listener[NET_LISTENERS];
    uint32_t listeners;
    struct control *control; /* of one rank */
    struct process process;
    struct conn child; /* to it */
    int child_end;     /* its end of that, while it is forked */
    bool met;          /* meet() has returned, or there is none */
    bool lost;         /* the process was to be kept, and is gone */
    struct hub *hub;   /* rank 0; stays until the next launch, and so do its connections */
    struct net_dial dial;
    struct conn conn; /* to the hub */
    char hub_name[200];
    struct pin_plan pins;
    struct team_run_state run;
};

/* Sent to the process with WIRE_RUN; behind it the node of each rank and all cores. */
struct team_run {
    enum epa_status (*rank_main)(struct epa_bootstrap *, void *arg);
    void *arg;
    uint64_t timeout_ns;
    struct epa_world world;         /* without its pointers */
    uint32_t all_cores, first_core; /* world.cores of all, from the first on */
};

/* Sent by the process with WIRE_CONTACT. */
struct team_met {
    struct epa_error err;
    struct team_contact contact;
};

static inline bool team_keeps(const struct team *team)
{
    return team->params.meet != NULL;
}

/* The process of the rank: a process_start() function; `team` as it was when it forked. */
int team_rank_process(void *team);

/* Something went wrong here: the hub is told, or, where there is none, that is how it ends. */
void team_fail(struct team *, const struct wire_word *);
EPA_PRINTF(4, 5)
void team_fail_with(struct team *, enum epa_status, uint32_t lost, const char *fmt, ...);

/* The rank has returned, with that status. */
void team_returned(struct team *, enum epa_status);

/* Whether the process does nothing for this launch any more. */
bool team_quiet(const struct team *);

/* How poll() is to look for the hub, and what there is to do then, or just by the time. */
struct pollfd team_hub_poll(const struct team *);
void team_hub_turn(struct team *, short revents, uint64_t now);

/* Begins to look for the hub; `fd` is a connection to it, or -1. */
void team_dial(struct team *, int fd);

#endif
