/* The ranks of a launch, and the bootstrap: the slow channel that exists before any transport. */
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
    /* Cores that the ranks of this node share. Where they have more threads than cores, a
     * thread that waits must yield. */
    uint32_t local_cores;
    /* Where the threads of this rank are pinned, worker w on core[w % cores]; cores 0: not
     * pinned. Lives as long as the launch. */
    const int32_t *core;
    uint32_t cores;
    /* The network interface of this host that leads to rank 0, on rank 0's host the one that others
     * came by; "": unknown; NULL: all ranks are on one host. A transport listens nowhere else,
     * unless its options say so. Lives as long as the launch. */
    const char *interface;
};

/* Whether this rank can share memory with `peer`. */
static inline bool epa_same_node(const struct epa_world *w, uint32_t peer)
{
    return w->node == NULL || w->node[w->rank] == w->node[peer];
}

/* The launcher gives one to each rank, for set-up and reports, never for the data path.
 * Functions that wait return EPA_ERR_ABORTED once a rank has failed. */
struct epa_bootstrap {
    struct epa_world world;
    const uint32_t *aborted; /* not 0 once a rank has failed; every spin loop reads it */
    uint64_t set_up_ns;      /* longest wait in set-up; 0: no limit */
    uint64_t timeout_ns;     /* of calls that are given no limit; set by rank_main(); 0: none */
    enum epa_status (*allgather)(struct epa_bootstrap *, const void *mine, size_t bytes, void *all);
    enum epa_status (*barrier)(struct epa_bootstrap *);
    void (*abort)(struct epa_bootstrap *); /* raises `aborted` on all ranks */
    /* After EPA_ERR_TIMEOUT of one of the above: which ranks were missing. Else adds nothing. */
    void (*explain)(struct epa_bootstrap *, struct epa_error *);
    /* Long waits are reported to it; set by rank_main(), not by the launcher. May be NULL. */
    struct epa_wait_observer *observer;
};

/* Relaxed: no other data is read because of the flag. */
static inline bool epa_aborted(const struct epa_bootstrap *boot)
{
    return __atomic_load_n(boot->aborted, __ATOMIC_RELAXED) != 0;
}

/* Why a launcher calls poll_launch(). */
enum epa_poll_reason {
    EPA_POLL,          /* periodically */
    EPA_POLL_STOPPING, /* periodically, after stop_fd became readable */
    EPA_POLL_PRINTING, /* before it forwards a rank's standard error */
};

struct epa_launch {
    uint32_t ranks, ranks_per_node; /* ranks_per_node 0: all on one */
    uint32_t threads;               /* that a rank will run, itself included */
    int stop_fd;                    /* readable once the user wants to stop; -1: never */
    /* Called by the launching thread several times a second. True ends the grace period at
     * once. May be NULL. */
    bool (*poll_launch)(void *poll_arg, enum epa_poll_reason);
    void *poll_arg;
    uint64_t grace_ns; /* grace period between `aborted` and SIGKILL */
    /* Longest wait in the bootstrap, and between the first and the last rank's return, for a rank
     * that does nothing. One of this host that uses its cores gets a minute more, one of
     * another host ten times as long to return. 0: no limit. */
    uint64_t timeout_ns;
    /* `arg` and all it refers to must exist before the first launch of this process, and may be
     * written only in shared memory: a launcher may keep a rank's process for later launches. */
    enum epa_status (*rank_main)(struct epa_bootstrap *, void *arg);
    void *arg;
    /* Results: rank r writes block_bytes at block + r * block_bytes, shared memory that is zero
     * before. Where ranks are processes of other hosts, launch() gathers it at rank 0. */
    char *block;
    size_t block_bytes;
    /* Launch fingerprint (text). Must be identical in all processes; a process that differs
     * is rejected and the first differing line is reported. */
    const char *fingerprint;
    uint32_t *failed_rank; /* out, with EPA_ERR_DIED: the rank that was lost; may be NULL */
    /* Out: threads of ranks that did not return and cannot be killed. What they were given
     * must stay valid as long as the process lives. May be NULL. */
    uint32_t *leaked_ranks;
};

/* Rank of this process among processes that mpirun, srun or torchrun started. */
struct epa_process_id {
    uint32_t rank, size;
    uint32_t local_size; /* of them on this host; 0: unknown */
    char source[160];    /* "Open MPI: OMPI_COMM_WORLD_RANK=3 of OMPI_COMM_WORLD_SIZE=16" */
};

/* Runs rank_main once per rank: fork, thread and env (built in), mpi (a plugin). Returns EPA_OK
 * if all ranks did, EPA_ERR_DIED if a rank was lost (err says which and how),
 * EPA_ERR_INTERRUPTED after stop_fd, else the status of the first rank that failed by itself,
 * which has recorded the reason. Where somebody else started the processes, all of them call
 * it, all get the same status, and rank 0's process reports. */
struct epa_launcher_plugin {
    struct epa_plugin plugin;
    /* For launchers whose processes somebody else started (mpirun, srun, torchrun): the rank
     * of this process. NULL: the launcher starts all ranks itself. */
    enum epa_status (*process_id)(const void *config, struct epa_process_id *out,
                                  struct epa_error *);
    enum epa_status (*launch)(const void *config, const struct epa_launch *, struct epa_error *);
};

#endif
