/* The process of one rank and its output, in the process that started it. */
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

/* Relay of a rank's output: writes each line with the rank's number, and drops lines if the reader of
 * standard error is stuck. */
enum { RELAY_LINE = 4096 };

struct relay {
    int from;    /* read end of a pipe, non-blocking, owned; -1: none */
    bool prefix; /* "[rank 3] " before each line; false: the relay writes bytes without lines */
    size_t head; /* bytes of the prefix at the start of `line` */
    size_t held; /* bytes of an incomplete line, behind the prefix */
    bool unread; /* the last line was dropped, since standard error had no room */
    char line[RELAY_LINE];
    const struct epa_launch
        *asked; /* the relay calls its poll_launch() before it writes; or NULL */
};

void relay_init(struct relay *out, int from, uint32_t rank, bool prefix);

/* Forwards the available bytes without waiting. Closes `from` at its end. */
void relay_turn(struct relay *);

/* Forwards the rest of the pipe and an incomplete line after the end of the writer. */
void relay_finish(struct relay *);

struct process {
    pid_t pid; /* 0: not started, or finished */
    int pidfd; /* -1: the kernel has no pidfd, so the caller polls process_ended() often */
    bool killed;
    struct relay relay; /* of standard error and output */
};

/* Initialises a process that has not started. */
void process_init(struct process *out);

/* Forks a child that exits with the result of run(arg); run() closes inherited descriptors. The child
 * dies with the calling process, has no input, and ignores the signals of the terminal. */
enum epa_status process_start(struct process *, uint32_t rank, bool prefix, int (*run)(void *arg),
                              void *arg, struct epa_error *);

/* Closes a descriptor unless it is -1. */
static inline void close_open(int fd)
{
    if (fd >= 0)
        close(fd);
}

void process_close_inherited(const struct process *); /* in a child: closes the parent's ends */

void process_kill(struct process *);

/* Returns true if the process has ended, with `code` as of waitpid(). If another thread or the kernel
 * has reaped it, `code` follows from its status `word`. pid and relay stay until process_finish(). */
bool process_ended(struct process *, enum epa_status word, int *code);

/* Waits up to `ms` for the end of the process, and then kills it. Returns true if it ended by itself. */
bool process_wait(struct process *, uint32_t ms);

/* Forwards the last lines and resets the struct to process_init(). */
void process_finish(struct process *);

/* Returns the exit code for a status. Shells show it; the launcher uses the status of the rank. */
int process_code(enum epa_status);

/* The rank of this process in a job, from the variables that mpirun, srun and torchrun set. */

struct process_job {
    struct epa_process_id process_id; /* size 0: no variables name a rank */
    bool mpi;                         /* mpirun has set the variables */
    uint32_t local_size;              /* number of ranks on this host; 0: unknown */
    bool hosts_unknown;               /* the variables do not tell if there are other hosts */
    char id[128];                     /* id of the job, identical on all ranks; "": unknown */
};

/* Returns a hash of `id`. */
uint32_t process_job_hash(const struct process_job *);

/* Reads the variables. A set of variables counts only if it is complete. EPA_ERR_CONFIG: a complete set
 * has invalid values. */
enum epa_status process_id_find(struct process_job *out, struct epa_error *);

/* The bootstrap channel between the ranks of one host: pages that all ranks map. With several hosts it
 * connects a rank with its launcher, which acts for the ranks of other hosts. */

/* Shared memory of the ranks. The launcher creates it before the first rank; forked processes and new
 * threads share it. */
struct control;

enum epa_status control_create(uint32_t ranks, struct control **out, struct epa_error *);
void control_destroy(struct control *);

/* Ends all waits of ranks. */
void control_abort(struct control *);
bool control_aborted(const struct control *);

/* Records the return of a rank; a rank that ends without this record has died. */
void control_return(struct control *, uint32_t rank, enum epa_status);

/* Returns true if `rank` has returned, and its status. */
bool control_returned(const struct control *, uint32_t rank, enum epa_status *out);

/* Resets the memory for the ranks of another launch. No rank may use it during the call. */
void control_reset(struct control *);

/* For ranks on several hosts: each rank has its own control, in which its launcher acts for all others.
 * A step is a barrier or a part of an allgather; the first is 1. control_step() returns true if the rank
 * has reached a step, and the rank's data. control_arrive() records that another rank has reached a step,
 * with its data. */
bool control_step(const struct control *, uint32_t rank, uint64_t step, const void **data,
                  size_t *bytes);
void control_arrive(struct control *, uint32_t rank, uint64_t step, const void *data, size_t bytes);

/* Time limit of a wait for an idle rank: a stopped or sleeping one. A rank that uses CPU time, for
 * example while it touches new memory, has one minute more, so that a short limit is valid on a busy
 * machine, too. Initialise limit_ns only. */
struct wait_limit {
    uint64_t limit_ns; /* 0: no limit */
    uint64_t polled_ns, start_ns, window_ns, cpu_ns;
    uint32_t rank;
    uint64_t waited_ns; /* time until the limit expired, without pauses */
};

/* Returns true if the limit has expired. A wait loop calls it periodically. */
bool wait_limit_expired(struct wait_limit *, const struct control *, uint32_t rank, uint64_t now);

/* Maximum bytes of a rank in one step. */
size_t bootstrap_slot_bytes(uint32_t ranks);

/* The bootstrap of one rank. Only this rank uses it, one thread at a time. */
struct bootstrap {
    struct epa_bootstrap base; /* first member, so that both pointers convert */
    struct control *control;
    uint64_t step;    /* number of barriers and parts of allgathers so far */
    uint32_t late;    /* missing rank of the last time-out */
    uint64_t late_ns; /* duration of this wait */
    int wake_fd;      /* an eventfd that this rank writes at a step or an abort; -1: none */
};

void bootstrap_init(struct bootstrap *out, struct control *, const struct epa_world *,
                    uint64_t timeout_ns);

/* Cores of this host, assignment of cores to the threads of ranks, and caches. */

enum pin { PIN_CORE, PIN_NONE };

extern const struct epa_choice pin_choices[]; /* for the option `pin` of launchers */

/* Cores that this process may use, in the order of assignment to ranks: one thread of each physical
 * core first, its SMT siblings last. */
struct pin_plan {
    int32_t *order; /* owned */
    uint32_t cores;
    enum pin pin;
    uint32_t ranks, threads; /* threads: per rank */
};

enum epa_status pin_plan_init(struct pin_plan *out, enum pin, uint32_t ranks, uint32_t threads,
                              struct epa_error *);
void pin_plan_finish(struct pin_plan *);

/* Returns the number n of cores of a rank; worker w runs on core[w % n]. A rank has `threads` exclusive
 * cores, fewer if cores are scarce, and one shared core with more ranks than cores. 0: no pinning. */
uint32_t pin_plan_rank(const struct pin_plan *, uint32_t rank, const int32_t **core);

/* Copies the affinity mask of the calling thread to `out` of 8 KiB. Returns the number of bytes up to
 * the last non-zero one. */
size_t pin_mask(unsigned char *out, size_t room);

/* Pins the calling thread to the first core of the world; sets world->cores to 0 after a failure. */
void pin_rank(struct epa_world *);

/* Sets the affinity of the calling thread to these cores. Returns false if the kernel rejects it; the
 * affinity is then unchanged. */
bool pin_self(const int32_t *core, uint32_t n);

/* Number of bytes that a core must write to replace the contents of its own caches: twice its L2,
 * rounded to lines. */
uint64_t cache_flush_bytes(void);

/* Nodes: ranks that share memory, and ranks that share cores. */

/* Texts that name the host of this process. Processes with the same `machine` run on one kernel and
 * its cores, with the same `network` they reach each other by the loopback interface, and with the
 * same `identity` they can map each other's memory. */
struct nodes_host {
    char name[72], machine[72], network[112], identity[320];
};
void nodes_host(struct nodes_host *out);

struct nodes_rank {
    const char *machine, *identity;
    const unsigned char *mask; /* affinity mask */
    size_t mask_bytes;
    /* Results. node and local_cores as in epa_world; shares: number of ranks with an identical mask;
     * share: index of this rank among them. */
    uint32_t node, local_cores, share, shares;
};

/* per_node: number of ranks of one host that form a node; 0: all ranks of the host. */
void nodes_find(struct nodes_rank *rank, uint32_t n, uint32_t per_node);

#endif
