/* Memory and execution of a rank: the host, or one CUDA device for each rank. Through this
 * interface the sources of the program stay free of CUDA. */
#ifndef EPA2A_BACKEND_H
#define EPA2A_BACKEND_H

#include <epa2a/problem.h>
#include <epa2a/world.h>

enum epa_memory {
    EPA_MEMORY_HOST = 1u << 0,
    EPA_MEMORY_CUDA = 1u << 1,
};

/* Reason why a kernel stopped waiting. The first thread of a rank that stops fills it; the
 * algorithm defines `stage`, `what` and `index`. EPA_FAULT_TRANSPORT: the transport ended the
 * kernels, and explains the reason. */
#define EPA_FAULT_TRANSPORT UINT32_MAX
struct epa_fault {
    uint32_t claimed; /* device: set by the thread that fills the rest */
    int32_t status;   /* enum epa_status; EPA_OK: no fault */
    uint32_t stage, what, peer, index;
    uint64_t seen, wanted, waited_ns;
    /* In device memory: a copy in memory that the host reads while kernels run. The thread that
     * fills the struct writes the copy, too, `status` last. NULL: no copy. */
    struct epa_fault *host;
};

struct epa_graph; /* a CUDA graph that can be launched */

/* Real experts of a rank, computed by a library or by kernels of the backend. */
struct epa_experts;

/* For real experts on a device, the value of epa_moe_footprint.fp8_sum_bits: tensor cores add FP8
 * products. */
enum { EPA_EXPERTS_FP8_SUM_BITS = 13 };

struct epa_experts_params {
    /* Shapes, and mlp with the weights, which do not change until experts_destroy(). The backend
     * copies the parts of the struct that it keeps. */
    const struct epa_moe *moe;
    uint32_t experts; /* of this rank */
    /* Properties of dispatched rows: see epa_moe_footprint. */
    uint64_t recv_rows, recv_entries; /* maximum */
    enum epa_layout layout;
    enum epa_dtype recv_dtype;
    /* In the backend's memory. NULL: real experts. Otherwise moe->mlp is empty, and the output of
     * an expert is its row in dtype, or the dequantised row, times its factor, rounded. */
    const float *factor;
};

/* Copies of received rows, in memory of the device, in the order of the view: layout expert by source
 * rank, then by token; layout rank by epa_moe_footprint.row_order. NULL: not written. Elements outside
 * all rows and entries do not change. */
struct epa_delivery {
    uint32_t experts, ranks; /* of this rank; of all */
    uint32_t max_tokens;     /* of a rank */
    /* Layout expert. Row at which expert e begins: e * stride; 0: the rows have no gaps between experts. */
    uint64_t stride;
    uint32_t row_bytes; /* of x; a multiple of 16 */
    void *x;            /* [rows][row_bytes] */
    uint32_t groups;    /* FP8: scales of a row */
    /* The rows of the view are in dtype and become FP8 rows with groups of so many channels, a
     * multiple of 4; 0: x is a copy. */
    uint32_t quantised_group;
    enum epa_dtype dtype; /* EPA_BF16 or EPA_F16 */
    bool pow2;            /* scales of quantised rows are powers of two, as of epa_quantise */
    /* [rows][words], or with scale_rows [rows / scale_rows][words][scale_rows]. A word is a scale;
     * with `exponents`, words have the exponents (UE8M0) of four scales each, the first scale in the
     * lowest byte, and unused bytes are 0. */
    void *x_scale;
    bool exponents;
    uint64_t scale_rows;
    uint32_t *count;       /* [experts] */
    uint64_t *start;       /* [experts] */
    int32_t *source_token; /* [rows] */
    /* [experts][ranks]: begin in the expert << 32 | count; layout rank: [ranks] */
    int64_t *source_range;
    /* Layout rank: row of each entry, [entries]; choices of each row, [rows][topk], -1 and weight 0 if
     * the choice is not of this rank. */
    uint32_t topk;
    uint32_t *row;
    int32_t *topk_idx;
    float *topk_weight;
    int32_t *seen; /* [experts]: the counts are added */
};

/* Layout rank: the bytes of weights as elements of expert outputs. Bytes `first` to `first` + n of the
 * topk weights of a row or token are elements 0 to n - 1 of a row of `hidden` elements of dtype, as
 * whole numbers from 0 to 255. The elements of choices of other ranks are 0, so the sum over ranks is
 * the byte. */
struct epa_weight_bytes {
    uint32_t ranks, max_tokens; /* max_tokens: of a rank */
    uint32_t topk, hidden, first, n;
    enum epa_dtype dtype; /* EPA_BF16 or EPA_F16 */
};

/* Quantisation of tokens to FP8 as problem.h defines it. */
struct epa_quantise {
    uint32_t rows, hidden, group; /* group: channels of a scale, a multiple of 4 */
    enum epa_dtype dtype;         /* EPA_BF16 or EPA_F16 */
    bool pow2;     /* scales are rounded up to powers of two, at least 2^-126; the codes follow */
    const void *x; /* [rows][hidden] of dtype */
    void *codes;   /* [rows][hidden] */
    float *scale;  /* [rows][hidden / group] */
};

/* Copies of choices and weights for calls that read them later. */
struct epa_choices_copy {
    uint64_t n;            /* tokens * topk */
    const void *expert;    /* [n] */
    uint32_t bytes;        /* of an element of `expert`: 4 or 8 */
    const float *weight;   /* [n]; NULL: the copies are 0 */
    int32_t *to_expert[2]; /* NULL: unused */
    float *to_weight[2];   /* NULL: unused */
};

struct epa_backend {
    const struct epa_backend_ops *ops;
    enum epa_memory memory;
    int device; /* -1 on host */
    /* cudaStream_t, NULL on host: queues work in order. begin() replaces the stream by a stream of
     * the application for the duration of a call, so algorithms read the field in each call. */
    void *stream;
    /* The work before a kernel in its stream may belong to the application, even within a graph. An
     * algorithm must not conclude which kernel precedes. Set after open(). */
    bool shares_stream;
    /* CUDA; NULL on host. Waiting kernels poll both words, and exit when one of them is not 0:
     * the backend sets *stop within milliseconds once a rank has failed; *device_fault (device
     * memory) receives the reason from the first kernel that stops waiting. sync() copies it to
     * `fault`. *beat changes every few milliseconds while this process runs: kernels do not count
     * the time without a beat, in which the process is suspended, as waiting time. NULL: kernels
     * count all time. */
    const uint32_t *stop, *beat;
    struct epa_fault *device_fault;
    struct epa_fault fault;
    /* CUDA: free device memory in bytes before the backend opened the device; 0: unknown. */
    uint64_t free_bytes;
    /* CUDA: bytes of the last level cache; 0: unknown. */
    uint64_t cache_bytes;
    /* CUDA: number of multiprocessors of this rank. Ranks that share a device receive disjoint
     * parts, so that kernels which wait for each other are resident together. */
    uint32_t multiprocessors;
};

struct epa_backend_ops {
    /* After a failure, queued work may wait for lost ranks: call sync() first, then free(),
     * graph_destroy() and close(). */
    enum epa_status (*alloc)(struct epa_backend *, size_t bytes, void **out);
    void (*free)(struct epa_backend *, void *);
    /* In order with queued work. When write() returns it has copied `host`; when read() returns it
     * has filled `host`. Neither checks for a fault. */
    enum epa_status (*write)(struct epa_backend *, void *to, const void *host, size_t);
    enum epa_status (*read)(struct epa_backend *, void *host, const void *from, size_t);
    enum epa_status (*fill)(struct epa_backend *, void *to, int byte, size_t);
    /* Waits until all queued work has ended, and polls `aborted` meanwhile. Returns the status of a
     * fault; the algorithm that queued the kernel explains the fault. */
    enum epa_status (*sync)(struct epa_backend *);
    /* For applications; all NULL on host.
     *
     * begin() makes the device current for the calling thread and lets all following calls use the
     * stream of the application; NULL: the stream of the backend. end() restores the stream and the
     * current device of the thread. end() without begin() restores the device from before open().
     *
     * captures() returns true if work in the current stream is recorded in a graph.
     *
     * finish() waits until all work of the device has ended, in the streams of the application,
     * too.
     *
     * check() returns the status of the first kernel that stopped waiting, and its reason in *out,
     * without a call of CUDA. Any thread may call it at any time. */
    enum epa_status (*begin)(struct epa_backend *, void *stream);
    void (*end)(struct epa_backend *);
    bool (*captures)(struct epa_backend *);
    enum epa_status (*finish)(struct epa_backend *);
    enum epa_status (*check)(struct epa_backend *, struct epa_fault *out);
    /* CUDA; NULL on host. Queues copies of the received rows of a dispatch. A view of layout rank has
     * recv_range. */
    enum epa_status (*deliver)(struct epa_backend *, const struct epa_moe *view,
                               const struct epa_delivery *);
    /* CUDA; NULL on host; layout rank with recv_range. encode_weights() queues writes of weights,
     * [rows][topk], to expert outputs, both in the order of the view. decode_weights() queues writes of
     * weights [tokens][topk] from sums [tokens][hidden]. */
    enum epa_status (*encode_weights)(struct epa_backend *, const struct epa_moe *view,
                                      const struct epa_weight_bytes *, const float *weight,
                                      void *y);
    enum epa_status (*decode_weights)(struct epa_backend *, const struct epa_weight_bytes *,
                                      uint32_t tokens, const void *sum, float *weight);
    /* CUDA; NULL on host. Queues copies of choices. */
    enum epa_status (*copy_choices)(struct epa_backend *, const struct epa_choices_copy *);
    /* CUDA; NULL on host. Queues a copy of rows whose begins are `stride` bytes apart to dense
     * rows. */
    enum epa_status (*copy_rows)(struct epa_backend *, void *to, const void *from, size_t stride,
                                 size_t row_bytes, uint32_t rows);
    /* CUDA; NULL on host. Queues a quantisation. */
    enum epa_status (*quantise)(struct epa_backend *, const struct epa_quantise *);
    /* CUDA; NULL on host; layout expert. Queues the rounding of expert outputs y in bf16 to values of
     * LogFMT-10 (logfmt.h), and writes these to `out`. Both have the rows of the view, whose lists of
     * `experts` local experts select the rows; other rows of `out` do not change. */
    enum epa_status (*round_outputs)(struct epa_backend *, const struct epa_moe *view,
                                     uint32_t experts, const void *y, void *out);
    /* CUDA; NULL on host. Queues the addition of `bias` to the n values of `out`, each of dtype
     * EPA_BF16 or EPA_F16: the sum in float32, then rounded. NULL: no bias. n is even. */
    enum epa_status (*add_bias)(struct epa_backend *, const void *const bias[2],
                                enum epa_dtype dtype, uint64_t n, void *out);
    /* Host only: runs fn(arg, worker, workers) on each of the rank's worker threads and returns
     * when all have ended. The backend creates the threads once and pins them. They wait without
     * sleeping while an iteration runs. CUDA: EPA_ERR_UNSUPPORTED; kernels do the work. */
    enum epa_status (*parallel)(struct epa_backend *,
                                void (*fn)(void *arg, uint32_t worker, uint32_t workers),
                                void *arg);
    /* Time measurement: mark i, run code, mark j, sync, elapsed(i, j). A mark reads a clock on the
     * host and records an event on CUDA. */
    enum epa_status (*mark)(struct epa_backend *, uint32_t i);
    enum epa_status (*elapsed)(struct epa_backend *, uint32_t i, uint32_t j, double *ns);
    /* CUDA; NULL on host. Work queued from capture_begin() to capture_end() is recorded, not run; a
     * launch of the graph queues all recorded work at once. */
    enum epa_status (*capture_begin)(struct epa_backend *);
    enum epa_status (*capture_end)(struct epa_backend *, struct epa_graph **out);
    enum epa_status (*graph_launch)(struct epa_backend *, struct epa_graph *);
    void (*graph_destroy)(struct epa_backend *, struct epa_graph *);
    /* Queues a write of more memory than L2 holds; on the host each worker writes. */
    enum epa_status (*flush_cache)(struct epa_backend *);
    /* Experts between a dispatch and its combine: real ones (struct epa_mlp defines the
     * computation, y is rounded) or synthetic ones. All four are NULL on hosts, where the core
     * computes experts, and on backends where algorithms must compute them.
     *
     * create() allocates all scratch memory; it returns EPA_ERR_UNSUPPORTED and EPA_ERR_NOMEM with
     * a message. run() queues the work on the views of `moe` that its dispatch returned. Kernels
     * read the lists, so that the work can be recorded in a graph that is launched with other
     * counts. Layout expert: y is [recv_entries][hidden], the output of entry i in row i. Layout
     * rank: [recv_rows][hidden]; each row with entries receives the sum of their outputs in dtype
     * times recv_weight, in the order of EPA_SUM_ORDERED, experts ascending. Other rows do not
     * change. name() returns the library or kernels for reports, such as "cuBLASLt 12.4". destroy()
     * accepts NULL; queued work has ended. */
    enum epa_status (*experts_create)(struct epa_backend *, const struct epa_experts_params *,
                                      struct epa_experts **out, struct epa_error *);
    enum epa_status (*experts_run)(struct epa_experts *, const struct epa_moe *moe, void *y);
    const char *(*experts_name)(const struct epa_experts *);
    void (*experts_destroy)(struct epa_experts *);
    /* Measures the peak rates of kernels: operations per nanosecond of matrix products of `dtype`
     * in shared memory, and bytes per nanosecond of memory reads. Returns when both measurements
     * have ended. flops_per_ns NULL: only the rate of reads. NULL: unknown; on hosts the core
     * measures. */
    enum epa_status (*peaks)(struct epa_backend *, enum epa_dtype dtype, double *flops_per_ns,
                             double *bytes_per_ns);
    /* Returns the offset of the device clock that kernels read, epa_dev_time(), to CLOCK_MONOTONIC:
     * in [*low_ns, *high_ns]. For a profile; queued work has ended. NULL: there is no device
     * clock. */
    enum epa_status (*clock)(struct epa_backend *, int64_t *low_ns, int64_t *high_ns);
    /* Reports any number of facts: say(arg, "driver", "580.159.04"), "device", "clock" (current),
     * "links" and so on. NULL: no facts. */
    void (*describe)(struct epa_backend *,
                     void (*say)(void *arg, const char *key, const char *value), void *arg);
    void (*explain)(struct epa_backend *, struct epa_error *); /* describes the last failure */
    void (*close)(struct epa_backend *);
};

struct epa_backend_plugin {
    struct epa_plugin plugin;
    enum epa_memory memory;
    uint32_t (*threads)(const void *config); /* threads of a rank, its main thread included */
    enum epa_status (*open)(const void *config, struct epa_bootstrap *, struct epa_backend **out,
                            struct epa_error *);
};

#endif
