/* The ranks of a launch, and the bootstrap: the slow channel that exists before any transport. */
#ifndef EPA2A_WORLD_H
#define EPA2A_WORLD_H

#include <epa2a/plugin.h>
#include <epa2a/wait.h>

struct epa_world {
    uint32_t rank, size;
    uint32_t local_rank, local_size; /* among the ranks of this node, in ascending rank */
    /* [size] Node of each rank. Nodes are numbered by first appearance; the ranks of a node need
     * not be contiguous. NULL: all ranks are on one node. Lives as long as the launch. */
    const uint32_t *node;
    /* Number of cores that the ranks of this node share. If the ranks have more threads than cores,
     * a waiting thread must yield. */
    uint32_t local_cores;
    /* Cores of the threads of this rank: worker w is pinned to core[w % cores]. cores 0: threads
     * are not pinned. Lives as long as the launch. */
    const int32_t *core;
    uint32_t cores;
    /* Network interface of this host on the route to rank 0. On rank 0's host: the interface
     * through which other ranks connected. "": unknown. NULL: all ranks are on one host. A
     * transport listens on this interface only, unless its options name others. Lives as long as
     * the launch. */
    const char *interface;
};

/* Returns true if this rank can share memory with `peer`. */
static inline bool epa_same_node(const struct epa_world *w, uint32_t peer)
{
    return w->node == NULL || w->node[w->rank] == w->node[peer];
}

/* Set-up channel of a rank, provided by the launcher. Only set-up and reports use it, never the
 * data path. Functions that wait return EPA_ERR_ABORTED once a rank has failed. */
struct epa_bootstrap {
    struct epa_world world;
    const uint32_t *aborted; /* not 0 once a rank has failed; each spin loop reads it */
    uint64_t set_up_ns;      /* longest wait during set-up; 0: no limit */
    /* Limit of calls without a limit of their own; set by rank_main(); 0: none. */
    uint64_t timeout_ns;
    enum epa_status (*allgather)(struct epa_bootstrap *, const void *mine, size_t bytes, void *all);
    enum epa_status (*barrier)(struct epa_bootstrap *);
    void (*abort)(struct epa_bootstrap *); /* raises `aborted` on all ranks */
    /* After EPA_ERR_TIMEOUT of a function above: adds the missing ranks to the message. Otherwise
     * adds nothing. */
    void (*explain)(struct epa_bootstrap *, struct epa_error *);
    /* Receives reports of long waits; set by rank_main(), not by the launcher. May be NULL. */
    struct epa_wait_observer *observer;
};

/* Relaxed: no other data depend on the flag. */
static inline bool epa_aborted(const struct epa_bootstrap *boot)
{
    return __atomic_load_n(boot->aborted, __ATOMIC_RELAXED) != 0;
}

/* Reason of a call of poll_launch(). */
enum epa_poll_reason {
    EPA_POLL,          /* periodically */
    EPA_POLL_STOPPING, /* periodically, after stop_fd became readable */
    EPA_POLL_PRINTING, /* before it forwards a rank's standard error */
};

struct epa_launch {
    uint32_t ranks, ranks_per_node; /* ranks_per_node 0: all on one node */
    uint32_t threads;               /* threads of a rank, its main thread included */
    int stop_fd;                    /* readable once the user stops the run; -1: never */
    /* The launching thread calls this function several times a second. true ends the grace period
     * at once. May be NULL. */
    bool (*poll_launch)(void *poll_arg, enum epa_poll_reason);
    void *poll_arg;
    uint64_t grace_ns; /* time between `aborted` and SIGKILL */
    /* Longest wait of an idle rank in the bootstrap, and longest time between the return of the
     * first rank and the return of the last. A rank of this host that uses CPU time has one more
     * minute. A rank of another host has ten times as long to return. 0: no limit. */
    uint64_t timeout_ns;
    /* `arg` and all memory that it refers to must exist before the first launch of this process,
     * and must be written only if shared: a launcher may keep the process of a rank for later
     * launches. */
    enum epa_status (*rank_main)(struct epa_bootstrap *, void *arg);
    void *arg;
    /* Results: rank r writes block_bytes at block + r * block_bytes. The memory is shared and
     * initially zero. If ranks are processes of other hosts, launch() gathers the block at rank
     * 0. */
    char *block;
    size_t block_bytes;
    /* File that contains `block` at offset block_at. A launcher reads the results of a killed rank
     * of its host from the file of the rank. block_at 0: no file. */
    int block_file;
    uint64_t block_at;
    /* Launch fingerprint (text). The launch rejects a process with a different fingerprint and
     * reports the first differing line. */
    const char *fingerprint;
    uint32_t *failed_rank; /* out, with EPA_ERR_DIED: the lost rank; may be NULL */
    /* Out: number of rank threads that did not return and cannot be killed. Their arguments must
     * stay valid until the process ends. May be NULL. */
    uint32_t *leaked_ranks;
};

/* Rank of this process among the processes that mpirun, srun or torchrun started. */
struct epa_process_id {
    uint32_t rank, size;
    uint32_t local_size; /* ranks on this host; 0: unknown */
    char source[160];    /* "Open MPI: OMPI_COMM_WORLD_RANK=3 of OMPI_COMM_WORLD_SIZE=16" */
};

/* Runs rank_main once for each rank: fork, thread and env (built in), mpi (a plugin). Returns
 * EPA_OK if rank_main returned EPA_OK on all ranks, EPA_ERR_DIED if a rank was lost (err names the
 * rank and the cause), EPA_ERR_INTERRUPTED after stop_fd, else the status of the first rank that
 * failed by itself; this rank has recorded the reason. If an external launcher started the
 * processes, each process calls launch(), each receives the same status, and the process of rank 0
 * reports. */
struct epa_launcher_plugin {
    struct epa_plugin plugin;
    /* For launchers whose processes were started externally (mpirun, srun, torchrun): returns the
     * rank of this process. NULL: the launcher starts all ranks itself. */
    enum epa_status (*process_id)(const void *config, struct epa_process_id *out,
                                  struct epa_error *);
    enum epa_status (*launch)(const void *config, const struct epa_launch *, struct epa_error *);
};

#endif
