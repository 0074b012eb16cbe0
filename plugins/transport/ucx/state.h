/* Data of the ucx transport.
 *
 *   resources.c  threads, file descriptors and ports that UCX needs
 *   region.c     UCX's configuration, and the memory of a rank
 *   links.c      addresses, keys, endpoints and pointers of peers
 *   messages.c   messages of peers; messages.h: requests to UCX
 *   raise.c      signals to peers
 *   waits.c      waits, and the helper thread
 *   barrier.c    the barrier of all ranks
 *   ucx.c        the functions of the data path
 *   describe.c   descriptions and explanations
 *   log.c        UCX's log messages
 *   plugin.c     options and open() */
#ifndef UCX_STATE_H
#define UCX_STATE_H

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

/* Layout of a rank's memory: one cache line per rank, in which that rank counts its barriers; then
 * the signals; then the heap. Offsets are the same on all ranks, even if the caller of open()
 * allocated the heap elsewhere. */
struct region {
    ucp_mem_h mem, heap_mem; /* heap_mem: a heap of the caller, or NULL */
    char *base, *heap;
    uint64_t bytes, signals_at, heap_at;
    bool given, on_gpu; /* the caller allocated the heap; the heap is GPU memory */
};

struct ucx;

struct peer {
    struct ucx *ucx;
    ucp_ep_h ep;
    ucp_rkey_h rkey, heap_rkey;   /* heap_rkey: key of a heap of the caller */
    uint64_t remote, remote_heap; /* addresses of its region and heap in its own process */
    char *map;                    /* its region in this process; NULL: only puts reach it */
    ucs_status_t lost;            /* UCX's reason for the loss of the peer; UCS_OK: alive */
    bool unfenced;                /* an operation was started since the last fence */
    bool messages;                /* messages of ucx.c replace the messages of UCX */
    bool message_since_flush;
    struct lanes lanes;
    /* split: the peer's CPU executes additions and its hardware executes puts. An addition may
     * overtake a put, so a fence between the two must be a flush. */
    bool split, put_since_flush, added_since_flush;
};

/* Header of a message: the receiver stores the payload at `at`, then applies `value` to the signal.
 * Both are offsets of the receiver's region. */
struct message {
    uint64_t at, signal_at, value;
    uint64_t op; /* enum epa_signal_op + 1; 0: no signal */
};

/* The value of a signal or the header of a message in flight: UCX may read it until completion. */
struct value {
    struct peer *peer;
    union {
        uint64_t value;
        struct message message;
    } u;
    struct value *next; /* list of free values */
};

enum ucx_failed_at {
    FAILED_START = FAILED_OTHER, /* UCX could not start a put or a signal */
    FAILED_LINK,
};

struct ucx {
    struct epa_transport base; /* first member: ucx_of() casts the pointer back */
    struct epa_bootstrap *boot;
    struct config config;
    uint32_t signals;
    uint64_t limit_ns; /* time limit of waits without an own limit */
    ucp_context_h context;
    ucp_worker_h worker;
    struct region region;
    struct peer *peer; /* [size] */
    char **peer_heap;
    bool watched;    /* endpoints report dead peers */
    bool all_mapped; /* stores reach all peers: UCX is idle after open */
    struct epa_wait_config wait;
    uint64_t idle_since_ns; /* start of the time without progress; 0: the last call progressed */
    uint64_t idle_until_ns; /* time of the last call without progress */
    uint64_t barriers;      /* number of barriers that this rank has entered */
    /* State of puts and signals. `lock` guards it if there is a helper thread. */
    uint32_t outstanding, started; /* started: since the last progress */
    bool unflushed;
    struct value *values, *free_value;
    bool closing;      /* the rank is closing: peers may leave */
    uint64_t lost_ns;  /* time at which `lost` was set */
    struct peer *lost; /* the first lost peer, or NULL; atomic */
    struct failure failure;
    struct helper {
        bool on;
        pthread_t thread;
        uint32_t stop;
        uint64_t calls; /* number of calls in which the rank itself made progress */
    } helper;
    pthread_mutex_t lock;
};

static inline struct ucx *ucx_of(struct epa_transport *t)
{
    return (struct ucx *)t;
}

/* Excludes the helper thread. The lock is not recursive. */
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

/* Progresses requests and arrivals; returns true if any advanced. The caller holds the lock. */
static inline bool ucx_progress(struct ucx *u)
{
    u->started = 0;
    u->helper.calls++;
    return ucp_worker_progress(u->worker) != 0;
}

/* The same; takes the lock itself. */
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

/* Records the loss of a peer. The caller holds the lock. */
static inline void links_lose(struct peer *peer, ucs_status_t status)
{
    struct ucx *u = peer->ucx;

    if (u->closing || peer->lost != UCS_OK)
        return;
    peer->lost = status;
    if (u->lost != NULL)
        return;
    u->lost_ns = epa_now_ns();
    /* Release: pairs with the acquire in check_ranks(). */
    __atomic_store_n(&u->lost, peer, __ATOMIC_RELEASE);
}

#endif
