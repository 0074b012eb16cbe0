/* State of a launcher, the parent of one rank of a job. */
#ifndef LAUNCHER_STATE_H
#define LAUNCHER_STATE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <unistd.h>

#include <epa2a/world.h>
#include "boot/bootstrap.h"
#include "boot/conn.h"
#include "launch/launcher_params.h"
#include "boot/net.h"
#include "boot/nodes.h"
#include "host/pin.h"
#include "launch/process.h"

struct launch;
struct rendezvous;

/* Orders to a kept process. */
enum { ORDER_RUN = 1, ORDER_LEAVE };

/* The launch to run, in memory shared with the process of the rank. */
struct order {
    struct epa_launch asked;
    struct epa_world world; /* without cores */
    enum pin pin;
    struct conn_welcome welcome;
    /* Result of meet(); valid if `met` is set. */
    uint32_t met;
    struct epa_error err;
    struct contact contact;
    uint32_t node[];
};

struct launcher {
    struct launcher_params params;
    uint32_t rank, size; /* of params.process_id */
    struct nodes_host host;
    char me[96]; /* "rank 3 (host b)" */
    int listener;
    int wake, orders; /* eventfds: the rank's process writes wake; a kept process reads orders */
    struct control *control;
    struct order *order;
    size_t order_bytes;
    struct process process; /* kept process between launches */
    bool met;               /* meet() has returned or does not exist */
    bool lost;              /* the kept process has died */
    pid_t parent;
    struct rendezvous *rendezvous; /* of rank 0; lives with its connections until the next launch */
    struct net_dial dial;
    struct conn conn; /* to the rendezvous */
    char rendezvous_name[200];
    /* The present launch. */
    const struct launcher_settings *settings;
    struct launch *launch;
    enum phase {
        MEETING, /* meet() has not returned: the address of the rendezvous is unknown */
        DIALING, /* the rendezvous has not proved that it knows the token */
        WAITING, /* connected; waits for all ranks */
        RUNNING,
        LEAVING, /* the launcher sends the results of the rank */
        DONE,
    } phase;
    bool ran;                 /* the rank has started */
    bool judged;              /* `verdict` is valid */
    struct conn_word verdict; /* result of the launch for all ranks */
    bool rank_0_reports;      /* the verdict is from the rendezvous, so rank 0 has it as well */
    uint64_t sent;            /* number of set-up steps sent */
    size_t block_at;
    uint64_t began_ns, polled_ns, turned_ns;
};

static inline bool keeps_process(const struct launcher *l)
{
    return l->params.meet != NULL;
}

/* Returns true if mpirun has ended; other ranks may have ended, too. */
static inline bool is_orphan(const struct launcher *l)
{
    return keeps_process(l) && getppid() != l->parent;
}

#endif
