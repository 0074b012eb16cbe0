/* Runs a block. Its threads are fibers that take turns. The lanes of a warp run in order, each
 * until it has to meet other lanes or polls without success.
 *
 * The order of lanes matters: when eight lanes store a line together, the last lane completes it. A
 * lane runs out of order only in a waiting loop, after which a kernel has to converge its warp
 * anyway. */
#undef _FORTIFY_SOURCE /* fortified headers replace longjmp by a variant for one stack only */
#include "block.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/terminal.h"
#include "asan.h"
#include "epa2a/wait.h"

enum {
    PAGE = 4096,
    GARBAGE = 0xa5,
    COLOUR_BYTES = 192,
    GUARD_EVERY = 8, /* stacks */
    MIN_BACKOFF_NS = 20000,
    MAX_BACKOFF_NS = 20000000,
    TOLD = 12, /* reported groups of threads */
    LATE = 4,
    LONG = 64, /* rounds that a warp may be held */
    IDLE = 16, /* consecutive times without progress until the block counts as deadlocked */
};

/* Device code refers to dynamic shared memory by this name. */
extern SIMT_EXPORT __thread char shared[SIMT_SHARED_BYTES];
__thread char shared[SIMT_SHARED_BYTES] __attribute__((aligned(1024)));

void *simt_shared(void)
{
    return shared;
}

/* ---- reports of errors ---- */

static const char *name_of(const struct worker *w, const struct lane *lane)
{
    static const char *const warp[] = {[SIMT_SYNCWARP] = "__syncwarp",
                                       [SIMT_SHFL] = "a shuffle",
                                       [SIMT_BALLOT] = "a vote",
                                       [SIMT_OR] = "__reduce_or_sync"};
    static const char *const block[] = {[SIMT_SYNCTHREADS] = "__syncthreads",
                                        [SIMT_SYNC_AND] = "__syncthreads_and",
                                        [SIMT_SYNC_OR] = "__syncthreads_or"};

    static const char *const other[] = {[LANE_IN_NAMED] = "a named barrier",
                                        [LANE_IN_MBAR] = "an mbarrier",
                                        [LANE_IN_WGMMA] = "wgmma of its warpgroup",
                                        [LANE_HELD] = "no such place",
                                        [LANE_LEFT] = "the end of the kernel"};

    return simt_can_go_on(w, lane)        ? "no such place"
           : lane->state == LANE_IN_WARP  ? warp[lane->op]
           : lane->state == LANE_IN_BLOCK ? block[lane->op]
                                          : other[lane->state];
}

static bool is_alike(const struct worker *w, const struct lane *a, const struct lane *b)
{
    return simt_can_go_on(w, a) == simt_can_go_on(w, b) && a->state == b->state && a->op == b->op &&
           a->mask == b->mask && a->caller == b->caller &&
           (a->state != LANE_IN_MBAR || (a->bar == b->bar && a->parity == b->parity));
}

static void tell_group(const struct worker *w, uint32_t first, uint32_t last)
{
    const struct lane *lane = &w->lane[first];
    Dl_info info = {0};

    fprintf(stderr, "  threads %u to %u: %s", first, last, name_of(w, lane));
    if (!simt_can_go_on(w, lane) && lane->state == LANE_IN_WARP)
        fprintf(stderr, " of lanes %08x", lane->mask);
    if (!simt_can_go_on(w, lane) && lane->state == LANE_IN_NAMED)
        fprintf(stderr, ", %d, where %u of %u are", lane->op, w->named[lane->op].here,
                w->named[lane->op].threads);
    if (!simt_can_go_on(w, lane) && lane->state == LANE_IN_MBAR)
        simt_mbar_tell(w, lane->bar, lane->parity);
    if (!simt_can_go_on(w, lane) && lane->state != LANE_LEFT && dladdr(lane->caller, &info) != 0)
        fprintf(stderr, ", %s+%#zx", info.dli_fname,
                (size_t)((const char *)lane->caller - (const char *)info.dli_fbase));
    fprintf(stderr, "\n");
}

void simt_die(const struct worker *w, const char *fmt, ...)
{
    const uint3 block = w->lane[0].thread->place.block;
    uint32_t reported = 0, first = 0;
    va_list args;

    fprintf(stderr, "simt: block %u,%u,%u: ", block.x, block.y, block.z);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fprintf(stderr, "; where its threads are (addr2line -e FILE PLACE says the line):\n");
    for (uint32_t i = 1; i <= w->lanes && reported < TOLD; i++) {
        if (i < w->lanes && is_alike(w, &w->lane[first], &w->lane[i]))
            continue;
        tell_group(w, first, i - 1);
        first = i;
        reported++;
    }
    abort();
}

void *simt_alloc(size_t bytes)
{
    void *memory = calloc(1, bytes);

    if (memory == NULL)
        abort();
    return memory;
}

/* ---- turns ---- */

/* Returns the next lane from `number` on that can run, or NULL at the end of the round. */
static struct lane *ready_from(struct worker *w, uint32_t number)
{
    uint32_t warp = number / SIMT_WARP;
    uint32_t left = number < w->lanes ? w->ready[warp] & ~0u << number % SIMT_WARP : 0;

    while (left == 0 && ++warp * SIMT_WARP < w->lanes)
        left = w->ready[warp];
    return left == 0 ? NULL : &w->lane[warp * SIMT_WARP + (uint32_t)__builtin_ctz(left)];
}

__attribute__((noreturn)) static void go_to(struct worker *w, struct lane *lane)
{
    w->now = lane;
    if (lane->begun)
        SIMT_GO(&lane->spot);
    lane->begun = true;
    setcontext(&lane->thread->first);
    abort();
}

__attribute__((noreturn)) static void go_back(struct worker *w)
{
    SIMT_GO(&w->spot);
}

/* Passes the turn to the first lane from thread `from` on that can run. */
static void pass_to(struct worker *w, uint32_t from)
{
    struct lane *lane = w->now, *next = ready_from(w, from);

    w->turn++;
    if (w->fenced && (next == NULL || next->number / SIMT_WARP != lane->number / SIMT_WARP))
        simt_async_publish(w);
    if (next != NULL)
        SIMT_LEAVE(&lane->kept, next->thread->stack, next->thread->stack_bytes);
    else
        SIMT_LEAVE(&lane->kept, w->bottom, w->stack_bytes);
    if (SIMT_KEEP(&lane->spot) == 0) {
        if (next != NULL)
            go_to(w, next);
        go_back(w);
    }
    SIMT_ENTER(simt_self()->kept, NULL, NULL);
}

void simt_pass(struct worker *w)
{
    pass_to(w, w->now->number + 1);
}

void simt_pass_warp(struct worker *w)
{
    pass_to(w, (w->now->number / SIMT_WARP + 1) * SIMT_WARP);
}

void simt_wait(struct worker *w, enum lane_state state, int op, const void *caller)
{
    struct lane *lane = w->now;

    simt_is_not_ready(w, lane, state);
    lane->op = op;
    lane->mask = 0;
    lane->caller = caller;
    w->waiting[state]++;
    simt_pass(w);
}

uint32_t simt_wake(struct worker *w, enum lane_state state,
                   bool (*which)(const struct lane *, const void *), const void *with)
{
    uint32_t woken = 0;

    for (uint32_t i = 0, left = w->waiting[state]; left > 0; i++) {
        struct lane *lane = &w->lane[i];

        if (simt_can_go_on(w, lane) || lane->state != state)
            continue;
        left--;
        if (!which(lane, with))
            continue;
        simt_is_ready(w, lane);
        w->waiting[state]--;
        woken++;
    }
    return woken;
}

void simt_hold(struct worker *w)
{
    uint32_t warp = w->now->number / SIMT_WARP;

    for (uint32_t left = w->ready[warp]; left != 0; left &= left - 1)
        w->lane[warp * SIMT_WARP + (uint32_t)__builtin_ctz(left)].state = LANE_HELD;
    w->held[warp] |= w->ready[warp];
    w->ready[warp] = 0;
    w->hold_rounds = simt_random(w, 2) == 0 ? 1 + simt_random(w, LATE) : LONG;
    simt_pass(w);
}

static bool release_held(struct worker *w)
{
    bool any = w->hold_rounds > 0;

    for (uint32_t i = 0; any && i < SIMT_WARPS; i++) {
        w->ready[i] |= w->held[i];
        w->held[i] = 0;
    }
    w->hold_rounds = 0;
    return any;
}

uint32_t simt_random(struct worker *w, uint32_t n)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (uint32_t)(w->random >> 33) % n;
}

/* Main function of a lane, which runs the same thread number in block after block. The worker
 * itself called the first one. */
static void lane_main(void)
{
    struct worker *w = simt_place()->worker;
    const void *bottom = NULL;
    size_t bytes = 0;

    SIMT_ENTER(NULL, &bottom, &bytes);
    if (w->bottom == NULL) {
        w->bottom = bottom;
        w->stack_bytes = bytes;
    }
    for (;;) {
        w->kernel->run(w->kernel->kernel, w->args);
        simt_is_not_ready(w, simt_self(), LANE_LEFT);
        w->left++;
        simt_pass(w);
    }
}

/* Starts a round: each lane that can run gets a turn, beginning with `first`. */
static void begin_round(struct worker *w, struct lane *first)
{
    SIMT_LEAVE(&w->kept, first->thread->stack, first->thread->stack_bytes);
    if (SIMT_KEEP(&w->spot) == 0)
        go_to(w, first);
    SIMT_ENTER(w->kept, NULL, NULL);
}

/* A separate function, since the compiler has to assume that getcontext() returns twice. */
static __attribute__((noinline)) bool context_is_kept(ucontext_t *out)
{
    return getcontext(out) == 0;
}

/* Creates a thread on the stack at `stack`, with `spare` unused bytes at its end. */
static struct thread *thread_at(char *stack, bool guarded, size_t spare)
{
    struct thread *t = (void *)(stack + SIMT_STACK - SIMT_SELF);

    _Static_assert(sizeof(*t) <= SIMT_SELF, "what is above a stack fits there");
    if ((guarded && mprotect(stack, PAGE, PROT_NONE) != 0) || !context_is_kept(&t->first))
        abort();
    t->stack = stack + PAGE;
    t->stack_bytes = SIMT_STACK - SIMT_SELF - PAGE - spare;
    t->first.uc_stack.ss_sp = t->stack;
    t->first.uc_stack.ss_size = t->stack_bytes;
    makecontext(&t->first, lane_main, 0);
    return t;
}

/* Creates the threads of a warp. The ends of their stacks have different page offsets, since the
 * stacks would otherwise share a few cache lines. Only some stacks have a guard page: each is a
 * mapping, of which Linux permits 65,530 per process, and an endless recursion still reaches a
 * guard page. */
static void threads_create(struct lane *lane)
{
    char *at = mmap(NULL, (SIMT_WARP + 1) * (size_t)SIMT_STACK, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    char *stack = at + (SIMT_STACK - (uintptr_t)at % SIMT_STACK);

    if (at == MAP_FAILED)
        abort();
    for (size_t i = 0; i < SIMT_WARP; i++)
        lane[i].thread =
            thread_at(stack + i * SIMT_STACK, i % GUARD_EVERY == 0, i * COLOUR_BYTES % PAGE);
}

/* ---- a block ---- */

struct worker *simt_worker_create(void)
{
    struct worker *w = simt_alloc(sizeof(*w));

    for (uint32_t i = 0; i < SIMT_THREADS / SIMT_WARP; i++)
        w->warp[i].snapshot = simt_alloc(SIMT_SNAPSHOTS * sizeof(*w->warp[i].snapshot));
    w->async = simt_async_create();
    w->matrix = simt_matrix_create();
    return w;
}

static void place_lanes(struct worker *w, const struct simt_grid *grid, uint3 block)
{
    const dim3 n = grid->threads;

    for (uint32_t i = 0; i < w->lanes; i++) {
        struct lane *lane = &w->lane[i];

        if (lane->thread == NULL)
            threads_create(lane);
        lane->thread->place = (struct simt_place){
            .thread = {i % n.x, i / n.x % n.y, i / n.x / n.y},
            .block = block,
            .threads = n,
            .blocks = grid->blocks,
            .number = i,
            .worker = w,
        };
        lane->number = i;
        lane->polls = 0;
        lane->word = lane->pair = (struct look){NULL, 0, 0, 0};
        lane->bulk_open = false;
        lane->bulk_groups = lane->bulk_read = lane->registers = 0;
        simt_is_ready(w, lane);
    }
    for (uint32_t i = 0; i < SIMT_WARPS; i++) {
        w->warp[i].snapshots = 0;
        w->warp[i].meetings = SIMT_MEETINGS;
    }
}

/* Returns true if all lanes that can run only poll. */
static bool all_wait(const struct worker *w)
{
    for (uint32_t i = 0; i * SIMT_WARP < w->lanes; i++)
        if (w->ready[i] != 0 && w->warp[i].meetings >= SIMT_MEETINGS)
            return false;
    return true;
}

/* Sleeps to leave the core to other threads, longer after a longer wait, since more blocks than
 * cores may wait. It never uses sched_yield(): tests run side by side, each in its own session and
 * scheduler group, and Linux 6.18 does not run other groups for a minute while threads of some
 * groups yield in loops. */
static void rest(uint64_t *since)
{
    uint64_t now = epa_now_ns(), backoff;

    *since = *since == 0 ? now : *since;
    backoff = (now - *since) / 4;
    backoff = backoff < MIN_BACKOFF_NS   ? MIN_BACKOFF_NS
              : backoff < MAX_BACKOFF_NS ? backoff
                                         : MAX_BACKOFF_NS;
    nanosleep(&(struct timespec){.tv_nsec = (long)backoff}, NULL);
}

static bool every(const struct lane *lane, const void *with)
{
    return true;
}

/* Wakes lanes that wait for mbarriers, since their kernels may poll other words as well. */
static uint32_t look_again(struct worker *w)
{
    return simt_wake(w, LANE_IN_MBAR, every, NULL);
}

/* Handles a round without runnable lanes: completes bulk copies, or reports a deadlock. */
static void handle_no_ready_lane(struct worker *w, uint64_t *since)
{
    if (simt_cluster_next(w, *since) || simt_async_next(w) || release_held(w)) {
        *since = 0;
        return;
    }
    w->idle = w->looked ? 0 : w->idle + 1;
    w->looked = false;
    if (w->idle > IDLE || look_again(w) == 0)
        simt_die(w, "its threads wait for each other in vain");
    if (w->idle == 0)
        rest(since);
}

static void block_begin(struct worker *w, const struct simt_grid *grid, uint3 block)
{
    w->lanes = grid->threads.x * grid->threads.y * grid->threads.z;
    w->left = w->here = w->idle = 0;
    w->shared = shared;
    w->shared_bytes = grid->shared_bytes;
    w->random = 0x9e3779b97f4a7c15u * (block.x + 1) + block.y * 31 + block.z;
    memset(w->named, 0, sizeof(w->named));
    memset(w->waiting, 0, sizeof(w->waiting));
    memset(w->held, 0, sizeof(w->held));
    w->hold_rounds = 0;
    place_lanes(w, grid, block);
    memset(shared, GARBAGE, grid->shared_bytes);
    SIMT_POISON(shared + grid->shared_bytes, sizeof(shared) - grid->shared_bytes);
    simt_async_begin(w);
    simt_matrix_begin(w);
}

static void block_end(struct worker *w)
{
    simt_cluster_end(w);
    simt_registers_end(w);
    simt_matrix_end(w);
    simt_async_end(w);
    SIMT_UNPOISON(shared, sizeof(shared));
}

void simt_block_run(struct worker *w, const struct simt_grid *grid,
                    const struct simt_kernel *kernel, const void *args, uint3 block,
                    struct simt_cluster *cluster)
{
    uint64_t since = 0;

    w->kernel = kernel;
    w->args = args;
    block_begin(w, grid, block);
    simt_cluster_begin(w, cluster, block.x);
    while (w->left < w->lanes) {
        struct lane *first = ready_from(w, 0);

        if (first == NULL) {
            handle_no_ready_lane(w, &since);
            continue;
        }
        w->polled = false;
        begin_round(w, first);
        w->round++;
        if (w->hold_rounds == 1)
            (void)release_held(w);
        w->hold_rounds -= w->hold_rounds > 0;
        simt_cluster_round(w);
        simt_async_round(w);
        if (!all_wait(w)) {
            since = 0;
        } else if (w->polled && ready_from(w, 0) != NULL) {
            if (!release_held(w))
                rest(&since);
            (void)look_again(w);
        }
    }
    block_end(w);
}
