/* State of a launcher: this process and its rank. */
#ifndef LAUNCHER_STATE_H
#define LAUNCHER_STATE_H

#include <pthread.h>
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

struct launch;
struct rendezvous;

/* The launch that the thread of the rank runs. */
struct order {
    enum order_kind { ORDER_NONE, ORDER_RUN, ORDER_LEAVE } kind; /* under the lock */
    struct epa_launch asked;
    struct epa_world world; /* without cores */
    enum pin pin;
    struct conn_welcome welcome;
    uint32_t *node; /* [size] */
};

struct launcher {
    struct launcher_params params;
    uint32_t rank, size; /* of params.process_id */
    struct nodes_host host;
    char me[96]; /* "rank 3 (host b)" */
    int listener;
    int wake; /* an eventfd that the rank writes */
    struct control *control;
    pthread_t thread; /* of the rank; valid with has_thread */
    bool has_thread;
    bool lost; /* the rank has crashed or did not return; its thread may still run */
    pthread_mutex_t lock;
    pthread_cond_t ordered;
    struct order order;
    struct contact contact;
    struct contact meet_contact; /* argument of meet() */
    uint32_t meet_over;          /* meet() has returned, with meet_err */
    uint32_t left;               /* leave() has returned */
    struct epa_error meet_err;
    bool met; /* meet_over was seen, or there is no meet() */
    pid_t parent;
    struct rendezvous *rendezvous; /* of rank 0; lives with its connections until the next launch */
    struct net_dial dial;
    struct conn conn; /* to the rendezvous */
    char rendezvous_name[200];
    int rank_0_pidfd; /* -1: rank 0 is this process or on another host */
    int32_t rank_0_pid;
    struct conn_member *member; /* [members] of rank 1: ranks of this host */
    int *member_file;           /* [members]: their open files; -1: no access */
    uint32_t members;
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
    bool rank_0_lost;         /* the verdict is the loss of rank 0 */
    bool warned;              /* warn_of_death() has written the death */
    uint64_t stopping_ns;     /* time at which launch->stopping was seen; 0: not yet */
    uint64_t sent;            /* number of set-up steps sent */
    size_t block_at;
    uint64_t began_ns, polled_ns, turned_ns;
};

/* Returns true if mpirun has ended; other ranks may have ended, too. */
static inline bool is_orphan(const struct launcher *l)
{
    return l->params.meet != NULL && getppid() != l->parent;
}

#endif
