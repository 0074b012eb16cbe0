/* The process of one rank and its output, seen from the one that started it. */
#ifndef PROCESS_H
#define PROCESS_H

#include <sys/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <epa2a/world.h>
#include <epa2a/plugin.h>
#include <epa2a/status.h>

/* What a rank prints, passed on line by line with its number. What nobody reads is dropped. */
enum { RELAY_LINE = 4096 };

struct relay {
    int from;    /* read end of a pipe, non-blocking, owned; -1: none */
    bool prefix; /* "[rank 3] " before each line; without, bytes are passed on as they are */
    size_t head; /* bytes of the prefix at the start of `line` */
    size_t held; /* bytes of a line that has no end yet, behind the prefix */
    bool unread; /* the last line was dropped, as nobody read those before */
    char line[RELAY_LINE];
    const struct epa_launch *asked; /* whose poll_launch() hears of what is written; NULL: none */
};

void relay_init(struct relay *out, int from, uint32_t rank, bool prefix);

/* Passes on what is there, without waiting. Closes `from` at its end. */
void relay_turn(struct relay *);

/* The writer is gone: all that it left in the pipe, and the line that it did not end. */
void relay_finish(struct relay *);

struct process {
    pid_t pid; /* 0: not started, or gone */
    int pidfd; /* -1: the kernel gave none, so process_ended() must be asked often */
    bool killed;
    struct relay relay; /* of its standard error and output */
};

/* For one that is not started yet. */
void process_init(struct process *out);

/* Forks; the child runs run(arg), which closes what is not its own, and leaves with what
 * that returns. It dies with the calling process, has no input, and ignores the signals of
 * the terminal. */
enum epa_status process_start(struct process *, uint32_t rank, bool prefix, int (*run)(void *arg),
                              void *arg, struct epa_error *);

/* -1: nothing. */
static inline void close_open(int fd)
{
    if (fd >= 0)
        close(fd);
}

void process_close_inherited(const struct process *); /* in a child: our ends of it */

void process_kill(struct process *);

/* Whether it is gone: `code` as of waitpid(), or what `word` means where somebody else
 * has reaped it. Its pid and last lines stay until process_finish(). */
bool process_ended(struct process *, enum epa_status word, int *code);

/* Waits so long for it to leave, and then kills it. Whether it left by itself. */
bool process_wait(struct process *, uint32_t ms);

/* Passes on its last lines; it is as if it had never been started. */
void process_finish(struct process *);

/* What its exit code is to be: a shell shows it; the launcher goes by the last word. */
int process_code(enum epa_status);

/* Which rank of a job this process is, by the variables that mpirun, srun and torchrun set. */

struct process_job {
    struct epa_process_id process_id; /* size 0: this process is not one of several */
    bool mpi;                         /* the variables are those of an MPI's own mpirun */
    uint32_t local_size;              /* ranks on this host; 0: the variables do not say */
    bool hosts_unknown;               /* nor whether there are others */
    char id[128];                     /* of the job, alike on all its ranks; "": unknown */
};

/* Of `id`. */
uint32_t process_job_hash(const struct process_job *);

/* Never guesses: a set of variables counts when all of it is there. EPA_ERR_CONFIG: it is
 * there and makes no sense. */
enum epa_status process_id_find(struct process_job *out, struct epa_error *);

/* The slow channel between the ranks of one host: a page range that all of them map; and, where
 * there are more hosts, between a rank and the launcher that acts for the others. */

/* What the ranks share. Made by the launcher before the first of them exists; processes
 * that are forked and threads that are started from then on see the same words. */
struct control;

enum epa_status control_create(uint32_t ranks, struct control **out, struct epa_error *);
void control_destroy(struct control *);

/* Makes all ranks leave whatever they wait in. */
void control_abort(struct control *);
bool control_aborted(const struct control *);

/* A rank's last word; a rank that ends without one has died. */
void control_return(struct control *, uint32_t rank, enum epa_status);

/* Whether `rank` has given its last word, and what it was. */
bool control_returned(const struct control *, uint32_t rank, enum epa_status *out);

/* As it was made, for other ranks to use it; none does at the moment. */
void control_reset(struct control *);

/* Where ranks are on several hosts, each has a control of its own, in which its launcher acts
 * for all others: whether the rank has reached that step (a barrier or a part of an allgather,
 * the first is 1) and what it brings; and that another has. Without data it has arrived, and
 * its data must follow before the last rank does. */
bool control_step(const struct control *, uint32_t rank, uint64_t step, const void **data,
                  size_t *bytes);
void control_arrive(struct control *, uint32_t rank, uint64_t step, const void *data, size_t bytes);

/* How long a rank is waited for that does nothing: one that is stopped, or sleeps in vain. One that
 * uses a core, as in memory that it touches for the first time, is given a minute more, so that a
 * short limit holds on a machine with other work, too. Begins with limit_ns alone. */
struct wait_limit {
    uint64_t limit_ns; /* 0: for ever */
    uint64_t polled_ns, start_ns, window_ns, cpu_ns;
    uint32_t rank;
};

/* To be called now and then; whether the rank has been waited for in vain. */
bool wait_limit_expired(struct wait_limit *, const struct control *, uint32_t rank, uint64_t now);

/* That each of so many ranks can bring to one step. */
size_t bootstrap_slot_bytes(uint32_t ranks);

/* One rank's end. Only the rank that it was made for uses it, one thread at a time. */
struct bootstrap {
    struct epa_bootstrap base; /* first: a pointer to it is one to all of this */
    struct control *control;
    uint64_t step; /* barriers and parts of allgathers so far */
    uint32_t late; /* the rank that the last timeout waited for */
    int wake_fd;   /* an eventfd, written when this rank reaches a step or aborts; -1: none */
};

void bootstrap_init(struct bootstrap *out, struct control *, const struct epa_world *,
                    uint64_t timeout_ns);

/* Cores of this host, which of them a rank's threads run on, and their caches. */

enum pin { PIN_CORE, PIN_NONE };

extern const struct epa_choice pin_choices[]; /* for the option `pin` of launchers */

/* The cores that this process may use, in the order in which ranks take them: one of each
 * physical core first, its SMT siblings last. */
struct pin_plan {
    int32_t *order; /* owned */
    uint32_t cores;
    enum pin pin;
    uint32_t ranks, threads; /* of a rank */
};

enum epa_status pin_plan_init(struct pin_plan *out, enum pin, uint32_t ranks, uint32_t threads,
                              struct epa_error *);
void pin_plan_finish(struct pin_plan *);

/* The cores of one rank, worker w on core[w % n]: `threads` of its own where there are
 * enough, else fewer; with more ranks than cores, one that it shares. Returns n; 0: none. */
uint32_t pin_plan_rank(const struct pin_plan *, uint32_t rank, const int32_t **core);

/* The cores that the calling thread may use, a bit each, of which `room` is 8 KiB; returns how many
 * bytes have one. */
size_t pin_mask(unsigned char *out, size_t room);

/* Binds the calling thread as the world says; world->cores is 0 where that fails. */
void pin_rank(struct epa_world *);

/* Binds the calling thread to all of these. False: the kernel would not, and it runs where it
 * ran. */
bool pin_self(const int32_t *core, uint32_t n);

/* Bytes that a core writes to have its own caches hold nothing else: twice its L2, in lines. */
uint64_t cache_flush_bytes(void);

/* Which ranks share memory, and which share cores. */

/* Texts that name the host of this process. Processes with the same `machine` run on one kernel and
 * its cores, with the same `network` they reach each other by the loopback interface, and with the
 * same `identity` they can map each other's memory. */
struct nodes_host {
    char name[72], machine[72], network[112], identity[320];
};
void nodes_host(struct nodes_host *out);

struct nodes_rank {
    const char *machine, *identity;
    const unsigned char *mask; /* cores that it may use, a bit each */
    size_t mask_bytes;
    /* Out: as in epa_world; and the ranks that may use the very same cores: which of how
     * many this one is. */
    uint32_t node, local_cores, share, shares;
};

/* per_node: ranks of one host that count as one node; 0: all. */
void nodes_find(struct nodes_rank *rank, uint32_t n, uint32_t per_node);

#endif
