/* Runs a block: its threads are fibers that take turns, those of a warp in order of their
 * lanes, each until it meets others or looks in vain for what is to come.
 *
 * The order of lanes matters: what eight lanes store as one line ends with its last lane.
 * A lane goes out of turn only in a loop that waits, after which a kernel has to bring its
 * warp together anyway. */
#undef _FORTIFY_SOURCE /* its longjmp() knows one stack */
#include "block.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "asan.h"
#include "base/clock.h"

enum {
    STACK_BYTES = 256 << 10,
    PAGE = 4096,
    GARBAGE = 0xa5,
    LEAST_NAP_NS = 50000,
    MOST_NAP_NS = 2000000,
    TOLD = 12, /* groups of threads */
};

__thread struct worker *simt_worker;
__thread const struct simt_place *simt_place;

/* By this name device code finds it. */
extern SIMT_EXPORT __thread char shared[SIMT_SHARED_BYTES];
__thread char shared[SIMT_SHARED_BYTES] __attribute__((aligned(128)));

/* ---- what is wrong ---- */

static const char *name_of(const struct lane *lane)
{
    static const char *const warp[] = {[SIMT_SYNCWARP] = "__syncwarp",
                                       [SIMT_SHFL] = "a shuffle",
                                       [SIMT_BALLOT] = "a vote",
                                       [SIMT_ADD] = "__reduce_add_sync",
                                       [SIMT_MIN] = "__reduce_min_sync",
                                       [SIMT_MAX] = "__reduce_max_sync",
                                       [SIMT_MIN_SIGNED] = "__reduce_min_sync",
                                       [SIMT_MAX_SIGNED] = "__reduce_max_sync",
                                       [SIMT_AND] = "__reduce_and_sync",
                                       [SIMT_OR] = "__reduce_or_sync",
                                       [SIMT_XOR] = "__reduce_xor_sync",
                                       [SIMT_MATCH] = "__match_any_sync"};
    static const char *const block[] = {[SIMT_SYNCTHREADS] = "__syncthreads",
                                        [SIMT_SYNC_AND] = "__syncthreads_and",
                                        [SIMT_SYNC_OR] = "__syncthreads_or",
                                        [SIMT_SYNC_COUNT] = "__syncthreads_count"};

    return lane->state == LANE_IN_WARP    ? warp[lane->op]
           : lane->state == LANE_IN_BLOCK ? block[lane->op]
           : lane->state == LANE_LEFT     ? "the end of the kernel"
                                          : "no such place";
}

static bool is_alike(const struct lane *a, const struct lane *b)
{
    return a->state == b->state && a->op == b->op && a->mask == b->mask &&
           a->caller == b->caller;
}

static void tell_group(const struct worker *w, uint32_t first, uint32_t last)
{
    const struct lane *lane = w->lane[first];
    Dl_info info = {0};

    fprintf(stderr, "  threads %u to %u: %s", first, last, name_of(lane));
    if (lane->state == LANE_IN_WARP)
        fprintf(stderr, " of lanes %08x", lane->mask);
    if (lane->state != LANE_LEFT && lane->state != LANE_READY &&
        dladdr(lane->caller, &info) != 0)
        fprintf(stderr, ", %s+%#zx", info.dli_fname,
                (size_t)((const char *)lane->caller - (const char *)info.dli_fbase));
    fprintf(stderr, "\n");
}

void simt_die(const struct worker *w, const char *fmt, ...)
{
    const uint3 block = w->lane[0]->place.block;
    uint32_t told = 0, first = 0;
    va_list args;

    fprintf(stderr, "simt: block %u,%u,%u: ", block.x, block.y, block.z);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fprintf(stderr, "; where its threads are (addr2line -e FILE PLACE says the line):\n");
    for (uint32_t i = 1; i <= w->lanes && told < TOLD; i++) {
        if (i < w->lanes && is_alike(w->lane[first], w->lane[i]))
            continue;
        tell_group(w, first, i - 1);
        first = i;
        told++;
    }
    abort();
}

/* ---- turns ---- */

void simt_pass(struct worker *w)
{
    struct lane *lane = w->now;

    SIMT_LEAVE(&lane->kept, w->bottom, w->stack_bytes);
    if (_setjmp(lane->env) == 0)
        _longjmp(w->env, 1);
    SIMT_ENTER(simt_worker->now->kept, &simt_worker->bottom, &simt_worker->stack_bytes);
}

/* A lane is the same thread of block after block. */
static void lane_main(void)
{
    SIMT_ENTER(NULL, &simt_worker->bottom, &simt_worker->stack_bytes);
    for (;;) {
        const struct simt_kernel *kernel = simt_worker->kernel;

        kernel->run(kernel->kernel, simt_worker->args);
        simt_worker->now->state = LANE_LEFT;
        simt_worker->left++;
        simt_pass(simt_worker);
    }
}

static void give_turn(struct worker *w, struct lane *lane)
{
    w->now = lane;
    simt_place = &lane->place;
    SIMT_LEAVE(&w->kept, lane->stack, STACK_BYTES);
    if (_setjmp(w->env) == 0) {
        if (lane->begun)
            _longjmp(lane->env, 1);
        lane->begun = true;
        setcontext(&lane->first);
    }
    SIMT_ENTER(simt_worker->kept, NULL, NULL);
}

static struct lane *lane_create(void)
{
    struct lane *lane = calloc(1, sizeof(*lane));
    char *memory = mmap(NULL, PAGE + STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);

    if (lane == NULL || memory == MAP_FAILED || mprotect(memory, PAGE, PROT_NONE) != 0 ||
        getcontext(&lane->first) != 0) {
        fprintf(stderr, "simt: no memory for a thread of a block\n");
        abort();
    }
    lane->stack = memory + PAGE;
    lane->first.uc_stack.ss_sp = lane->stack;
    lane->first.uc_stack.ss_size = STACK_BYTES;
    makecontext(&lane->first, lane_main, 0);
    return lane;
}

/* ---- a block ---- */

struct worker *simt_worker_create(void)
{
    struct worker *w = calloc(1, sizeof(*w));

    for (uint32_t i = 0; w != NULL && i < SIMT_THREADS / SIMT_WARP; i++) {
        w->warp[i].snapshot = calloc(SIMT_SNAPSHOTS, sizeof(*w->warp[i].snapshot));
        if (w->warp[i].snapshot == NULL)
            return NULL; /* and the test with it */
    }
    return w;
}

static void place_lanes(struct worker *w, const struct simt_grid *grid, uint3 block)
{
    const dim3 n = grid->threads;

    for (uint32_t i = 0; i < w->lanes; i++) {
        if (w->lane[i] == NULL)
            w->lane[i] = lane_create();
        w->lane[i]->place = (struct simt_place){
            .thread = {i % n.x, i / n.x % n.y, i / n.x / n.y},
            .block = block,
            .threads = n,
            .blocks = grid->blocks,
        };
        w->lane[i]->state = LANE_READY;
        w->lane[i]->polls = 0;
        w->lane[i]->looked_at = NULL;
    }
    for (uint32_t i = 0; i < SIMT_THREADS / SIMT_WARP; i++)
        w->warp[i].snapshots = 0;
}

/* Between rounds in which lanes looked for what is to come: others need the core, the more
 * so the longer it takes, as there are more blocks that wait than cores. */
static void rest(uint64_t *since)
{
    uint64_t now = clock_ns(), nap;

    *since = *since == 0 ? now : *since;
    nap = (now - *since) / 4;
    if (nap < LEAST_NAP_NS)
        sched_yield();
    else
        nanosleep(
            &(struct timespec){.tv_nsec = (long)(nap < MOST_NAP_NS ? nap : MOST_NAP_NS)},
            NULL);
}

void simt_block_run(struct worker *w, const struct simt_grid *grid,
                    const struct simt_kernel *kernel, const void *args, uint3 block)
{
    uint64_t since = 0;

    w->lanes = grid->threads.x * grid->threads.y * grid->threads.z;
    w->left = w->here = 0;
    w->kernel = kernel;
    w->args = args;
    place_lanes(w, grid, block);
    memset(shared, GARBAGE, grid->shared_bytes);
    SIMT_POISON(shared + grid->shared_bytes, sizeof(shared) - grid->shared_bytes);
    while (w->left < w->lanes) {
        bool any = false;

        w->polled = false;
        for (uint32_t i = 0; i < w->lanes; i++) {
            if (w->lane[i]->state != LANE_READY)
                continue;
            any = true;
            give_turn(w, w->lane[i]);
        }
        if (!any)
            simt_die(w, "its threads wait for each other in vain");
        if (w->polled)
            rest(&since);
        else
            since = 0;
    }
    SIMT_UNPOISON(shared, sizeof(shared));
}
