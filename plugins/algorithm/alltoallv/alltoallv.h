/* Shared declarations of alltoallv. alltoallv.c contains options, plan, set-up, blocking calls of MPI,
 * and the stages, which count, pack and add up rows. alltoallv_messages.c and alltoallv_shared.c move
 * rows and expert outputs between ranks.
 *
 * A row in flight is token | scales (dispatch_dtype fp8) | origin, rounded up to lines of 64 bytes. */
#ifndef ALLTOALLV_H
#define ALLTOALLV_H

#include <mpi.h>

#include "../../common/algo_host.h"

enum av_mode { AV_MESSAGES, AV_SHARED };
enum { AV_HUGE_PAGE = 2 << 20, AV_TOPK = 64 };

struct av_config {
    int mode;           /* enum av_mode */
    int dispatch_dtype; /* enum algo_dtype */
    int nontemporal;    /* enum epa_store */
    double capacity;
};

/* Sizes that follow from the problem and the options. */
struct av_shape {
    uint32_t size, experts, local, max_tokens, topk, hidden, group;
    enum epa_dtype dtype; /* type of tokens and expert outputs: EPA_BF16 or EPA_F16 */
    bool fp8, shared;
    size_t scales_at, origin_at, message_bytes, output_bytes;
    uint64_t choices; /* maximum of rows that a rank sends */
    uint64_t entries; /* capacity of a rank in rows */
};

/* mode messages: arguments of MPI_Alltoallv. Arrays have [size] entries in rows. Combine swaps `out`
 * and `in` of dispatch. */
struct av_messages {
    int *rows_out, *at_out, *rows_in, *at_in;
    uint32_t *block; /* [size][local]: index of the first row among rows by source */
    MPI_Request counting;
    MPI_Datatype message, output; /* one row each, so that counts stay small */
    void *memory;                 /* memory of the following buffers */
    char *sent, *received;        /* rows by destination's expert; rows by source */
    char *grouped;                /* rows by expert, which experts read */
    char *y;                      /* expert outputs by expert, which experts write */
    char *outputs_sent, *outputs_received;
};

/* mode shared: the window, all parts of which every rank has mapped. */
struct av_shared {
    MPI_Comm node;
    MPI_Win window;
    bool locked;
    uint64_t meetings; /* number of barriers so far */
    char **base;       /* [size] */
    size_t counts_at, rows_at, y_at, bytes;
};

struct av;

/* Functions of a mode. A failing function stores its error in a->h.last. */
struct av_way {
    /* Computes a->next, the place of this rank's first row for each expert, from a->count. */
    enum epa_status (*place)(struct av *);
    /* Delivers packed rows to the experts' ranks. Stores the counts in a->h.set[0], and returns the
     * received rows and the buffer for expert outputs. */
    enum epa_status (*deliver)(struct av *, const char **recv, char **y);
    /* Returns expert outputs to a->from. */
    enum epa_status (*take_back)(struct av *, struct epa_moe *);
    /* Collective set-up and teardown. */
    enum epa_status (*create)(struct av *, struct epa_error *);
    void (*destroy)(struct av *);
};

extern const struct av_way av_messages, av_shared;

struct av {
    struct algo_host h; /* its single set belongs to the open dispatch */
    struct av_shape s;
    const struct av_way *way;
    MPI_Comm comm;       /* communicator of this algorithm, with all ranks in order */
    bool failed;         /* collective calls may no longer return */
    bool pending;        /* MPI may still access the buffers of a call */
    char *scratch;       /* [workers]: one message per worker */
    int *count;          /* [experts]: rows of this rank for each expert */
    int *counts;         /* [size][local]: rows of each rank for the local experts */
    uint32_t *next;      /* [experts]: place of this rank's next row for the expert */
    uint32_t *place;     /* [max_tokens][topk] */
    char **into, **from; /* [size]: targets of rows; sources of expert outputs */
    struct av_messages msg;
    struct av_shared shm;
};

static inline const int *av_counts_of(const struct av *a, uint32_t source)
{
    return a->counts + (size_t)source * a->s.local;
}

/* A wait with a time limit, which checks for failed ranks from time to time. Members after `peer`
 * start as 0. */
struct av_poll {
    const char *what; /* name of the MPI call, or of a barrier that `peer` has not reached */
    uint32_t looks, peer;
    uint64_t since_ns, waited_ns, reported_ns, seen;
};

/* Called after each unsuccessful poll. Returns EPA_ERR_TIMEOUT without a message. */
enum epa_status av_poll(struct av *, struct av_poll *);
double av_timeout_s(const struct av *);

/* Stores MPI's error message for `call` if code is not MPI_SUCCESS. */
enum epa_status av_check(struct av *, const char *call, int code);

/* Runs fn on the workers, as phase `name` of a trace. */
enum epa_status av_parallel(struct av *, const char *name, void (*fn)(void *, uint32_t, uint32_t),
                            void *arg);

/* Waits for `request` of `call`. */
enum epa_status av_finish(struct av *, const char *call, MPI_Request *request);

/* A barrier of all ranks; errors name it `what`. */
enum epa_status av_barrier(struct av *, const char *what);

/* Computes recv_start and recv_count from a->counts. Returns the number of rows. */
uint64_t av_lay_out(struct av *);

#endif
