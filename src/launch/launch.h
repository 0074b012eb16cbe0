/* One launch in the process that watches its ranks: the state of the ranks, and the result. */
#ifndef LAUNCH_H
#define LAUNCH_H

#include <epa2a/world.h>

#include <poll.h>
#include <pthread.h>

#include "launch/conn.h"
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
    bool kept;                 /* a launcher keeps the process for later launches */
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

/* Starts a process that runs run(rank). Reports an error by launch_fail(). */
bool launch_start_process(struct launch_rank *, int (*run)(void *rank));

static inline void launch_set_live(struct launch_rank *rank, bool live)
{
    rank->launch->live += (uint32_t)live - (uint32_t)rank->live;
    rank->live = live;
}

/* Pins and runs a rank, and records its status; called in the process or thread of the rank. */
enum epa_status launch_run_rank(struct launch *, struct epa_world *, int wake);

/* Computes local_rank and local_size from world->node. Both are 0 before. */
void launch_find_neighbours(struct epa_world *);

/* Raises the signal that stopped another rank in this process, so that all processes of a launch end
 * with the same status. No effect unless the process blocks signals and reads them itself. */
void launch_share_signal(uint32_t number);

/* Polls until all ranks have ended and the launcher is done. */
void launch_watch(struct launch *);

/* Records a failure in this process and asks all ranks to end. A word without text means that the rank
 * has recorded the reason. */
void launch_fail(struct launch *, struct conn_word);

/* Returns the status of `verdict`, and its rank and message. */
enum epa_status launch_report(const struct launch *, const struct conn_word *verdict,
                              struct epa_error *);

/* ---- launcher.c, called by launch_watch() ---- */

/* Reports the return of a rank (status 0) or a failure to the rendezvous. */
void launcher_report(struct launcher *, const struct conn_word *);
uint32_t launcher_polls(const struct launcher *, struct pollfd *out);
/* Returns true if this launcher and all connected launchers have the verdict. */
bool launcher_turn(struct launcher *, const struct pollfd *);

/* Library of the launchers env and mpi, for ranks that mpirun, srun, torchrun or a script starts one by
 * one.
 *
 * This process becomes the launcher of its rank: it forks the rank's process and watches it, since only
 * a parent learns the cause of a death. Launchers connect to the rendezvous in the launcher of rank 0.
 * The rendezvous forwards the steps of the set-up, receives every failure, and sends the verdict of the
 * launch to all launchers. */

enum { LAUNCHER_TOKEN = 64, LAUNCHER_ADDRESSES = 8, LAUNCHER_ADDRESS = 256 };

/* Contact data of the rendezvous. No pointers: mpi sends its bytes to other hosts. */
struct launcher_contact {
    char token[LAUNCHER_TOKEN + 1]; /* the secret of the job */
    char local[64]; /* abstract UNIX socket for ranks of this host and user; "": use addresses */
    char address[LAUNCHER_ADDRESSES]
                [LAUNCHER_ADDRESS]; /* numbers or names, tried in order; "": end */
    uint32_t port;
    char job[CONN_JOB]; /* name of the job from variables of the scheduler; "": unknown */
};

/* Options that the launchers env and mpi share. */
struct launcher_settings {
    int pin;               /* enum pin */
    bool prefix;           /* "[rank 3] " before each line of the rank's standard error */
    uint64_t start_ns;     /* time limit for all ranks to connect */
    uint64_t heartbeat_ns; /* silence after which a launcher counts as lost */
};

#define LAUNCHER_DEFAULTS \
    { \
        .pin = PIN_CORE, .prefix = true, .start_ns = 60000000000, .heartbeat_ns = 5000000000 \
    }

/* Rows of these options for a struct config with a member `launcher`. */
#define LAUNCHER_OPTIONS \
    {.name = "start", \
     EPA_DURATION(struct config, launcher.start_ns), \
     .min = 100000000, \
     .max = 3600000000000, \
     .help = "longest wait at the start for all ranks to connect"}, \
        {.name = "heartbeat", \
         EPA_DURATION(struct config, launcher.heartbeat_ns), \
         .min = 1000000000, \
         .max = 600000000000, \
         .help = "time without a message after which a host counts as lost"}, \
        {.name = "pin", \
         EPA_CHOICE(struct config, launcher.pin), \
         .choices = pin_choices, \
         .help = "cores of the ranks, of those that were assigned to them at the start"}, \
    { \
        .name = "prefix", EPA_BOOL(struct config, launcher.prefix), \
        .help = "prefix each line of a rank's standard error with its number" \
    }

struct launcher_params {
    struct epa_process_id process_id;
    /* Interface on which rank 0 listens; NULL: the address of `contact`, or any address without
     * contact. */
    const char *interface;
    /* Known contact data of the rendezvous. NULL: rank 0 listens at a free port and makes a token, and
     * meet() transfers both to the other ranks. */
    const struct launcher_contact *contact;
    /* Optional. Runs in the process of the rank before the rank. On rank 0 `contact` is input; on other
     * ranks meet() fills it with the same bytes. With meet() the process starts once and is kept for
     * all launches. It is killed if meet() does not return within start_ns. */
    enum epa_status (*meet)(void *arg, struct launcher_contact *contact, struct epa_error *);
    void (*leave)(void *arg); /* runs in the process before it ends; or NULL */
    void *arg;
};

struct launcher;

/* Sets the contact to an abstract UNIX socket for ranks of one host. Port and `job`, a hash of the job's
 * id, determine its name. The kernel authenticates the user of the other process. */
void launcher_meet_here(struct launcher_contact *contact, uint32_t job);

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

/* ---- rendezvous.c: connection point of the launchers of a job, in the poll loop of rank 0's launcher
 * ---- */

struct rendezvous;

/* `asked` is rank 0's launch; the rendezvous writes the blocks of other ranks to its block. The listener
 * is not owned; -1: no listener. All pointers must outlive the rendezvous. */
enum epa_status rendezvous_create(const struct epa_launch *asked, const struct launcher_settings *,
                                  const struct launcher_contact *, int listener,
                                  struct rendezvous **out, struct epa_error *);
void rendezvous_destroy(struct rendezvous *);

/* Adds rank 0's own connection, which does not use the listener. Takes ownership of the descriptor. */
void rendezvous_adopt(struct rendezvous *, int fd);

/* Closes the connections in a forked process. */
void rendezvous_close_inherited(const struct rendezvous *);

/* The caller polls the rendezvous_poll_room() entries that rendezvous_polls() fills, and passes them to
 * rendezvous_turn(). */
uint32_t rendezvous_poll_room(uint32_t ranks);
void rendezvous_polls(const struct rendezvous *, struct pollfd *out);
/* alone: no other rank can connect, so the rendezvous does not wait for them. */
void rendezvous_turn(struct rendezvous *, const struct pollfd *, bool alone);

/* Returns true if every reachable launcher has received the verdict. */
bool rendezvous_over(const struct rendezvous *);

/* ---- net.c: addresses of rank 0, listening and dialling ---- */

struct addrinfo;

/* Listens at the local name of `contact`, or at its address (or on `interface`) and port. Without
 * either, listens at a free port, on `interface` or on all, and fills `contact` with the addresses that
 * other hosts may reach and with a random token. */
enum epa_status net_listen(struct launcher_contact *contact, const char *interface, int *out,
                           struct epa_error *);

/* Accepts a connection and returns its origin ("": this host). Returns -1 without a connection, or for
 * another user at the local name. */
int net_accept(int listener, char *from, size_t room);

/* Returns true if all addresses of `name` are loopback addresses, which no other host can reach. Returns
 * false for an unknown name. */
bool net_is_loopback(const char *name);

/* Finds the interface of this host that a connection uses; "": unknown, or no route to another host.
 * `out` has IF_NAMESIZE bytes. */
void net_interface(int fd, char *out);

/* Dials the addresses of a contact cyclically until both sides have proved that they know the token. */
struct net_dial {
    const struct launcher_contact *contact;
    enum net_dial_state { NET_PAUSE, NET_CONNECTING, NET_GREETING, NET_PROVING } state;
    uint32_t at; /* index of the next address */
    struct addrinfo *list, *next;
    struct conn conn;
    struct conn_greet greet;
    uint64_t since_ns, again_ns;
    char name[80], why[256]; /* present address; reason of the last failure */
};

enum net_dialed {
    NET_TRYING,
    NET_PROVED,
    NET_REFUSED, /* final; `why` contains the reason */
};

/* `fd`: a connection to try first, or -1. */
void net_dial_init(struct net_dial *out, const struct launcher_contact *, int fd);
void net_dial_finish(struct net_dial *);

struct pollfd net_dial_poll(const struct net_dial *);

/* With NET_PROVED the caller owns the connection *out. */
enum net_dialed net_dial_turn(struct net_dial *, short revents, uint64_t now, struct conn *out);

#endif
