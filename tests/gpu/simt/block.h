/* A block while it runs: its threads, where they wait, and who runs them. Of one OS thread, a
 * worker, which alone touches it. */
#ifndef SIMT_BLOCK_H
#define SIMT_BLOCK_H

#include <setjmp.h>
#include <ucontext.h>

#include "simt.h"

/* Where a thread goes on: by the compiler, which keeps its registers on its stack and needs no
 * call, where there is such a thing. */
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
enum { SIMT_WARPS = SIMT_THREADS / SIMT_WARP, SIMT_NAMED = 16, SIMT_WARPGROUP = 128 };
/* A warp waits that has looked in vain and has met less often since: a loop meets its warp
 * between two looks. */
enum { SIMT_MEETINGS = 16 };

/* Where a lane is that cannot go on. */
enum lane_state {
    LANE_IN_WARP,  /* waits for others of its warp */
    LANE_IN_BLOCK, /* and of its block */
    LANE_IN_NAMED, /* and of named barrier `op` */
    LANE_IN_MBAR,  /* for a phase of `bar` */
    LANE_IN_WGMMA, /* for others of its warpgroup */
    LANE_HELD,     /* lets those go first that it has woken */
    LANE_LEFT,
    LANE_STATES,
};

/* What a lane looked at last, and what it found. */
struct look {
    const void *at;
    uint64_t first, second;
    uint32_t again; /* looks that found the same */
};

/* A thread of the block. */
/* 16 bytes on their way to shared memory (cp.async). */
enum { SIMT_LATER = 64 };
struct copy16 {
    char *to;
    const char *from;
    uint32_t group;
};

struct lane {
    struct simt_spot spot; /* where it goes on */
    uint64_t result;       /* of what it waited in */
    enum lane_state state;
    /* What that is, and since where. */
    int op;
    uint32_t mask;
    uint32_t polls; /* of other things, since it last met others */
    const void *caller;
    struct look word, pair;
    const uint64_t *bar; /* LANE_IN_MBAR: whose phase of that parity does not end */
    uint32_t parity;
    bool bulk_open;       /* it has bulk stores that are in no group */
    uint32_t bulk_groups; /* committed, */
    uint32_t bulk_read;   /* of which it has waited for those before to be read */
    struct copy16 later[SIMT_LATER];
    uint32_t laters, later_groups; /* of which so many are committed */
    uint32_t registers;            /* 0: as many as at first */
    uint32_t number;
    bool begun;
    struct thread *thread; /* NULL: there never was such a lane */
    void *kept;            /* for AddressSanitizer, while another runs */
};

/* At the end of a lane's stack. */
struct thread {
    struct simt_place place; /* first: simt_place() */
    char *stack;
    size_t stack_bytes;
    ucontext_t first;
};

/* Lanes of a warp on their way to do something together. */
struct meeting {
    enum simt_warp_op op;
    uint32_t mask, here;
    uint64_t value[SIMT_WARP];
    uint32_t arg[SIMT_WARP];
};

/* A line of 128 bytes as the first lane of an instruction found it; each lane gets its part
 * of that, once. */
struct snapshot {
    const char *line;
    uint32_t seen[SIMT_LINE / 16]; /* by lane, of each 16 bytes */
    uint64_t word[SIMT_LINE_WORDS];
};

struct warp {
    struct meeting meeting[SIMT_WARP]; /* by the mask's lowest lane */
    struct snapshot *snapshot;         /* [SIMT_SNAPSHOTS] */
    uint32_t snapshots;
    uint32_t meetings; /* since it looked in vain; SIMT_MEETINGS: it does not wait */
};

/* A named barrier: threads that are there, and that are to be. */
struct named {
    uint32_t here, threads;
};

struct worker {
    struct lane lane[SIMT_THREADS], *now;
    uint32_t ready[SIMT_WARPS]; /* lanes that can go on, as bits */
    struct warp warp[SIMT_WARPS];
    uint32_t lanes, left;
    /* Of __syncthreads() and its like. */
    int block_op;
    uint32_t here, counted;
    int block_result;
    bool polled; /* in this round a lane only looked whether something has come */
    struct simt_spot spot;
    void *kept;
    const void *bottom; /* of the stack that it was called on */
    size_t stack_bytes;
    const struct simt_kernel *kernel;
    const void *args;
    struct named named[SIMT_NAMED];
    uint32_t waiting[LANE_STATES]; /* lanes in simt_wait() */
    uint32_t held[SIMT_WARPS];     /* lanes in simt_hold(), as bits */
    uint32_t hold_rounds;          /* that these stay there */
    char *shared;                  /* dynamic shared memory */
    size_t shared_bytes;
    uint64_t round, turn; /* a round is a turn of each lane that can go on */
    uint64_t random;
    uint32_t idle;         /* times in a row that no thread could go on */
    bool looked;           /* at the clock or at global memory, since then */
    bool fenced;           /* simt_async_publish() is due */
    struct simt_cluster *cluster; /* NULL: the block is alone */
    uint32_t place_in_cluster;
    struct async *async;
    struct matrix *matrix;
};

/* The lane that calls. */
static inline struct lane *simt_self(void)
{
    const struct simt_place *place = simt_place();

    return &place->worker->lane[place->number];
}

struct worker *simt_worker_create(void);
/* One block from beginning to end. */
void simt_block_run(struct worker *, const struct simt_grid *, const struct simt_kernel *,
                    const void *args, uint3 block, struct simt_cluster *);
/* Lanes that wait so, where `which` is true of them, go on. */
uint32_t simt_wake(struct worker *, enum lane_state,
                   bool (*which)(const struct lane *, const void *), const void *with);
/* Others get their turn until somebody makes this lane ready. */
void simt_wait(struct worker *, enum lane_state, int op, const void *caller);
/* This lane's warp pauses for some rounds, or until nothing else can happen: what lane 0
 * does for all of it must not come before the others have done their part. */
void simt_hold(struct worker *);
/* A number below `n`, the same in each run. */
uint32_t simt_random(struct worker *, uint32_t n);
/* To whoever is next; comes back when it is this lane's turn. */
void simt_pass(struct worker *);
/* Says what is wrong with the kernel, and where its threads are; then ends the program. */
__attribute__((noreturn, format(printf, 2, 3))) void simt_die(const struct worker *,
                                                              const char *fmt, ...);

/* Registers of the block's warpgroups were given and taken as they may be. */
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

/* Zeros, or the end of the program. */
void *simt_alloc(size_t bytes);

/* ---- async.c, cluster.c, matrix.c ---- */

struct async *simt_async_create(void);
struct matrix *simt_matrix_create(void);
void simt_async_begin(struct worker *);
/* Copies of the block come to their end; it ends the program if it should have waited for some. */
void simt_async_end(struct worker *);
/* After a round: copies that are due. */
void simt_async_round(struct worker *);
/* One copy, if there is one. */
bool simt_async_next(struct worker *);
/* What threads have stored and fenced can be seen by the async proxy. */
void simt_async_publish(struct worker *);
/* Ends the program if there are bytes in `bytes` of shared memory from `at` on that a thread
 * stored without a fence, as `what` is about to read them. */
void simt_async_check(struct worker *, uint32_t at, uint32_t bytes, const char *what);
/* Says on standard error what is missing to end that phase. */
void simt_mbar_tell(const struct worker *, const uint64_t *bar, uint32_t parity);
/* Arrivals and bytes for the block, whoever sent them; returns how many threads go on. */
uint32_t simt_mbar_change(struct worker *, uint64_t *bar, uint32_t arrivals, int64_t bytes);
void simt_tile_issue(struct worker *, void *to, const CUtensorMap *, int32_t x, int32_t y,
                     uint64_t *bar);
/* NULL: no memory. Of `n` clusters; free() it. */
struct simt_cluster *simt_clusters_create(uint64_t n);
struct simt_cluster *simt_cluster_at(struct simt_cluster *all, uint64_t block);
void simt_cluster_begin(struct worker *, struct simt_cluster *, uint64_t block);
void simt_cluster_end(struct worker *);
/* What the other block has sent: some of it; or all, as no thread can go on, since then. False:
 * there was nothing; `looked` says whether something may come. */
void simt_cluster_round(struct worker *);
bool simt_cluster_next(struct worker *, uint64_t since);
void simt_matrix_begin(struct worker *);
/* Ends the program where a warpgroup has not done together what it should. */
void simt_matrix_end(struct worker *);

#endif
