/* alltoallv: what its parts share. alltoallv.c: options, plan, set-up, calls of MPI that take time,
 * and the stages, in which rows are counted, packed and added up; alltoallv_messages.c and
 * alltoallv_shared.c: how rows and expert outputs travel.
 *
 * A row travels as token | scales (dispatch_dtype fp8) | origin, rounded up to lines of 64
 * bytes. */
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

/* Sizes that follow from the problem and the options alone. */
struct av_shape {
    uint32_t size, experts, local, max_tokens, topk, hidden, group;
    enum epa_dtype dtype; /* of tokens and expert outputs: EPA_BF16 or EPA_F16 */
    bool fp8, shared;
    size_t scales_at, origin_at, message_bytes, output_bytes;
    uint64_t choices; /* rows that a rank can send */
    uint64_t entries; /* rows that a rank has room for */
};

/* mode messages: what goes through MPI. [size] each, in rows; the way back of combine is
 * that of dispatch with out and in changed round. */
struct av_messages {
    int *rows_out, *at_out, *rows_in, *at_in;
    uint32_t *block; /* [size][local] where its first row is among rows by source */
    MPI_Request counting;
    MPI_Datatype message, output; /* a row, so that counts stay small */
    void *memory;                 /* what follows is in it */
    char *sent, *received;        /* rows by destination's expert; rows by source */
    char *grouped;                /* rows by expert: what experts read */
    char *y;                      /* expert outputs by expert: what they write */
    char *outputs_sent, *outputs_came;
};

/* mode shared: the window, of which every rank has mapped every part. */
struct av_shared {
    MPI_Comm node;
    MPI_Win window;
    bool locked;
    uint64_t meetings; /* so far */
    char **base;       /* [size] */
    size_t counts_at, rows_at, y_at, bytes;
};

struct av;

/* A mode. What fails has said why in a->h.last. */
struct av_way {
    /* From a->count: a->next, the place of this rank's first row for each expert. */
    enum epa_status (*place)(struct av *);
    /* Packed rows reach their experts: a->h.set[0] has their counts, and these get rows and room
     * for expert outputs. */
    enum epa_status (*deliver)(struct av *, const char **recv, char **y);
    /* Expert outputs reach a->from. */
    enum epa_status (*take_back)(struct av *, struct epa_moe *);
    /* Collective: all ranks set up, and free, together. */
    enum epa_status (*create)(struct av *, struct epa_error *);
    void (*destroy)(struct av *);
};

extern const struct av_way av_messages, av_shared;

struct av {
    struct algo_host h; /* its one set is that of the dispatch that is open */
    struct av_shape s;
    const struct av_way *way;
    MPI_Comm comm;       /* this algorithm's own, of all ranks in their order */
    bool failed;         /* calls of all ranks together may not return any more */
    bool pending;        /* MPI may still read and write what it was given */
    char *scratch;       /* [workers] messages, each a worker's own */
    int *count;          /* [experts] rows that I have for each */
    int *counts;         /* [size][local] rows that each rank has for mine */
    uint32_t *next;      /* [experts] the place of my next row for it */
    uint32_t *place;     /* [max_tokens][topk] */
    char **into, **from; /* [size] where rows go, where expert outputs come from; by rank */
    struct av_messages msg;
    struct av_shared shm;
};

static inline const int *av_counts_of(const struct av *a, uint32_t source)
{
    return a->counts + (size_t)source * a->s.local;
}

/* A wait that has a limit: it looks, now and then, whether a rank has failed and at the
 * time. The rest starts as 0. */
struct av_poll {
    const char *what; /* a call of MPI; or of `peer`, which has reached `seen` meetings */
    uint32_t looks, peer;
    uint64_t since_ns, reported_ns, seen;
};

/* To be called after each look that found nothing. EPA_ERR_TIMEOUT without a word. */
enum epa_status av_poll(struct av *, struct av_poll *);
double av_timeout_s(const struct av *);

/* MPI's error message for `call`. */
enum epa_status av_check(struct av *, const char *call, int code);

/* Runs fn on the workers: phase `name` of a trace. */
enum epa_status av_parallel(struct av *, const char *name, void (*fn)(void *, uint32_t, uint32_t),
                            void *arg);

/* Until `request`, of `call`, has ended. */
enum epa_status av_finish(struct av *, const char *call, MPI_Request *request);

/* A barrier of all ranks, which failures call `what`. */
enum epa_status av_barrier(struct av *, const char *what);

/* From a->counts: recv_start, recv_count. Returns how many rows there are. */
uint64_t av_lay_out(struct av *);

#endif
