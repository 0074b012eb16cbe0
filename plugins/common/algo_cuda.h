/* What algorithms on GPUs share on the host: set-up, calls, what went wrong, and the trace of
 * their kernels. An algorithm says in a struct device_kind what is its own, puts a struct device
 * first into its state, and a struct device_args first into what its kernels take. */
#ifndef ALGO_CUDA_H
#define ALGO_CUDA_H

#include <stdbool.h>

#include <epa2a/algorithm.h>
#include <epa2a/backend.h>
#include <epa2a/both.h>

#include "device_setup.h"

enum {
    DEVICE_THREADS = 256, /* of a block */
    DEVICE_WARPS = DEVICE_THREADS / 32,
    DEVICE_MOST_WARPS = 16, /* where a kernel takes other blocks */
    DEVICE_STAGES = 4,      /* kernels of an algorithm, at most */
    DEVICE_PHASES = 6,      /* of a kernel, that are stamped */
    DEVICE_TOKENS = 4,      /* of these, what struct device_note is of */
    DEVICE_COUNTERS = 2     /* of the work of a kernel */
};

/* How a token's row is sent: its 16 bits as they are; quantised from bf16 or f16; as it was
 * quantised before. */
enum device_input { DEVICE_PLAIN, DEVICE_QUANTISE, DEVICE_QUANTISE_F16, DEVICE_FP8, DEVICE_INPUTS };

static inline enum device_input device_input_of(bool fp8, int dtype, int x_dtype)
{
    return !fp8                      ? DEVICE_PLAIN
           : x_dtype == EPA_FP8_E4M3 ? DEVICE_FP8
           : dtype == EPA_F16        ? DEVICE_QUANTISE_F16
                                     : DEVICE_QUANTISE;
}

/* The cell that entry `i` is in: the last of `n`, in ascending order, that begins no later. */
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

/* When a warp ended a phase of a stage, by the device's nanosecond clock, and how long that took;
 * in which call: those of a call before the last one of the stage are of no use, and nobody clears
 * them. 16 bytes, which one lane stores. */
struct device_stamp {
    uint64_t end; /* 0: never */
    uint32_t took_ns, call;
};

struct device_stamps {
    struct device_stamp phase[DEVICE_STAGES * DEVICE_PHASES];
};

/* Of a token or row: when a warp of a stage had sent it or seen it arrive, and how long it took. */
struct device_note {
    uint64_t end; /* 0: never */
    uint32_t took_ns, call;
    uint32_t warp, stage, peer, token; /* token UINT32_MAX: of the counts of a peer */
};

/* What kernels are given, by value. */
struct device_args {
    struct epa_device_view v;
    uint32_t signal, stage; /* stage: which of the kernels */
    uint64_t timeout_ns;
    uint32_t tokens, max_tokens, hidden, group, experts, local, topk;

    const void *x;
    const float *x_scale;
    const int32_t *expert;
    const float *weight, *factor;
    const void *y;
    void *out;

    /* Of the set at hand. */
    uint32_t *recv_count, *rows; /* rows: that are in use */
    uint64_t *recv_start;

    /* This rank's alone. Calls that have ended are counted in device memory, so that a graph that
     * is launched again goes on counting: the same number for each of as many blocks as a kernel
     * may have. A block reads its own alone, and so needs no other to have done so before it
     * writes it anew. */
    unsigned long long *calls;
    uint32_t most_blocks;
    /* Units of work that have been taken. Calls of a stage use two of these in turn; each clears
     * the other for the one after it. */
    uint32_t (*taken)[DEVICE_COUNTERS];
    struct device_stamps *stamps; /* of `stamped` warps, `warps` a block */
    uint32_t stamped, warps;
    struct device_note *note; /* [notes], each for one token or row */
    uint32_t notes;
};

/* Views of what a dispatch received; rows: how many. */
struct device_set {
    uint32_t *recv_count, *rows;
    uint64_t *recv_start;
    bool open;
    uint64_t epoch;
};

struct device;

struct device_kind {
    const char *name;
    uint32_t stages; /* kernels */
    uint32_t halves; /* kernels of a call: they count it together */
    /* Names, by stage; NULL: there is no such phase */
    const char *phase[DEVICE_STAGES * DEVICE_PHASES];
    /* Where what is its own is in the rank's memory (device_take()). */
    void (*place)(struct device *, char *memory, uint64_t *at);
    /* What a kernel gave up waiting for, in the words of the host code. */
    void (*explain)(const struct epa_fault *, uint32_t rank, struct epa_error *);
};

/* An algorithm and the GPU of its rank. */
struct device {
    struct epa_algorithm base; /* first */
    const struct device_kind *kind;
    struct epa_transport *t;
    struct epa_backend *backend;
    uint64_t heap; /* the algorithm's part: offset from the start of any rank's heap */
    bool early;    /* a kernel may be set up while the one before runs */
    void *memory;  /* of this rank alone */
    void *mirrors; /* NULL: kernels reach the heaps of all ranks */
    int (*queue_far)(void *stream, const void *args);
    struct epa_error last;            /* of the host's making */
    struct epa_trace *trace;          /* NULL: no profile of the run */
    bool stamps;                      /* kernels stamp their phases for it */
    struct device_args args;          /* what is the same in all calls */
    uint32_t resident[DEVICE_STAGES]; /* blocks that fit on the device at once */
    uint32_t threads[DEVICE_STAGES];  /* of a block */
    uint32_t shared_bytes[DEVICE_STAGES];
    unsigned long long *calls;             /* [calls that are counted][args.most_blocks] */
    uint32_t (*taken)[2][DEVICE_COUNTERS]; /* [kind->stages] */
    /* Buffer sets, one or two: dispatches take them in turn, on all ranks alike, and combines
     * give them back in the same order. */
    uint32_t sets;
    uint64_t epoch, combined; /* of the last dispatch, and of the last that was combined */
    struct device_set set[2];
};

/* ---- set-up ---- */

static inline uint32_t device_up16(uint64_t bytes)
{
    return (uint32_t)((bytes + 15) / 16 * 16);
}

/* Makes a state of `bytes`, all 0 but its device, if device and transport will do for an algorithm
 * that takes `heap_bytes` of the heap. `early`: it asks for kernels to be set up
 * early. */
enum epa_status device_create(const struct device_kind *, size_t bytes,
                              const struct epa_algorithm_params *, uint64_t heap_bytes,
                              uint32_t sets, bool early, void *out, struct epa_error *);

/* A kernel with its shared memory, and one that may be launched in its place; NULL: none. */
struct device_kernel {
    const void *kernel, *other;
    const char *name; /* for what is said */
    uint32_t threads; /* of a block; 0: DEVICE_THREADS */
};

/* Loads the kernels of all stages, counts how many blocks each has (`most`, if it is not 0), and
 * takes the rank's own memory. */
enum epa_status device_set_up(struct device *, const struct device_kernel *, uint32_t most,
                              struct epa_error *);

/* A kernel between those of a call, one block, a thread for each rank: it has what these have
 * stored in mirrors put to other nodes, and waits for what comes from there. `args`: the struct
 * that it takes; queue() returns a cudaError_t. */
struct device_far {
    const void *kernel;
    int (*queue)(void *stream, const void *args);
};

/* Where the transport has other nodes: in args.v, heaps and signals of their ranks are memory of
 * this one's GPU, mirrors of what is the algorithm's of a heap. Loads the kernel between nodes. */
enum epa_status device_make_mirrors(struct device *, uint64_t heap_bytes, uint32_t signals,
                                    struct device_far, struct epa_error *);

/* Bytes of device memory beside the heap for a state that has kind, sets and args.local, and what
 * kind->place() reads. Counters of blocks, a few KiB, are not included: only the device knows how
 * many blocks fit. */
uint64_t device_scratch_bytes(struct device *);

/* The end of a set-up: gives the algorithm out, or destroys it where `status` is a failure. */
enum epa_status device_created(struct device *, enum epa_status, struct epa_algorithm **out);

/* When it returns the bytes are 0. */
enum epa_status device_clear(const struct device *, void *to, uint64_t bytes, struct epa_error *);

/* Writes the trace, and gives all back; NULL will do. */
void device_destroy(struct epa_algorithm *);

/* ---- calls ---- */

/* Offset of one of a region's buffers, from the start of any rank's heap; `at`: from the
 * start of the algorithm's part. */
static inline uint64_t device_region(const struct device *d, uint64_t at, uint64_t bytes,
                                     uint32_t which)
{
    return d->heap + at + bytes * which;
}

static inline char *device_own(const struct device *d, uint64_t offset)
{
    return d->t->peer_heap[d->t->rank] + offset;
}

/* Blocks for that many units of work: on as many multiprocessors as there are before two
 * share one. */
static inline uint32_t device_blocks_for(uint32_t room, uint64_t units)
{
    return units < room ? (uint32_t)(units == 0 ? 1 : units) : room;
}

/* The set of the next dispatch, which it opens, with the views that are not in the heap;
 * `call`: for what is said. */
enum epa_status device_open_set(struct device *, const char *call, struct epa_moe *, uint32_t *out);

/* The set of the dispatch that is combined: the oldest open one, or once more the last that
 * was combined, with no dispatch since. */
enum epa_status device_find_set(struct device *, uint64_t epoch, uint32_t *out);

/* It has been combined. */
void device_close_set(struct device *, uint32_t set);

/* Gives up the last dispatch: of an algorithm that asks nothing of its peers for that. */
enum epa_status device_discard(struct epa_algorithm *, struct epa_problem *);

/* The arguments of a call. */
struct device_args device_args_of(const struct device *, const struct epa_moe *, uint32_t stage,
                                  uint32_t set);

/* `args`: the struct that the kernel takes. `waits`: it is not set up early, as it follows what
 * is no kernel. */
enum epa_status device_launch(struct device *, const void *kernel, struct device_args *args,
                              uint32_t blocks, bool waits);

/* Where there are mirrors: queues the kernel of struct device_far. */
enum epa_status device_launch_far(struct device *, const void *args);

/* Expert outputs `y` elsewhere are copied to offset `at` of this rank's heap. */
enum epa_status device_copy_outputs(struct device *, uint64_t at, const void *y, uint64_t bytes);

/* Keep a sentence for who asks; `code`: a cudaError_t. They return the status. */
EPA_PRINTF(3, 4)
enum epa_status device_fail(struct device *, enum epa_status, const char *fmt, ...);
enum epa_status device_call_failed(struct device *, const char *what, int code);

/* Of a kernel of device_launch_far() that found no room. */
void device_explain_ring(const struct epa_fault *, const char *stage, struct epa_error *);

/* What is said behind the number that was found, of what arrives in several packets: the end
 * of them is looked at. */
static inline const char *device_missing(const struct epa_fault *f)
{
    return f->seen >= f->wanted ? " at its end: not all of it has arrived" : "";
}

#endif
