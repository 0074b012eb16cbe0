/* Host code that algorithms on GPUs share: set-up, calls, failures, and the trace of their kernels.
 * An algorithm describes itself in a struct device_kind. Its state begins with struct device, and
 * the arguments of its kernels begin with struct device_args. */
#ifndef ALGO_CUDA_H
#define ALGO_CUDA_H

#include <stdbool.h>

#include <epa2a/algorithm.h>
#include <epa2a/backend.h>
#include <epa2a/both.h>

#include "device_setup.h"
#include "device_stamps.h"

enum {
    DEVICE_THREADS = 256, /* threads per block */
    DEVICE_WARPS = DEVICE_THREADS / 32,
    DEVICE_MOST_WARPS = 16, /* maximum, for kernels with other block sizes */
    DEVICE_STAGES = 4,      /* maximum number of kernels of an algorithm */
    DEVICE_PHASES = 6,      /* stamped phases per kernel */
    DEVICE_TOKENS = 4,      /* the phase that struct device_note records */
    DEVICE_COUNTERS = 2     /* work counters per kernel */
};

/* Representation in which a token's row is sent: its 16-bit values unchanged; quantised from bf16
 * or f16; or input that is already FP8. */
enum device_input { DEVICE_PLAIN, DEVICE_QUANTISE, DEVICE_QUANTISE_F16, DEVICE_FP8, DEVICE_INPUTS };

static inline enum device_input device_input_of(bool fp8, int dtype, int x_dtype)
{
    return !fp8                      ? DEVICE_PLAIN
           : x_dtype == EPA_FP8_E4M3 ? DEVICE_FP8
           : dtype == EPA_F16        ? DEVICE_QUANTISE_F16
                                     : DEVICE_QUANTISE;
}

/* Returns the cell of entry `i`: the last of `n` ascending cells that begins at or before `i`. */
EPA_BOTH uint32_t device_cell_of(const uint32_t *begin, uint32_t n, uint32_t i)
{
    uint32_t low = 0;

    while (n - low > 1) {
        uint32_t middle = (low + n) / 2;

        if (begin[middle] <= i)
            low = middle;
        else
            n = middle;
    }
    return low;
}

struct device_stamps {
    struct device_stamp phase[DEVICE_STAGES * DEVICE_PHASES];
};

/* Time stamp of a token or row: when a warp of a stage had sent or received it, and how long that
 * took. */
struct device_note {
    uint64_t end; /* 0: no stamp */
    uint32_t took_ns, call;
    uint32_t warp, stage, peer, token; /* token UINT32_MAX: the counts of a peer */
};

/* Kernel arguments, passed by value. */
struct device_args {
    struct epa_device_view v;
    uint32_t signal, stage; /* stage: index of the kernel */
    uint64_t timeout_ns;
    uint32_t tokens, max_tokens, hidden, group, experts, local, topk;

    const void *x;
    const float *x_scale;
    const int32_t *expert;
    uint32_t wide; /* 1: elements of `expert` have 8 bytes; 0: 4 bytes */
    const float *weight, *factor;
    const void *y;
    void *out;

    /* Views of the current set. */
    uint32_t *recv_count, *rows; /* rows: number of rows in use */
    uint64_t *recv_start;

    /* Private memory of this rank. Completed calls are counted in device memory, so that a graph
     * that is launched again continues to count. Each of the most_blocks blocks that a kernel may
     * have has the same count. A block reads only its own count, so it may update that count
     * without waiting for other blocks. Behind the counts, the times at which blocks ended
     * calls, for the last EPA_ENDS calls: [1 + EPA_ENDS][most_blocks]. */
    unsigned long long *calls;
    uint32_t most_blocks;
    uint32_t keeps_ends; /* 1: blocks store the times of their ends */
    /* Counters of taken units of work. Successive calls of a stage use two of these alternately;
     * each call clears the one of the next call. */
    uint32_t (*taken)[DEVICE_COUNTERS];
    struct device_stamps *stamps; /* [stamped]: stamps of `warps` warps per block */
    uint32_t stamped, warps;
    struct device_note *note; /* [notes]: one per token or row */
    uint32_t notes;
};

/* Views of the rows that a dispatch received; rows: their number. */
struct device_set {
    uint32_t *recv_count, *rows;
    uint64_t *recv_start;
    bool open;
    uint64_t epoch;
};

struct device;

struct device_kind {
    const char *name;
    uint32_t stages; /* number of kernels */
    uint32_t halves; /* number of kernels per call, which share one call counter */
    /* [stage][phase]: names; NULL: the stage has no such phase */
    const char *phase[DEVICE_STAGES * DEVICE_PHASES];
    /* Returns a kernel without work that takes the arguments of the other kernels
     * (epa_algorithm.empty); NULL: none. */
    const void *(*empty)(void);
    /* Places the algorithm's own data in the rank's private memory (device_take()). */
    void (*place)(struct device *, char *memory, uint64_t *at);
    /* Adds further slices of kernels to the trace of the run; NULL: none. */
    enum epa_status (*trace)(const struct device *);
    /* Explains the time-out of a kernel with the messages of the host code. */
    void (*explain)(const struct epa_fault *, uint32_t rank, struct epa_error *);
};

/* State of an algorithm on the GPU of its rank. */
struct device {
    struct epa_algorithm base; /* first */
    const struct device_kind *kind;
    struct epa_transport *t;
    struct epa_backend *backend;
    uint64_t heap; /* offset of the algorithm's part from the start of any rank's heap */
    bool early;    /* a kernel may be set up while the previous kernel runs */
    void *memory;  /* private memory of this rank */
    void *mirrors; /* NULL: kernels reach the heaps of all ranks */
    int (*queue_far)(void *stream, const void *args);
    struct epa_error last;            /* error of the host code */
    struct epa_trace *trace;          /* NULL: the run has no profile */
    bool stamps;                      /* kernels stamp their phases for the trace */
    struct device_args args;          /* arguments that all calls share */
    uint32_t resident[DEVICE_STAGES]; /* number of blocks that fit on the device at once */
    uint32_t threads[DEVICE_STAGES];  /* threads per block */
    uint32_t shared_bytes[DEVICE_STAGES];
    uint32_t blocks[DEVICE_STAGES];        /* of the last kernel of each stage; 0: none */
    unsigned long long *calls;             /* [counted calls][1 + EPA_ENDS][args.most_blocks] */
    uint32_t (*taken)[2][DEVICE_COUNTERS]; /* [kind->stages] */
    /* One or two buffer sets. Dispatches use them alternately, identically on all ranks, and
     * combines free them in the same order. */
    uint32_t sets;
    uint64_t epoch, combined; /* epoch of the last dispatch, and of the last dispatch that was
                               * combined */
    struct device_set set[2];
};

/* ---- set-up ---- */

static inline uint32_t device_up16(uint64_t bytes)
{
    return (uint32_t)((bytes + 15) / 16 * 16);
}

/* Creates a state of `bytes`, 0 except for the struct device, after checking that device and
 * transport support an algorithm with `heap_bytes` of heap. `early`: the algorithm requests
 * programmatic dependent launch. */
enum epa_status device_create(const struct device_kind *, size_t bytes,
                              const struct epa_algorithm_params *, uint64_t heap_bytes,
                              uint32_t sets, bool early, void *out, struct epa_error *);

/* A kernel with its shared memory, and an alternative kernel; NULL: no alternative. */
struct device_kernel {
    const void *kernel, *other;
    const char *name; /* for messages */
    uint32_t threads; /* threads per block; 0: DEVICE_THREADS */
};

/* Loads the kernels of all stages, computes the number of blocks of each (limited to `most`, if not
 * 0), and allocates the rank's private memory. */
enum epa_status device_set_up(struct device *, const struct device_kernel *, uint32_t most,
                              struct epa_error *);

/* Kernel that runs between the kernels of a call, with one block and a thread per rank. It queues
 * puts to other nodes of the data that the call's kernels have stored in mirrors, and waits for
 * data from other nodes. `args` points to the kernel's argument struct; queue() returns a
 * cudaError_t. */
struct device_far {
    const void *kernel;
    int (*queue)(void *stream, const void *args);
};

/* For a transport with other nodes: replaces heaps and signals of their ranks in args.v by mirrors,
 * memory of this rank's GPU that has the layout of the algorithm's part of a heap. Loads the kernel
 * between nodes. */
enum epa_status device_make_mirrors(struct device *, uint64_t heap_bytes, uint32_t signals,
                                    struct device_far, struct epa_error *);

/* Returns the bytes of device memory beside the heap, for a state with kind, sets, args.local and
 * the fields that kind->place() reads. The result excludes the counters of blocks, below 1 MiB: only
 * the device knows how many blocks fit. */
uint64_t device_scratch_bytes(struct device *);

/* Last step of a set-up: returns the algorithm in *out, or destroys it if `status` is a failure. */
enum epa_status device_created(struct device *, enum epa_status, struct epa_algorithm **out);

/* Zeroes the bytes and waits until they are 0. */
enum epa_status device_clear(const struct device *, void *to, uint64_t bytes, struct epa_error *);

/* Writes the trace and frees all resources; accepts NULL. */
void device_destroy(struct epa_algorithm *);

/* ---- calls ---- */

/* Returns the offset of buffer `which` of a region from the start of any rank's heap. `at` counts
 * from the start of the algorithm's part. */
static inline uint64_t device_region(const struct device *d, uint64_t at, uint64_t bytes,
                                     uint32_t which)
{
    return d->heap + at + bytes * which;
}

static inline char *device_own(const struct device *d, uint64_t offset)
{
    return d->t->peer_heap[d->t->rank] + offset;
}

/* Returns the number of blocks for `units` units of work. Each multiprocessor gets a block before
 * two blocks share one. */
static inline uint32_t device_blocks_for(uint32_t room, uint64_t units)
{
    return units < room ? (uint32_t)(units == 0 ? 1 : units) : room;
}

/* Opens the set of the next dispatch and fills in the views outside the heap. `call` is for
 * messages. */
enum epa_status device_open_set(struct device *, const char *call, struct epa_moe *, uint32_t *out);

/* Finds the set of the dispatch to combine: the oldest open one, or again the last combined one if
 * no dispatch has followed. */
enum epa_status device_find_set(struct device *, uint64_t epoch, uint32_t *out);

/* Marks the set as combined. */
void device_close_set(struct device *, uint32_t set);

/* Discards the last dispatch, for an algorithm that needs no help of its peers for this. */
enum epa_status device_discard(struct epa_algorithm *, struct epa_problem *);

/* Returns the arguments of a call. */
struct device_args device_args_of(const struct device *, const struct epa_moe *, uint32_t stage,
                                  uint32_t set);

/* Launches a kernel. `args`: the kernel's argument struct. `waits`: no early set-up, since the
 * kernel follows work other than a kernel. */
enum epa_status device_launch(struct device *, const void *kernel, struct device_args *args,
                              uint32_t blocks, bool waits);

/* With mirrors: queues the kernel of struct device_far. */
enum epa_status device_launch_far(struct device *, const void *args);

/* Copies expert outputs `y` to offset `at` of this rank's heap, unless they are there already. */
enum epa_status device_copy_outputs(struct device *, uint64_t at, const void *y, uint64_t bytes);

/* Record a message for explain() and return the status. `stage`: the called stage; "": unknown.
 * `code`: a cudaError_t. */
EPA_PRINTF(4, 5)
enum epa_status device_fail(struct device *, enum epa_status, const char *stage, const char *fmt,
                            ...);
enum epa_status device_call_failed(struct device *, const char *what, int code);

/* Explains that a kernel of device_launch_far() found no room. */
void device_explain_ring(const struct epa_fault *, const char *stage, const char *phase,
                         struct epa_error *);

/* Returns the end of the message of a time-out for data in several packets: the epoch alone does
 * not show the error, since kernels check the last packet. */
static inline const char *device_missing(const struct epa_fault *f)
{
    return f->seen >= f->wanted ? " at its end: the transfer is incomplete" : "";
}

#endif
