/* A transport gives N ranks one symmetric heap and one array of signal words.
 *
 * Heap. Every rank has `heap_bytes` of heap; an offset means the same place on each. The
 * core assigns offsets, so a transport holds no allocator.
 *
 * Signals. A signal is a 64-bit word named by its index. The transport decides where the
 * words live (a host page, device memory), because that depends on who polls them. They
 * are 0 after open() and reset(). Protocols count up and wait with >=; nothing clears a
 * signal in between.
 *
 * Ordering, towards one peer:
 *   put_signal   the signal is seen only after its own payload;
 *   fence        what is put or signalled after it is seen after all that was put or
 *                signalled before it: without one, two SETs of a word may swap;
 *   quiet        when it returns, all I have put and signalled is in place, at all peers.
 * Nothing else is ordered. Plain stores through peer_heap are seen before any signal that
 * this rank gives after them; non-temporal stores, after they have been drained. A wait() that
 * returns EPA_OK acquires: data ordered before the signal can be read. What was started may
 * be held back until this rank next calls wait(), progress(), quiet() or barrier(); put,
 * put_signal and signal may return EPA_AGAIN, and have started nothing then.
 * peer_heap[rank], the own heap, is always set.
 *
 * Threads. One thread calls a transport, unless EPA_TRANSPORT_THREADS is set.
 *
 * Failure. wait(), progress(), quiet() and barrier() give EPA_ERR_ABORTED rather than go on
 * waiting once a rank has failed, so that retries after EPA_AGAIN end. open() explains
 * in epa_error. The functions of the data path return a status only; explain() describes
 * the last failure. */
#ifndef EPA2A_TRANSPORT_H
#define EPA2A_TRANSPORT_H

#include <epa2a/backend.h>
#include <epa2a/ring.h>
#include <epa2a/trace.h>

enum epa_transport_flag {
    EPA_TRANSPORT_HOST = 1u << 0,       /* the functions below may be called (CPU drives) */
    EPA_TRANSPORT_DEVICE = 1u << 1,     /* `view` is set: kernels put and signal themselves */
    EPA_TRANSPORT_LOAD_STORE = 1u << 2, /* peer_heap[] is set for every peer */
    EPA_TRANSPORT_SIGNAL_ADD = 1u << 3, /* EPA_SIGNAL_ADD is atomic between ranks */
    EPA_TRANSPORT_ANY_SOURCE = 1u << 4, /* put() may read from outside the heap */
    EPA_TRANSPORT_NODES = 1u << 5,      /* ranks may be on several nodes */
    EPA_TRANSPORT_THREADS = 1u << 6,    /* may be called from several threads at once */
};

enum epa_signal_op { EPA_SIGNAL_SET, EPA_SIGNAL_ADD };
enum epa_compare { EPA_EQ, EPA_GE };

enum { EPA_DEVICE_RANKS = 64 };

/* Passed to kernels by value: the arrays are in the struct, as a dependent load costs more
 * than a kernel parameter. Pointers are device pointers. */
struct epa_device_view {
    uint32_t rank, size;
    char *peer_heap[EPA_DEVICE_RANKS]; /* NULL, as peer_signal: by the transport's `ring` alone */
    uint64_t *peer_signal[EPA_DEVICE_RANKS];
    const uint32_t *stop; /* as in epa_backend */
    struct epa_fault *fault;
};

/* One run of device_peak(): stores to all peers, or signals back and forth with one. */
struct epa_peak_run {
    uint64_t bytes;       /* to each peer, at its heap's offset i * bytes, where this rank is the
                      * i-th of those that store there; 0: signals */
    uint32_t passes;      /* of these stores */
    uint32_t peer, turns; /* signals: turns there and back; the lower rank begins */
};

struct epa_transport {
    const struct epa_transport_ops *ops;
    uint32_t flags; /* enum epa_transport_flag, as opened */
    uint32_t rank, size;
    char *heap; /* this rank's, in the memory asked for */
    uint64_t heap_bytes;
    char *const *peer_heap; /* [size]; NULL where loads and stores do not reach */
    const struct epa_device_view *view;
    /* With `view`, and NULL where that reaches all ranks: what kernels write for the others. */
    const struct epa_device_ring *ring;
};

struct epa_transport_ops {
    /* Starts a copy of `bytes` from `src` to offset `dst` at `peer`. `src` must stay as
     * it is until quiet(). EPA_AGAIN: nothing was started. */
    enum epa_status (*put)(struct epa_transport *, uint64_t dst, const void *src, size_t bytes,
                           uint32_t peer);
    enum epa_status (*put_signal)(struct epa_transport *, uint64_t dst, const void *src,
                                  size_t bytes, uint32_t signal, uint64_t value, enum epa_signal_op,
                                  uint32_t peer);
    enum epa_status (*signal)(struct epa_transport *, uint32_t signal, uint64_t value,
                              enum epa_signal_op, uint32_t peer);
    enum epa_status (*fence)(struct epa_transport *, uint32_t peer);
    enum epa_status (*quiet)(struct epa_transport *);

    /* This rank's own words. read() does not wait; wait() makes progress, and gives up
     * after timeout_ns (EPA_ERR_TIMEOUT) or when a rank has failed (EPA_ERR_ABORTED). */
    uint64_t (*read)(struct epa_transport *, uint32_t signal);
    enum epa_status (*wait)(struct epa_transport *, uint32_t signal, enum epa_compare,
                            uint64_t value, uint64_t timeout_ns);

    enum epa_status (*progress)(struct epa_transport *);
    enum epa_status (*barrier)(struct epa_transport *, uint64_t timeout_ns); /* quiet + all */
    enum epa_status (*reset)(struct epa_transport *); /* collective: signals back to 0 */
    /* For a transport with a `view`, whose link peak only kernels can measure: runs them,
     * between other calls. Stores begin at the same time on all ranks. *ns: what the run
     * took, by the device's clock; 0: too few bytes to measure. The signals keep their values.
     * NULL: puts and signals of the host tell. */
    enum epa_status (*device_peak)(struct epa_transport *, const struct epa_peak_run *, double *ns);
    /* What carries the data, for reports: say(arg, "device", "mlx5_0") and so on. NULL:
     * nothing to say. */
    void (*describe)(struct epa_transport *,
                     void (*say)(void *arg, const char *key, const char *value), void *arg);
    void (*explain)(struct epa_transport *, struct epa_error *);
    void (*close)(struct epa_transport *);
};

struct epa_transport_params {
    struct epa_bootstrap *boot;
    struct epa_backend *backend; /* the heap is in its memory */
    const void *config;          /* the struct that plugin.options fills */
    uint64_t heap_bytes;
    uint32_t signals;
    const struct epa_transport_plugin *between; /* what between_nodes() named, for its defaults */
    struct epa_trace *trace; /* NULL: no profile; for lanes beside the iterations (trace.h) */
    /* Where takes() allows it: the heap is this memory, of backend->memory, not the transport's.
     * It outlives the transport, is page-aligned, and is neither zeroed nor written by itself.
     * Puts read from anywhere then (EPA_TRANSPORT_ANY_SOURCE), and an aligned one of 8 bytes is
     * seen whole, and after what a fence before it orders, as a signal is.
     * NULL: the transport allocates the heap. */
    void *heap;
};

struct epa_transport_plugin {
    struct epa_plugin plugin;
    uint32_t flags;  /* what open() can give at best; for `list` and early refusal */
    uint32_t memory; /* enum epa_memory bits */
    /* Whether this machine can run it at all; called before ranks exist, without side
     * effects. NULL: always. */
    enum epa_status (*check)(const void *config, struct epa_error *);
    /* The transport that this one takes to ranks of other nodes, by name, in host memory; NULL:
     * none. Its own flags are then without LOAD_STORE and with NODES. NULL: never any. */
    const char *(*between_nodes)(const void *config);
    /* Whether open() takes a heap that it does not allocate, in memory of this kind, here; if not
     * it explains. Collective, unless the bootstrap is NULL: then for `doctor`, which asks what the
     * machine has. NULL: never. */
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

/* Where `offset` of `peer` is in this process, or NULL. */
static inline void *epa_peer(const struct epa_transport *t, uint64_t offset, uint32_t peer)
{
    return t->peer_heap[peer] != NULL ? t->peer_heap[peer] + offset : NULL;
}

#endif
