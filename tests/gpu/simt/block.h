/* State of a running block: its threads, their wait states, and the worker, the OS thread that runs
 * it. Only the worker accesses it. */
#ifndef SIMT_BLOCK_H
#define SIMT_BLOCK_H

#include <setjmp.h>
#include <ucontext.h>

#include "simt.h"

/* Saves and restores the position of a thread with compiler builtins where available; they keep
 * registers on the stack and need no call. */
#if !defined(__clang__) || defined(__x86_64__)
struct simt_spot {
    void *word[5];
};
#define SIMT_KEEP(spot) __builtin_setjmp((spot)->word)
#define SIMT_GO(spot) __builtin_longjmp((spot)->word, 1)
#else
struct simt_spot {
    jmp_buf env;
};
#define SIMT_KEEP(spot) _setjmp((spot)->env)
#define SIMT_GO(spot) _longjmp((spot)->env, 1)
#endif

enum { SIMT_LINE = 128, SIMT_LINE_WORDS = SIMT_LINE / 8, SIMT_SNAPSHOTS = 256 };
enum { SIMT_LOADED = 1024 };
enum { SIMT_WARPS = SIMT_THREADS / SIMT_WARP, SIMT_NAMED = 16, SIMT_WARPGROUP = 128 };
/* Number of meetings after which a polling warp no longer counts as waiting: a loop meets its warp
 * between two polls. */
enum { SIMT_MEETINGS = 16 };

/* State of a lane that cannot run. */
enum lane_state {
    LANE_IN_WARP,  /* waits for other lanes of its warp */
    LANE_IN_BLOCK, /* waits for other threads of its block */
    LANE_IN_NAMED, /* waits at named barrier `op` */
    LANE_IN_MBAR,  /* waits for a phase of `bar` */
    LANE_IN_WGMMA, /* waits for other lanes of its warpgroup */
    LANE_HELD,     /* paused in favour of the lanes that it has woken */
    LANE_LEFT,
    LANE_STATES,
};

/* Address and value of the last poll of a lane. */
struct look {
    const void *at;
    uint64_t first, second;
    uint32_t again; /* number of polls with the same value */
};

/* A thread of the block. */
/* A pending copy of 16 bytes to shared memory (cp.async). */
enum { SIMT_LATER = 64 };
struct copy16 {
    char *to;
    const char *from;
    uint32_t group;
};

struct lane {
    struct simt_spot spot; /* position to continue from */
    uint64_t result;       /* result of the operation it waited in */
    enum lane_state state;
    /* Operation of that state, and its call site. */
    int op;
    uint32_t mask;
    uint32_t polls; /* polls of clock or flags since it last met other lanes */
    const void *caller;
    struct look word, pair;
    const uint64_t *bar; /* LANE_IN_MBAR: barrier and parity of the awaited phase */
    uint32_t parity;
    bool bulk_open;       /* has bulk stores outside a group */
    uint32_t bulk_groups; /* committed groups of bulk stores */
    uint32_t bulk_read;   /* groups whose reads have been waited for */
    struct copy16 later[SIMT_LATER];
    uint32_t laters, later_groups; /* pending copies, and committed groups of them */
    uint32_t registers;            /* 0: initial number */
    uint32_t number;
    bool begun;
    struct thread *thread; /* NULL: lane not used so far */
    void *kept;            /* for AddressSanitizer, while another lane runs */
};

/* Located at the end of the stack of a lane. */
struct thread {
    struct simt_place place; /* first member, for simt_place() */
    char *stack;
    size_t stack_bytes;
    ucontext_t first;
};

/* Lanes of a warp that have arrived at a common operation. */
struct meeting {
    enum simt_warp_op op;
    uint32_t mask, here;
    uint64_t value[SIMT_WARP];
    uint32_t arg[SIMT_WARP];
};

/* A line of 128 bytes as the first lane of an instruction read it. Each lane gets its part once. */
struct snapshot {
    const char *line;
    uint32_t seen[SIMT_LINE / 16]; /* bit mask of lanes for each 16 bytes */
    uint64_t word[SIMT_LINE_WORDS];
};

struct warp {
    struct meeting meeting[SIMT_WARP]; /* indexed by the lowest lane of the mask */
    struct snapshot *snapshot;         /* [SIMT_SNAPSHOTS] */
    uint32_t snapshots;
    uint32_t meetings; /* meetings since the last unsuccessful poll; SIMT_MEETINGS: not polling */
};

/* A named barrier: arrived threads and expected threads. */
struct named {
    uint32_t here, threads;
};

struct worker {
    struct lane lane[SIMT_THREADS], *now;
    uint32_t ready[SIMT_WARPS]; /* bit mask of lanes that can run */
    struct warp warp[SIMT_WARPS];
    uint32_t lanes, left;
    /* State of __syncthreads() and similar operations. */
    int block_op;
    uint32_t here, counted;
    int block_result;
    bool polled; /* a lane only polled in this round */
    struct simt_spot spot;
    void *kept;
    const void *bottom; /* stack of the caller */
    size_t stack_bytes;
    const struct simt_kernel *kernel;
    const void *args;
    struct kernel_traffic *traffic; /* count of the rank that launched the kernel; NULL: none */
    const void *loaded[SIMT_WARPS][SIMT_LOADED]; /* words that a warp has loaded, for this count */
    struct named named[SIMT_NAMED];
    uint32_t waiting[LANE_STATES]; /* number of lanes in simt_wait(), per state */
    uint32_t held[SIMT_WARPS];     /* bit mask of lanes in simt_hold() */
    uint32_t hold_rounds;          /* remaining rounds of simt_hold() */
    char *shared;                  /* dynamic shared memory */
    size_t shared_bytes;
    uint64_t round, turn; /* a round is a turn of each lane that can run */
    uint64_t random;
    uint32_t idle;                /* consecutive rounds without runnable lanes */
    bool looked;                  /* clock or global memory was polled since then */
    bool fenced;                  /* simt_async_publish() is due */
    struct simt_cluster *cluster; /* NULL: the block has no cluster */
    uint32_t place_in_cluster;
    struct async *async;
    struct matrix *matrix;
};

/* Returns the calling lane. */
static inline struct lane *simt_self(void)
{
    const struct simt_place *place = simt_place();

    return &place->worker->lane[place->number];
}

struct worker *simt_worker_create(void);
/* Runs one block to its end. */
void simt_block_run(struct worker *, const struct simt_grid *, const struct simt_kernel *,
                    const void *args, uint3 block, struct simt_cluster *);
/* Makes lanes in this state runnable for which `which` is true. Returns their number. */
uint32_t simt_wake(struct worker *, enum lane_state,
                   bool (*which)(const struct lane *, const void *), const void *with);
/* Suspends the lane until another thread makes it ready. */
void simt_wait(struct worker *, enum lane_state, int op, const void *caller);
/* Pauses the warp of this lane for some rounds, or until no other progress is possible: an
 * operation of lane 0 on behalf of the warp must not run before the others have done their part. */
void simt_hold(struct worker *);
/* Returns a number below `n`, the same in each run. */
uint32_t simt_random(struct worker *, uint32_t n);
/* Passes the turn to the next lane; returns at the next turn of this lane. */
void simt_pass(struct worker *);
/* Passes the turn to the next warps, so that the lanes of this warp continue in order in the next
 * round. */
void simt_pass_warp(struct worker *);
/* Reports an error of the kernel and the positions of its threads, then ends the program. */
__attribute__((noreturn, format(printf, 2, 3))) void simt_die(const struct worker *,
                                                              const char *fmt, ...);

/* Checks that the warpgroups of the block have exchanged registers within its total. */
void simt_registers_end(const struct worker *);

static inline bool simt_can_go_on(const struct worker *w, const struct lane *lane)
{
    return (w->ready[lane->number / SIMT_WARP] >> lane->number % SIMT_WARP & 1) != 0;
}

static inline void simt_is_ready(struct worker *w, const struct lane *lane)
{
    w->ready[lane->number / SIMT_WARP] |= 1u << lane->number % SIMT_WARP;
}

static inline void simt_is_not_ready(struct worker *w, struct lane *lane, enum lane_state state)
{
    lane->state = state;
    w->ready[lane->number / SIMT_WARP] &= ~(1u << lane->number % SIMT_WARP);
}

/* Returns zeroed memory or ends the program. */
void *simt_alloc(size_t bytes);

/* ---- async.c, cluster.c, matrix.c ---- */

struct async *simt_async_create(void);
struct matrix *simt_matrix_create(void);
void simt_async_begin(struct worker *);
/* Completes the copies of the block. Ends the program if the block should have waited for one. */
void simt_async_end(struct worker *);
/* Runs the copies that are due after a round. */
void simt_async_round(struct worker *);
/* Runs the next copy. Returns false if there are none. */
bool simt_async_next(struct worker *);
/* Publishes fenced stores of threads to the async proxy. */
void simt_async_publish(struct worker *);
/* Ends the program if `what` is about to read bytes of shared memory from `at` on that a thread
 * stored without a fence. */
void simt_async_check(struct worker *, uint32_t at, uint32_t bytes, const char *what);
/* Prints to standard error what the phase still misses. */
void simt_mbar_tell(const struct worker *, const uint64_t *bar, uint32_t parity);
/* Applies arrivals and bytes from any sender. Returns the number of threads that can continue. */
uint32_t simt_mbar_change(struct worker *, uint64_t *bar, uint32_t arrivals, int64_t bytes);
void simt_tile_issue(struct worker *, void *to, const CUtensorMap *, int32_t x, int32_t y,
                     uint64_t *bar);
/* Returns `n` clusters, or NULL without memory. The caller frees them. */
struct simt_cluster *simt_clusters_create(uint64_t n);
struct simt_cluster *simt_cluster_at(struct simt_cluster *all, uint64_t block);
void simt_cluster_begin(struct worker *, struct simt_cluster *, uint64_t block);
void simt_cluster_end(struct worker *);
/* Handles messages of the other block: some of them after a round, or all when no thread could run
 * since time `since`. Returns false if there were none; `looked` is set if more may arrive. */
void simt_cluster_round(struct worker *);
bool simt_cluster_next(struct worker *, uint64_t since);
void simt_matrix_begin(struct worker *);
/* Ends the program if a warpgroup has not completed its common operations. */
void simt_matrix_end(struct worker *);

#endif
