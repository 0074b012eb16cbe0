/* Construction and calls of an algorithm on one rank.
 *
 * The program and the public interface use the same functions. For one algorithm the order is
 * ep_comm_open(), ep_open(), ep_create(), ep_call() for each stage, ep_destroy(), ep_close(),
 * ep_comm_close(). Several algorithms may share a comm: each `struct ep` has a transport of its
 * own, so two algorithms never share a signal. Every rank calls the functions for the same objects
 * in the same order.
 *
 * One thread at a time calls the functions for a comm and its objects. A function that fails
 * writes the message to `err`, unless `err` already holds a message. With EPA_ERR_ABORTED, where
 * another rank failed first, `err` does not change. After a failure of a rank, ep_comm_stop() must
 * precede the destruction of objects. */
#ifndef EP_H
#define EP_H

#include <epa2a/algorithm.h>

/* A plugin with its options. */
struct ep_choice {
    const struct epa_plugin *plugin; /* cast by kind */
    const void *config;              /* plugin->options.size bytes, filled */
};

/* Bootstrap and backend of a rank. */
struct ep_comm {
    struct epa_bootstrap *boot; /* owned by the caller */
    struct epa_backend *backend;
    uint64_t timeout_ns;             /* time-out of each wait for a peer */
    uint32_t algorithms;             /* number of algorithms, by ep_add_algorithm() */
    struct epa_algorithm *algorithm; /* the last of them; NULL: removed */
};

/* Adds an algorithm to the comm, and removes it before its destruction. A comm with one algorithm
 * describes the failure of a kernel in the words of this algorithm. */
void ep_add_algorithm(struct ep_comm *, struct epa_algorithm *);
void ep_remove_algorithm(struct ep_comm *, const struct epa_algorithm *);

/* One algorithm of a rank with its transport. */
struct ep {
    struct ep_comm *comm;
    /* Transport of the algorithm: the opened transport, or a transport of the caller that forwards
     * to it. ep_close() closes the transport that this field names. */
    struct epa_transport *transport;
    struct epa_algorithm *algorithm; /* NULL: not created */
    struct epa_footprint footprint;  /* plan of `algorithm` */
};

struct ep_transport_params {
    struct ep_choice transport;
    struct ep_choice between; /* carrier of data between nodes; plugin NULL: none */
    uint64_t heap_bytes;
    void
        *heap; /* memory of the caller, as in epa_transport_params; NULL: the transport allocates */
    uint32_t signals;
    struct epa_trace *trace; /* NULL: no profile */
};

struct ep_algorithm_params {
    struct ep_choice algorithm;
    const struct epa_problem *problem; /* shapes; with real experts also the weights */
    uint32_t transport_flags;
    const struct epa_footprint
        *footprint;          /* result of ep_plan() for this problem and these flags */
    uint64_t heap_at;        /* first heap offset; a multiple of 4096 */
    uint32_t signal_at;      /* first signal */
    uint64_t epoch;          /* as in epa_algorithm_params */
    struct epa_trace *trace; /* NULL: no profile */
};

/* Opens the backend. `timeout_ns` becomes the time-out of the comm and of calls of the bootstrap. */
enum epa_status ep_comm_open(struct ep_comm *, struct epa_bootstrap *,
                             const struct ep_choice *backend, uint64_t timeout_ns,
                             struct epa_error *err);
/* Between the two calls, the calling thread and the backend use the device and a stream of the
 * application; NULL: the stream of the backend. Without effect on hosts. */
enum epa_status ep_comm_begin(struct ep_comm *, void *stream, struct epa_error *err);
void ep_comm_end(struct ep_comm *);
/* Waits until all work on the device has ended, in the streams of the application, too. */
enum epa_status ep_comm_finish(struct ep_comm *, struct epa_error *err);
/* Ends kernels that wait for peers. Only sync() of the backend ends these kernels; a destroy or
 * close function waits for them in the driver without a time-out. */
void ep_comm_stop(struct ep_comm *);
void ep_comm_close(struct ep_comm *); /* accepts a comm without backend */

/* Barrier of the bootstrap. */
enum epa_status ep_comm_barrier(struct ep_comm *, struct epa_error *err);

/* Computes the resources of an algorithm. Has no side effects and needs no comm. */
enum epa_status ep_plan(const struct ep_choice *algorithm, const struct epa_problem *,
                        const struct epa_world *, uint32_t transport_flags,
                        struct epa_footprint *out, struct epa_error *err);

/* Opens the transport. Collective. */
enum epa_status ep_open(struct ep *, struct ep_comm *, const struct ep_transport_params *,
                        struct epa_error *err);
void ep_close(struct ep *); /* accepts an ep without transport */

/* Creates the algorithm and checks that its stages and capabilities equal the plan. Heap and
 * signals of the algorithm must be 0: the state after ep_open() or ep_clear_heap(). After a failure
 * ep_destroy() frees all memory. */
enum epa_status ep_create(struct ep *, const struct ep_algorithm_params *, struct epa_error *err);
void ep_destroy(struct ep *); /* the heap is free then; accepts an ep without algorithm */

/* Runs a stage or part of the algorithm. On a device the stage is only queued. */
enum epa_status ep_call(struct ep *, const struct epa_stage *, struct epa_problem *,
                        struct epa_error *err);
/* Discards the last dispatch; the algorithm must have the capability. */
enum epa_status ep_discard(struct ep *, struct epa_problem *, struct epa_error *err);
/* Reads the times at which calls ended; the algorithm has the function. */
enum epa_status ep_ended(struct ep *, enum epa_stage_kind, uint32_t n, uint64_t *ns,
                         struct epa_error *err);

/* Waits until all queued work of the backend has ended. */
enum epa_status ep_sync(struct ep *, struct epa_error *err);
/* Barrier of the transport. */
enum epa_status ep_barrier(struct ep *, struct epa_error *err);
/* Sets heap and signals to 0. Collective. No algorithm exists. */
enum epa_status ep_clear_heap(struct ep *, struct epa_error *err);

#endif
