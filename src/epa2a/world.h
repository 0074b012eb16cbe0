/* Who takes part, and the slow channel that exists before any transport does. */
#ifndef EPA2A_WORLD_H
#define EPA2A_WORLD_H

#include <epa2a/plugin.h>
#include <epa2a/wait.h>

struct epa_world {
    uint32_t rank, size;
    uint32_t local_rank, local_size; /* among the ranks of this node, in ascending rank */
    /* [size] The node of each rank, numbered in the order in which they first appear; ranks
     * of a node need not be contiguous. NULL: all are on one. Lives as long as the launch. */
    const uint32_t *node;
    /* Cores that the ranks of this node share. With more of their threads than cores, one
     * that waits must let another run. */
    uint32_t local_cores;
    /* Where the threads of this rank are pinned, worker w on core[w % cores]; cores 0: not
     * pinned. Lives as long as the launch. */
    const int32_t *core;
    uint32_t cores;
};

/* Whether memory can be shared with `peer`. */
static inline bool epa_same_node(const struct epa_world *w, uint32_t peer)
{
    return w->node == NULL || w->node[w->rank] == w->node[peer];
}

/* Given to each rank by the launcher. For set-up and reports, never for the data path. All
 * of its functions that wait return EPA_ERR_ABORTED once a rank has failed. */
struct epa_bootstrap {
    struct epa_world world;
    const uint32_t *aborted; /* not 0 once a rank has failed; every spin loop reads it */
    enum epa_status (*allgather)(struct epa_bootstrap *, const void *mine, size_t bytes,
                                 void *all);
    enum epa_status (*barrier)(struct epa_bootstrap *);
    void (*abort)(struct epa_bootstrap *); /* raises `aborted` on all ranks */
    /* Who was waited for when one of the above gave EPA_ERR_TIMEOUT; else says nothing. */
    void (*explain)(struct epa_bootstrap *, struct epa_error *);
    /* To be told of waits that take long; set by rank_main(), not by the launcher. NULL:
     * nobody looks. */
    struct epa_wait_observer *observer;
};

/* Relaxed: the flag itself is the message, nothing is read on the strength of it. */
static inline bool epa_aborted(const struct epa_bootstrap *boot)
{
    return __atomic_load_n(boot->aborted, __ATOMIC_RELAXED) != 0;
}

/* Why a launcher calls look(). */
enum epa_poll_reason {
    EPA_POLL,          /* time has passed */
    EPA_POLL_STOPPING, /* as above, once it has seen stop_fd */
    EPA_POLL_PRINTING,   /* it is about to write on standard error what a rank has said */
};

struct epa_launch {
    uint32_t ranks, ranks_per_node; /* ranks_per_node 0: all on one */
    uint32_t threads;               /* that a rank will run, itself included */
    int stop_fd;                    /* readable once the user wants to stop; -1: never */
    /* Called by the thread that launches, at least some times a second. True: the grace is over
     * now. May be NULL. */
    bool (*poll_launch)(void *poll_arg, enum epa_poll_reason);
    void *poll_arg;
    uint64_t grace_ns; /* that ranks have to return once `aborted` is up; then SIGKILL */
    /* The longest wait in the bootstrap, and that the last rank may return after the first;
     * 0: no limit. */
    uint64_t timeout_ns;
    /* `arg` and what it leads to are there before the first launch of this process, and are
     * only written in memory that forks share: a launcher may keep the process of a rank
     * from one launch to the next. */
    enum epa_status (*rank_main)(struct epa_bootstrap *, void *arg);
    void *arg;
    /* What ranks leave: rank r writes the block_bytes at block + r * block_bytes, memory that
     * forks share and that holds zeros before. Where ranks run on their own, launch() brings it all to rank 0's process. */
    char *block;
    size_t block_bytes;
    /* What every process of a launch must have alike, as text of several lines: who was
     * started with another is refused, and shown the first line that differs. */
    const char *fingerprint;
    uint32_t *failed_rank; /* out, with EPA_ERR_DIED: which rank; may be NULL */
    /* Out: ranks that did not return and could not be killed, being threads; whatever they
     * were given must stay as long as the process; may be NULL. */
    uint32_t *leaked_ranks;
};

/* Where this process stands among processes that somebody else has started. */
struct epa_process_id {
    uint32_t rank, size;
    uint32_t local_size; /* of them on this host, as they were told; 0: unknown */
    char source[160];       /* "Open MPI: OMPI_COMM_WORLD_RANK=3 of OMPI_COMM_WORLD_SIZE=16" */
};

/* Runs rank_main once for each rank: fork, thread and env (built in), mpi (a plugin). Returns
 * EPA_OK when all did, EPA_ERR_DIED when a rank was lost (err says which and how),
 * EPA_ERR_INTERRUPTED after stop_fd, else the status of the first rank that failed for a
 * reason of its own; why, that rank has recorded. Where each rank is a process of its own,
 * all of them call it and all get the same status, and that of rank 0 reports. */
struct epa_launcher_plugin {
    struct epa_plugin plugin;
    /* For launchers whose ranks somebody else has started (mpirun, srun, torchrun): which of
     * them this process is. NULL: the launcher starts all ranks itself. */
    enum epa_status (*process_id)(const void *config, struct epa_process_id *out, struct epa_error *);
    enum epa_status (*launch)(const void *config, const struct epa_launch *,
                              struct epa_error *);
};

#endif
