/* A block while it runs: its threads, where they wait, and who runs them. Of one OS thread, a
 * worker, which alone touches it. */
#ifndef SIMT_BLOCK_H
#define SIMT_BLOCK_H

#include <setjmp.h>
#include <ucontext.h>

#include "simt.h"

enum { SIMT_LINE = 128, SIMT_LINE_WORDS = SIMT_LINE / 8, SIMT_SNAPSHOTS = 256 };

enum lane_state {
    LANE_READY,
    LANE_IN_WARP,  /* waits for others of its warp */
    LANE_IN_BLOCK, /* and of its block */
    LANE_LEFT,
};

/* A thread of the block, on a stack of its own. */
struct lane {
    struct simt_place place;
    enum lane_state state;
    bool begun;
    char *stack;
    void *kept; /* for AddressSanitizer, while another runs */
    ucontext_t first;
    jmp_buf env;
    /* What it waits in, and since where; what came of it. */
    int op;
    uint32_t mask;
    const void *caller;
    uint64_t result;
    /* Since it last met others: how often it has looked at something, and what last. */
    uint32_t polls;
    const void *looked_at;
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
};

struct worker {
    struct lane *lane[SIMT_THREADS], *now;
    struct warp warp[SIMT_THREADS / SIMT_WARP];
    uint32_t lanes, left;
    /* Of __syncthreads() and its like. */
    int block_op;
    uint32_t here, counted;
    bool polled; /* in this round a lane only looked whether something has come */
    jmp_buf env;
    void *kept;
    const void *bottom; /* of the stack that it was called on */
    size_t stack_bytes;
    const struct simt_kernel *kernel;
    const void *args;
};

/* The worker that this thread is; NULL in all others. */
extern __thread struct worker *simt_worker;

struct worker *simt_worker_create(void);
/* One block from beginning to end. */
void simt_block_run(struct worker *, const struct simt_grid *, const struct simt_kernel *,
                    const void *args, uint3 block);
/* To whoever is next; comes back when it is this lane's turn. */
void simt_pass(struct worker *);
/* Says what is wrong with the kernel, and where its threads are; then ends the program. */
__attribute__((noreturn, format(printf, 2, 3))) void simt_die(const struct worker *,
                                                              const char *fmt, ...);

#endif
