/* A transport gives N ranks one symmetric heap and one array of signal words.
 *
 * Heap. Every rank has `heap_bytes` of heap; an offset means the same place on each rank. The core
 * assigns offsets, so a transport holds no allocator.
 *
 * Signals. A signal is a 64-bit word named by its index. The transport chooses the memory of the
 * words (a host page, device memory), because the best memory depends on the poller. The words are
 * 0 after open() and reset(). Protocols count up and wait with >=. Between resets no call clears a
 * signal.
 *
 * Ordering, towards one peer:
 *   put_signal   the peer sees the signal only after the payload of this call;
 *   fence        the peer sees later puts and signals after all earlier ones: without a fence,
 *                two SETs of a word may swap;
 *   quiet        on return, all puts and signals of this rank have arrived, at all peers.
 * Nothing else is ordered. A peer sees plain stores through peer_heap before any signal that this
 * rank sends after them; non-temporal stores, once they are drained. A wait() that returns EPA_OK
 * acquires: data ordered before the signal can be read. The transport may delay started operations
 * until this rank next calls wait(), progress(), quiet() or barrier(). put, put_signal and signal
 * may return EPA_AGAIN; they have started nothing then. peer_heap[rank], the own heap, is always
 * set.
 *
 * Threads. One thread calls a transport, unless EPA_TRANSPORT_THREADS is set.
 *
 * Failure. Once a rank has failed, wait(), progress(), quiet() and barrier() return EPA_ERR_ABORTED
 * instead of waiting, so that retries after EPA_AGAIN end. open() describes its failure in
 * epa_error. The functions of the data path only return a status; explain() describes the last
 * failure. */
#ifndef EPA2A_TRANSPORT_H
#define EPA2A_TRANSPORT_H

#include <epa2a/backend.h>
#include <epa2a/ring.h>
#include <epa2a/trace.h>

enum epa_transport_flag {
    EPA_TRANSPORT_HOST = 1u << 0,       /* the CPU may call the functions below */
    EPA_TRANSPORT_DEVICE = 1u << 1,     /* `view` is set: kernels put and signal themselves */
    EPA_TRANSPORT_LOAD_STORE = 1u << 2, /* peer_heap[] is set for each peer */
    EPA_TRANSPORT_SIGNAL_ADD = 1u << 3, /* EPA_SIGNAL_ADD is atomic between ranks */
    EPA_TRANSPORT_ANY_SOURCE = 1u << 4, /* put() may read from outside the heap */
    EPA_TRANSPORT_NODES = 1u << 5,      /* ranks may be on several nodes */
    EPA_TRANSPORT_THREADS = 1u << 6,    /* several threads may call at the same time */
};

enum epa_signal_op { EPA_SIGNAL_SET, EPA_SIGNAL_ADD };
enum epa_compare { EPA_EQ, EPA_GE };

enum { EPA_DEVICE_RANKS = 64 };

/* Passed to kernels by value: the struct contains the arrays, since a dependent load costs more
 * than a kernel parameter. Pointers are device pointers. */
struct epa_device_view {
    uint32_t rank, size;
    /* NULL, like peer_signal: only the transport's `ring` reaches this peer. */
    char *peer_heap[EPA_DEVICE_RANKS];
    uint64_t *peer_signal[EPA_DEVICE_RANKS];
    const uint32_t *stop, *beat; /* as in epa_backend */
    struct epa_fault *fault;
};

/* One run of device_peak(): stores to all peers, or a ping-pong of signals with one peer. */
struct epa_peak_run {
    /* Bytes stored to each peer, at offset i * bytes of its heap; i: index of this rank among the
     * ranks that store there; 0: signals. */
    uint64_t bytes;
    uint32_t passes;      /* repetitions of these stores */
    uint32_t peer, turns; /* signals: peer and number of round trips; the lower rank begins */
};

struct epa_transport {
    const struct epa_transport_ops *ops;
    uint32_t flags; /* enum epa_transport_flag, after open() */
    uint32_t rank, size;
    char *heap; /* heap of this rank, in the requested memory */
    uint64_t heap_bytes;
    char *const *peer_heap; /* [size]; NULL where loads and stores do not reach the peer */
    const struct epa_device_view *view;
    /* Set with `view`; NULL if `view` reaches all ranks. Kernels write their descriptors for the
     * other ranks to this ring. */
    const struct epa_device_ring *ring;
};

struct epa_transport_ops {
    /* Starts a copy of `bytes` from `src` to offset `dst` at `peer`. `src` must not change until
     * quiet(). EPA_AGAIN: nothing was started. */
    enum epa_status (*put)(struct epa_transport *, uint64_t dst, const void *src, size_t bytes,
                           uint32_t peer);
    enum epa_status (*put_signal)(struct epa_transport *, uint64_t dst, const void *src,
                                  size_t bytes, uint32_t signal, uint64_t value, enum epa_signal_op,
                                  uint32_t peer);
    enum epa_status (*signal)(struct epa_transport *, uint32_t signal, uint64_t value,
                              enum epa_signal_op, uint32_t peer);
    enum epa_status (*fence)(struct epa_transport *, uint32_t peer);
    enum epa_status (*quiet)(struct epa_transport *);

    /* Access to this rank's own words. read() does not wait. wait() makes progress; it returns
     * EPA_ERR_TIMEOUT after timeout_ns, and EPA_ERR_ABORTED once a rank has failed. */
    uint64_t (*read)(struct epa_transport *, uint32_t signal);
    enum epa_status (*wait)(struct epa_transport *, uint32_t signal, enum epa_compare,
                            uint64_t value, uint64_t timeout_ns);

    enum epa_status (*progress)(struct epa_transport *);
    /* Calls quiet(), then waits for all ranks. */
    enum epa_status (*barrier)(struct epa_transport *, uint64_t timeout_ns);
    enum epa_status (*reset)(struct epa_transport *); /* collective: resets the signals to 0 */
    /* For a transport with a `view`, if only kernels can measure the link peak: runs them, between
     * other calls. Stores begin at the same time on all ranks. *ns: duration of the run on the
     * device's clock; 0: too few bytes to measure. The signals keep their values. NULL: puts and
     * signals of the host measure the peak. */
    enum epa_status (*device_peak)(struct epa_transport *, const struct epa_peak_run *, double *ns);
    /* Reports the carrier of the data: say(arg, "device", "mlx5_0") and so on. NULL: no facts. */
    void (*describe)(struct epa_transport *,
                     void (*say)(void *arg, const char *key, const char *value), void *arg);
    /* Describes the last failure. A failed barrier names a missing rank by epa_awaits(). */
    void (*explain)(struct epa_transport *, struct epa_error *);
    void (*close)(struct epa_transport *);
};

struct epa_transport_params {
    struct epa_bootstrap *boot;
    struct epa_backend *backend; /* memory of the heap */
    const void *config;          /* the struct that plugin.options fills */
    uint64_t heap_bytes;
    uint32_t signals;
    /* The transport named by between_nodes(), and the struct of its options; between_config NULL:
     * its defaults. */
    const struct epa_transport_plugin *between;
    const void *between_config;
    struct epa_trace *trace; /* NULL: no profile; for lanes beside the iterations (trace.h) */
    /* If takes() allows it: memory for the heap, of kind backend->memory, owned by the caller. The
     * memory outlives the transport and is page-aligned. The transport neither zeroes nor writes it
     * of its own accord. Puts may then read from any memory (EPA_TRANSPORT_ANY_SOURCE). A peer sees
     * an aligned put of 8 bytes as a whole, and ordered by a fence like a signal. NULL: the
     * transport allocates the heap. */
    void *heap;
};

struct epa_transport_plugin {
    struct epa_plugin plugin;
    uint32_t flags;  /* best flags that open() can give; for `list` and early validation */
    uint32_t memory; /* enum epa_memory bits */
    /* Returns EPA_OK if this machine can run the transport. Called before ranks exist, without side
     * effects. NULL: always. */
    enum epa_status (*check)(const void *config, struct epa_error *);
    /* Returns the name of the transport that carries data to ranks of other nodes, in host memory;
     * NULL: none. The own flags then lack LOAD_STORE and include NODES. NULL: never any. The name is
     * the value of a string option `between_nodes`. Users may give options of the named transport
     * with it, as `between_nodes: {name: ucx, tls: tcp}`; open() receives them in between_config. */
    const char *(*between_nodes)(const void *config);
    /* Returns EPA_OK if open() accepts a heap of the caller in memory of this kind on this machine;
     * otherwise explains. Collective, unless the bootstrap is NULL: `doctor` then queries the
     * machine. NULL: never. */
    enum epa_status (*takes)(struct epa_bootstrap *, const void *config, enum epa_memory,
                             struct epa_error *);
    enum epa_status (*open)(const struct epa_transport_params *, struct epa_transport **out,
                            struct epa_error *);
};

/* Short names for the data path; each is one call through the table. */
static inline enum epa_status epa_put(struct epa_transport *t, uint64_t dst, const void *src,
                                      size_t bytes, uint32_t peer)
{
    return t->ops->put(t, dst, src, bytes, peer);
}

static inline enum epa_status epa_put_signal(struct epa_transport *t, uint64_t dst, const void *src,
                                             size_t bytes, uint32_t signal, uint64_t value,
                                             uint32_t peer)
{
    return t->ops->put_signal(t, dst, src, bytes, signal, value, EPA_SIGNAL_SET, peer);
}

static inline enum epa_status epa_wait(struct epa_transport *t, uint32_t signal, uint64_t value,
                                       uint64_t timeout_ns)
{
    return t->ops->wait(t, signal, EPA_GE, value, timeout_ns);
}

/* Returns the address of `offset` of `peer` in this process, or NULL. */
static inline void *epa_peer(const struct epa_transport *t, uint64_t offset, uint32_t peer)
{
    return t->peer_heap[peer] != NULL ? t->peer_heap[peer] + offset : NULL;
}

#endif
