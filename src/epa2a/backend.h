/* Where memory lives and where code runs: host, or one CUDA device for each rank. With
 * this, nothing in the program's own sources knows about CUDA. */
#ifndef EPA2A_BACKEND_H
#define EPA2A_BACKEND_H

#include <epa2a/world.h>

enum epa_memory {
    EPA_MEMORY_HOST = 1u << 0,
    EPA_MEMORY_CUDA = 1u << 1,
};

/* Why a kernel stopped waiting. Filled by the first thread of a rank that does; the algorithm
 * defines `stage`, `what` and `index`. */
struct epa_fault {
    uint32_t claimed; /* device: set by the thread that fills the rest */
    int32_t status;   /* enum epa_status; EPA_OK: there is none */
    uint32_t stage, what, peer, index;
    uint64_t seen, wanted, waited_ns;
};

struct epa_graph; /* a CUDA graph that can be launched */

struct epa_backend {
    const struct epa_backend_ops *ops;
    enum epa_memory memory;
    int device;   /* -1 on host */
    void *stream; /* cudaStream_t, NULL on host: work is queued here, in order */
    /* CUDA; NULL on host. Kernels that wait poll both, and exit when one is not 0: sync() sets
     * *stop once a rank has failed; *device_fault (device memory) is where the first kernel
     * that stops waiting records why. sync() copies it to `fault`. */
    const uint32_t *stop;
    struct epa_fault *device_fault;
    struct epa_fault fault;
    /* CUDA: memory of the device that was free when it was opened; 0: not known. */
    uint64_t free_bytes;
    /* CUDA: multiprocessors for this rank. Ranks that share a device get a part each, so that
     * kernels which wait for each other are resident together. */
    uint32_t multiprocessors;
};

struct epa_backend_ops {
    /* After a failure, queued work may wait for ranks that are lost: call sync() first, then
     * free(), graph_destroy() and close(). */
    enum epa_status (*alloc)(struct epa_backend *, size_t bytes, void **out);
    void (*free)(struct epa_backend *, void *);
    /* In order with queued work. write() has copied `host` when it returns; read() has filled
     * it. Neither checks for a fault. */
    enum epa_status (*write)(struct epa_backend *, void *to, const void *host, size_t);
    enum epa_status (*read)(struct epa_backend *, void *host, const void *from, size_t);
    enum epa_status (*fill)(struct epa_backend *, void *to, int byte, size_t);
    /* Waits until all queued work is done, and polls `aborted` meanwhile. Returns the status of
     * a fault; the algorithm that queued the kernel explains it. */
    enum epa_status (*sync)(struct epa_backend *);
    /* Host only: runs fn(arg, worker, workers) on each of the rank's worker threads and
     * returns when all are done. Threads are made once, pinned, and wait without sleeping
     * while an iteration runs. CUDA: EPA_ERR_UNSUPPORTED; kernels are its workers. */
    enum epa_status (*parallel)(struct epa_backend *,
                                void (*fn)(void *arg, uint32_t worker, uint32_t workers),
                                void *arg);
    /* Time: mark i, run something, mark j, sync, elapsed(i, j). A mark reads a clock on the
     * host and records an event on CUDA. */
    enum epa_status (*mark)(struct epa_backend *, uint32_t i);
    enum epa_status (*elapsed)(struct epa_backend *, uint32_t i, uint32_t j, double *ns);
    /* CUDA; NULL on host. What is queued from capture_begin() to capture_end() is recorded,
     * not run; launching a graph queues all of it at once. */
    enum epa_status (*capture_begin)(struct epa_backend *);
    enum epa_status (*capture_end)(struct epa_backend *, struct epa_graph **out);
    enum epa_status (*graph_launch)(struct epa_backend *, struct epa_graph *);
    void (*graph_destroy)(struct epa_backend *, struct epa_graph *);
    /* Queues a write of more memory than L2 holds; on the host each worker does so. */
    enum epa_status (*flush_cache)(struct epa_backend *);
    /* Facts for reports, any number: say(arg, "driver", "580.159.04"), "device", "clock" (now),
     * "links" and so on. NULL: none. */
    void (*describe)(struct epa_backend *,
                     void (*say)(void *arg, const char *key, const char *value), void *arg);
    void (*explain)(struct epa_backend *, struct epa_error *); /* the last failure */
    void (*close)(struct epa_backend *);
};

struct epa_backend_plugin {
    struct epa_plugin plugin;
    enum epa_memory memory;
    uint32_t (*threads)(const void *config); /* of a rank, its own included */
    enum epa_status (*open)(const void *config, struct epa_bootstrap *, struct epa_backend **out,
                            struct epa_error *);
};

#endif
