/* What the parts of the ucx transport share.
 *
 *   region.c   what UCX may use, and a rank's memory
 *   links.c    who is where: addresses, keys, endpoints, pointers
 *   waits.c    all that goes on until something has happened, and the helper thread
 *   ucx.c      the functions of the data path
 *   plugin.c   opening and the options; describe, explain, what UCX prints */
#ifndef UCX_H
#define UCX_H

#include <epa2a/transport.h>

#include <pthread.h>
#include <ucp/api/ucp.h>

#include "../../common/transport_wait.h"
#include "lanes.h"

enum { LINE = 64 };

enum progress_kind { PROGRESS_AUTO, PROGRESS_THREAD, PROGRESS_CALLS };

struct config {
    const char *tls, *devices;
    uint32_t outstanding;
    uint64_t default_timeout_ns;
    int progress; /* enum progress_kind */
    bool direct;
};

struct line {
    _Alignas(LINE) uint64_t word;
};

/* Layout of a rank's memory: one cache line for each rank, in which that rank counts its
 * barriers; the signals; the heap. Offsets are the same on all ranks, also where the heap was given
 * to open() and is elsewhere. */
struct region {
    ucp_mem_h mem, heap_mem; /* heap_mem: of a heap that was given, else NULL */
    char *base, *heap;
    uint64_t bytes, signals_at, heap_at;
    bool given, on_gpu; /* the heap */
};

struct ucx;

struct peer {
    struct ucx *ucx;
    ucp_ep_h ep;
    ucp_rkey_h rkey, heap_rkey;   /* heap_rkey: of a heap that was given */
    uint64_t remote, remote_heap; /* its region and heap, as its rank has them */
    char *map;                    /* its region, as this rank has it; NULL: reached by puts alone */
    ucs_status_t lost;            /* why it is known to be gone */
    bool unfenced;                /* something was started since the last fence */
    bool messages;                /* it gets messages of ours where UCX would send some itself */
    bool message_since_flush;
    struct lanes lanes;
    /* Additions that the peer executes may pass puts that its hardware executes, so that a
     * fence between the two must be a flush. */
    bool split, put_since_flush, added_since_flush;
};

/* Header of a message: its payload goes to `at`, then `value` to the signal. Offsets of the
 * receiver's region. */
struct message {
    uint64_t at, signal_at, value;
    uint64_t op; /* enum epa_signal_op + 1; 0: no signal */
};

/* The value of a signal, or the header of a message, under way: UCX may read it late. */
struct value {
    struct peer *peer;
    union {
        uint64_t value;
        struct message message;
    } u;
    struct value *next; /* free */
};

enum ucx_failed_at {
    FAILED_START = FAILED_OTHER, /* of a put or a signal */
    FAILED_LINK,
};

struct ucx {
    struct epa_transport base; /* first: a pointer to it is one to all of this */
    struct epa_bootstrap *boot;
    struct config config;
    uint32_t signals;
    uint64_t limit_ns; /* of waits that are given none */
    ucp_context_h context;
    ucp_worker_h worker;
    struct region region;
    struct peer *peer; /* [size] */
    char **peer_heap;
    bool watched;    /* UCX is to tell of peers that are gone */
    bool all_mapped; /* UCX has nothing to do after open */
    struct epa_wait_config wait;
    uint64_t idle_since_ns; /* since when progress finds nothing to do; 0: it did */
    uint64_t idle_until_ns; /* when it last returned without */
    uint64_t barriers;      /* begun by this rank */
    /* State of puts and signals, protected by `lock` if there is a helper thread. */
    uint32_t outstanding, started; /* started: since the last progress */
    bool unflushed;
    struct value *values, *free_value;
    bool closing;      /* peers may go */
    uint64_t lost_ns;  /* since when `lost` is */
    struct peer *lost; /* the first that is known to be gone; NULL: none is; atomic */
    struct failure failure;
    struct helper {
        bool on;
        pthread_t thread;
        uint32_t stop;
        uint64_t calls; /* in which this rank made progress itself */
    } helper;
    pthread_mutex_t lock;
};

static inline struct ucx *ucx_of(struct epa_transport *t)
{
    return (struct ucx *)t;
}

/* Keeps the helper out; recursive use is a mistake. */
static inline void ucx_lock(struct ucx *u)
{
    if (u->helper.on)
        pthread_mutex_lock(&u->lock);
}

static inline void ucx_unlock(struct ucx *u)
{
    if (u->helper.on)
        pthread_mutex_unlock(&u->lock);
}

/* Progresses started requests and arrivals; returns whether anything advanced. Under the lock. */
static inline bool ucx_progress(struct ucx *u)
{
    u->started = 0;
    u->helper.calls++;
    return ucp_worker_progress(u->worker) != 0;
}

/* The same for callers without the lock. */
static inline bool ucx_pump(struct ucx *u)
{
    bool moved;

    ucx_lock(u);
    moved = ucx_progress(u);
    ucx_unlock(u);
    return moved;
}

static inline uint32_t ucx_number_of(const struct ucx *u, const struct peer *peer)
{
    return (uint32_t)(peer - u->peer);
}

/* region.c. On failure what there is stays, for region_finish(). */
enum epa_status region_init(struct ucx *, const struct epa_transport_params *, struct epa_error *);
void region_finish(struct ucx *);

/* region.c: for the table of the plugin. */
enum epa_status region_takes(struct epa_bootstrap *, const void *config, enum epa_memory,
                             struct epa_error *);

/* region.c: UCX's settings of TCP segments, of the environment or ours; NULL: UCX decides. */
void region_segments(const char **send, const char **receive);
/* Whether each takes a message of ucx.c: else UCX would cut that, and put it together there. */
bool region_segments_are_long(void);

/* links.c: collective. On failure what there is stays, for links_finish(). */
enum epa_status links_init(struct ucx *, struct epa_error *);
void links_finish(struct ucx *);
/* Remembers that a peer is gone, under the lock. */
void links_lose(struct peer *, ucs_status_t);

/* waits.c: the helper. */
enum epa_status helper_start(struct ucx *, struct epa_error *);
void helper_stop(struct ucx *);

/* waits.c. `failure` says what is waited for; why in vain is kept in u->failure. */
enum epa_status wait_word(struct ucx *, const uint64_t *word, uint64_t timeout_ns,
                          struct failure failure);
enum epa_status wait_flushed(struct ucx *, uint64_t timeout_ns);
void wait_acknowledged(struct ucx *, uint64_t timeout_ns); /* by all peers that are left */
/* For the table. */
enum epa_status wait_barrier(struct epa_transport *, uint64_t timeout_ns);
enum epa_status wait_progress(struct epa_transport *);
/* For a request of UCX's own, on the way in or out; true: it is done. */
bool wait_request(struct ucx *, ucs_status_ptr_t request, uint64_t timeout_ns);

extern const struct epa_transport_ops ucx_ops; /* ucx.c */

/* ucx.c: a signal or a word of the region's own, at an offset of the region. EPA_AGAIN as
 * in the table. */
enum epa_status ucx_raise(struct ucx *, uint64_t at, uint64_t value, enum epa_signal_op,
                          uint32_t peer);

/* ucx.c: has the worker execute messages of peers. */
ucs_status_t ucx_take_messages(struct ucx *);
/* ucx.c: begins to wait for the messages to all peers; nothing is outstanding after it. */
void ucx_flush_messages(struct ucx *);

/* plugin.c: for the table. */
void ucx_describe(struct epa_transport *,
                  void (*say)(void *arg, const char *key, const char *value), void *arg);
void ucx_explain(struct epa_transport *, struct epa_error *);

/* plugin.c: UCX prints to standard error. While muted, its output is held back, because an
 * expected failure is reported elsewhere. */
void log_mute(bool mute);

#endif
