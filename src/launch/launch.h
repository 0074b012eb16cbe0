/* One launch, as the process sees it that watches over its ranks: how they run, and how it ends. */
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
    bool live; /* started, and has neither returned nor ended */
    struct process process;
    pthread_t thread;
};

struct launch {
    struct epa_launch asked;
    bool threads, prefix;
    bool kept;          /* a launcher's process, which runs later launches, too: it is to live on */
    bool meeting;       /* and has not met the others yet: who fails has no grace period */
    bool launcher_over; /* the launcher has its verdict */
    int pause_ms;       /* of a poll in which nothing happens; 0: until something is due */
    const char *host;   /* to name ranks by; NULL: there is one */
    struct launcher *launcher; /* to ranks of other processes; NULL: there are none */
    struct control *control;   /* owned where there is no launcher */
    uint32_t *node;            /* as in epa_world; NULL: there is one */
    struct pin_plan pins;
    struct launch_rank *rank; /* [n], of this process */
    uint32_t n, live;
    struct conn_word failure; /* what went wrong here first, for a reason of its own */
    struct conn_word death;   /* of a rank here; status 0: none died */
    uint64_t failed_ns;       /* when that was */
    bool abort_known;         /* to the launcher */
    int stop_fd;              /* -1: no more */
    bool stopping;            /* because it could be read */
    int wake;                 /* an eventfd that ranks write; -1: none */
    uint64_t first_ns;        /* when the first rank returned; 0: none has */
    struct wait_limit last;   /* with those that have not */
    uint64_t polled_ns;       /* the last look at the clock; 0: none yet */
    uint64_t grace_end_ns;    /* when who has not returned is given up; 0: nobody failed yet */
    bool grace_over;
    struct pollfd *poll;
    uint32_t users; /* threads that may still use this, the launching one included */
};

/* Of `ranks` ranks from `first` on in this process; room to poll `more` descriptors. */
struct launch *launch_create(const struct epa_launch *, uint32_t first, uint32_t ranks,
                             uint32_t more);
void launch_release(struct launch *);

/* Starts a process that runs run(rank). Says why not by launch_fail(). */
bool launch_start_process(struct launch_rank *, int (*run)(void *rank));

static inline void launch_set_live(struct launch_rank *rank, bool live)
{
    rank->launch->live += (uint32_t)live - (uint32_t)rank->live;
    rank->live = live;
}

/* In the process or thread of a rank: pins it, runs it and records what it returned. */
enum epa_status launch_run_rank(struct launch *, struct epa_world *, int wake);

/* local_rank and local_size, which are 0, of a world that knows its nodes. */
void launch_find_neighbours(struct epa_world *);

/* A signal that stopped one rank stops all: each is to end as if it had received the same signal,
 * where signals are looked for. */
void launch_share_signal(uint32_t number);

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
/* Whether the launch has its verdict, here and wherever else it is waited for. */
bool launcher_turn(struct launcher *, const struct pollfd *);

/* One rank of several that mpirun, srun, torchrun or a script has started, each by itself: what the
 * launchers env and mpi share, a library of its own.
 *
 * This process becomes the launcher of its rank: it forks the rank's process and watches over it,
 * so that it is known how a rank died. Launchers connect to a rendezvous in that of rank 0, which
 * forwards the steps of the set-up, learns of every death, and sends all how the launch ended. */

enum { LAUNCHER_TOKEN = 64, LAUNCHER_ADDRESSES = 8, LAUNCHER_ADDRESS = 256 };

/* How the rendezvous is reached. No pointers: its bytes may be sent to other hosts. */
struct launcher_contact {
    char token[LAUNCHER_TOKEN + 1]; /* the secret of a job */
    char local[64]; /* an abstract unix socket, for ranks of this host and user; "": addresses */
    char address[LAUNCHER_ADDRESSES]
                [LAUNCHER_ADDRESS]; /* numbers or names, tried in turn; "": end */
    uint32_t port;
    char job[CONN_JOB]; /* names the job, as the variables of its scheduler do; "": unknown */
};

/* Options of a launcher that are the same for all of them. */
struct launcher_settings {
    int pin;               /* enum pin */
    bool prefix;           /* "[rank 3] " before each line of the rank's standard error */
    uint64_t start_ns;     /* for all ranks to connect */
    uint64_t heartbeat_ns; /* silence after which a launcher counts as lost */
};

#define LAUNCHER_DEFAULTS \
    { \
        .pin = PIN_CORE, .prefix = true, .start_ns = 60000000000, .heartbeat_ns = 5000000000 \
    }

/* The rows of these options, where they are the member `launcher` of a struct config. */
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
    /* Of this host, where rank 0 listens; NULL: at the address that contact names, or at
     * any where there is no contact. */
    const char *interface;
    /* Where the rendezvous is, with meet() or without; NULL: rank 0 listens at a port that is free,
     * makes a token, and meet() takes both to the others. */
    const struct launcher_contact *contact;
    /* In the process of the rank, before it runs anything. On rank 0 `contact` is filled,
     * on others it is to be filled with the same bytes. Where it is given, that process is
     * started once and kept: it runs the ranks of all launches. It is killed if meet() has not
     * returned after start_ns. */
    enum epa_status (*meet)(void *arg, struct launcher_contact *contact, struct epa_error *);
    void (*leave)(void *arg); /* in that process, before it ends; may be NULL */
    void *arg;
};

struct launcher;

/* For ranks of one host: an abstract socket, named by contact->port and what only this job has
 * (`job`), where the kernel reports the user of the other process. */
void launcher_meet_here(struct launcher_contact *contact, uint32_t job);

/* Rank 0 listens from here on. No process is started. */
enum epa_status launcher_create(const struct launcher_params *, struct launcher **out,
                                struct epa_error *);

/* As launch() of epa_launcher_plugin; `asked` is the same on all ranks but for what `arg` and
 * `block` point to. One launch at a time. What rank 0 can say for all only its `err` and
 * `failed_rank` say. One that keeps its process and has lost it refuses further launches, on all
 * ranks. */
enum epa_status launcher_launch(struct launcher *, const struct launcher_settings *,
                                const struct epa_launch *asked, struct epa_error *);

/* Ends the process that was kept: leave() has a second for it. Then, rank 0 aside, waits
 * some seconds for rank 0 to do the same, which has reported then: who started
 * us may kill all once one has left with an error. NULL is good. */
void launcher_destroy(struct launcher *);

/* ---- rendezvous.c: where the launchers of a job connect: in that of rank 0, within its poll loop
 * ---- */

struct rendezvous;

/* `asked` is rank 0's: its block is filled with those of others. The listener is not owned; -1:
 * there is none. What is pointed to must outlive it. */
enum epa_status rendezvous_create(const struct epa_launch *asked, const struct launcher_settings *,
                                  const struct launcher_contact *, int listener,
                                  struct rendezvous **out, struct epa_error *);
void rendezvous_destroy(struct rendezvous *);

/* A connection that did not arrive at the listener: rank 0's own. Takes the descriptor. */
void rendezvous_adopt(struct rendezvous *, int fd);

/* In a process that was forked: closes its copies of the connections. */
void rendezvous_close_inherited(const struct rendezvous *);

/* What it looks at, of so many ranks always as many; poll() in between. */
uint32_t rendezvous_poll_room(uint32_t ranks);
void rendezvous_polls(const struct rendezvous *, struct pollfd *out);
/* alone: nobody else is about to connect, and is waited for. */
void rendezvous_turn(struct rendezvous *, const struct pollfd *, bool alone);

/* The verdict has reached every launcher that can be reached. */
bool rendezvous_over(const struct rendezvous *);

/* ---- net.c: addresses, where rank 0 listens and how the others get to it ---- */

struct addrinfo;

/* Listens where `contact` says: at its local name, at its address (or on `interface`) and port,
 * or, where it names none, at a port that is free, on `interface` or everywhere; then fills it
 * with all addresses that others may reach, and with a token that is random. */
enum epa_status net_listen(struct launcher_contact *contact, const char *interface, int *out,
                           struct epa_error *);

/* A new connection, and from where ("": this host); -1: nobody, or another user at our
 * local name. */
int net_accept(int listener, char *from, size_t room);

/* Whether all that `name` means here is this host itself and no other can reach. False where
 * it means nothing. */
bool net_is_loopback(const char *name);

/* The interface of this host that a connection leaves by; "": none that leads to another host, or
 * it is not known. `out` has IF_NAMESIZE bytes. */
void net_interface(int fd, char *out);

/* Tries the addresses of a contact in turn, again and again, until one proves to know
 * the token, as it is proved to it. */
struct net_dial {
    const struct launcher_contact *contact;
    enum net_dial_state { NET_PAUSE, NET_CONNECTING, NET_GREETING, NET_PROVING } state;
    uint32_t at; /* the address whose turn is next */
    struct addrinfo *list, *next;
    struct conn conn;
    struct conn_greet greet;
    uint64_t since_ns, again_ns;
    char name[80], why[256]; /* who is tried; why the last attempt failed */
};

enum net_dialed {
    NET_TRYING,
    NET_PROVED,
    NET_REFUSED, /* and it makes no sense to try again: `why` */
};

/* `fd` is a connection to try first, or -1. */
void net_dial_init(struct net_dial *out, const struct launcher_contact *, int fd);
void net_dial_finish(struct net_dial *);

struct pollfd net_dial_poll(const struct net_dial *);

/* With NET_PROVED the connection is the caller's. */
enum net_dialed net_dial_turn(struct net_dial *, short revents, uint64_t now, struct conn *out);

#endif
