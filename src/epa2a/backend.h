/* Where memory lives and where code runs: host, or one CUDA device for each rank. With
 * this, nothing in the program's own sources knows about CUDA. */
#ifndef EPA2A_BACKEND_H
#define EPA2A_BACKEND_H

#include <epa2a/problem.h>
#include <epa2a/world.h>

enum epa_memory {
    EPA_MEMORY_HOST = 1u << 0,
    EPA_MEMORY_CUDA = 1u << 1,
};

/* Why a kernel stopped waiting. Filled by the first thread of a rank that does; the algorithm
 * defines `stage`, `what` and `index`. EPA_FAULT_TRANSPORT: kernels were told to leave by the
 * transport, which explains it. */
#define EPA_FAULT_TRANSPORT UINT32_MAX
struct epa_fault {
    uint32_t claimed; /* device: set by the thread that fills the rest */
    int32_t status;   /* enum epa_status; EPA_OK: there is none */
    uint32_t stage, what, peer, index;
    uint64_t seen, wanted, waited_ns;
};

struct epa_graph; /* a CUDA graph that can be launched */

struct epa_experts; /* real experts of a rank, by a library or kernels of the backend's own */

/* Of real experts of a device, as epa_moe_footprint.fp8_sum_bits: tensor cores add up FP8. */
enum { EPA_EXPERTS_FP8_SUM_BITS = 13 };

struct epa_experts_params {
    /* Shapes, and mlp with the weights, which stay as they are until experts_destroy(); what is
     * kept of the struct itself is to be copied. */
    const struct epa_moe *moe;
    uint32_t experts; /* of this rank */
    /* What dispatch delivers: epa_moe_footprint. */
    uint64_t recv_rows, recv_entries; /* at most */
    enum epa_layout layout;
    enum epa_dtype recv_dtype;
    /* In the backend's memory. NULL: real experts. Else moe->mlp is none, and the output of an
     * expert is its row in dtype, or dequantised, times its factor, rounded. */
    const float *factor;
};

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
    /* Experts between a dispatch and its combine, real ones (struct epa_mlp says what is computed,
     * y is rounded) or synthetic ones. NULL, all four, on hosts, where the core computes them, and
     * where algorithms must do so themselves.
     *
     * create() allocates all scratch memory; EPA_ERR_UNSUPPORTED and EPA_ERR_NOMEM with a
     * sentence. run() queues the work: `moe` is as its dispatch left it, its lists are read by
     * kernels, so that it can be recorded in a graph that is launched with other counts. Layout
     * expert: y is [recv_entries][hidden], the output of entry i in row i. Layout rank:
     * [recv_rows][hidden], for each row that has entries their outputs in dtype times recv_weight,
     * added up as EPA_SUM_ORDERED says, experts ascending. Other rows are left as they are.
     * name(): what computes, for reports, such as "cuBLASLt 12.4". destroy() takes NULL; queued
     * work is done. */
    enum epa_status (*experts_create)(struct epa_backend *, const struct epa_experts_params *,
                                      struct epa_experts **out, struct epa_error *);
    enum epa_status (*experts_run)(struct epa_experts *, const struct epa_moe *moe, void *y);
    const char *(*experts_name)(const struct epa_experts *);
    void (*experts_destroy)(struct epa_experts *);
    /* What kernels do at best: operations a nanosecond in products of matrices of `dtype` that are
     * in shared memory, and bytes a nanosecond that they read from memory. Returns when both are
     * measured. NULL: not known; on hosts the core measures. */
    enum epa_status (*peaks)(struct epa_backend *, enum epa_dtype dtype, double *flops_per_ns,
                             double *bytes_per_ns);
    /* What the clock that kernels read, epa_dev_time(), shows more than CLOCK_MONOTONIC: in
     * [*low_ns, *high_ns]. For a profile; queued work is done. NULL: there is no such clock. */
    enum epa_status (*clock)(struct epa_backend *, int64_t *low_ns, int64_t *high_ns);
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
