/* A pool that waits awake.
 *
 * Work is published by counting `round` up, and a worker expert outputs by setting its own `done`
 * to the round that it finished: two cache lines a round and worker. Waking a thread that
 * sleeps takes tens of microseconds, longer than the work; so workers spin, or yield where
 * there are more threads than cores, and sleep only after long without work. */
#include "launch/workers.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/pin.h"

enum { IDLE_NS = 2000000, CLOCK_TURNS = 64 };

struct worker {
    _Alignas(64) uint32_t done; /* the last round that it finished; only it writes */
    uint32_t number;
    struct workers *pool;
    pthread_t thread;
};

struct workers {
    _Alignas(64) uint32_t round; /* counts up, may wrap: compared for equality only */
    uint32_t asleep;             /* workers in futex_wait(), or about to be */
    /* Written before `round`, read after it. */
    _Alignas(64) void (*fn)(void *, uint32_t, uint32_t); /* NULL: leave */
    void *arg;
    uint32_t n, made; /* made: threads that there are to join */
    bool crowded;     /* more threads than cores: who waits must let others run */
    const int32_t *core;
    uint32_t cores;
    struct worker worker[];
};

/* *since: when the wait began; 0 to begin with. */
static void pass_time(const struct workers *pool, uint64_t *since)
{
    if (!pool->crowded) {
        clock_relax();
        return;
    }
    if (*since == 0)
        *since = clock_ns();
    clock_pause(clock_ns() - *since, 1); /* short backs off: who calls is near */
}

/* Sleeps unless `round` has moved on from `seen`. */
static void sleep_until_work(struct workers *pool, uint32_t seen)
{
    /* Sequential, with publish(): either it sees me in `asleep` and wakes me, or I am late
     * and the kernel sees its round and does not put me to sleep. */
    __atomic_add_fetch(&pool->asleep, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &pool->round, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    __atomic_sub_fetch(&pool->asleep, 1, __ATOMIC_RELAXED);
}

static uint32_t next_round(struct workers *pool, uint32_t seen)
{
    uint64_t start = 0, since = 0;
    uint32_t round;

    /* Acquire: pairs with publish(); fn and arg are readable. */
    for (uint32_t turn = 1; (round = __atomic_load_n(&pool->round, __ATOMIC_ACQUIRE)) == seen;
         turn++) {
        pass_time(pool, &since);
        if (turn % CLOCK_TURNS != 0)
            continue;
        if (start == 0)
            start = clock_ns();
        else if (clock_ns() - start > IDLE_NS)
            sleep_until_work(pool, seen);
    }
    return round;
}

static void *worker_thread(void *arg)
{
    struct worker *me = arg;
    struct workers *pool = me->pool;

    if (pool->cores > 0)
        (void)pin_self(pool->core[me->number % pool->cores]); /* else where it may */
    for (uint32_t round = 0;;) {
        round = next_round(pool, round);
        if (pool->fn == NULL)
            return NULL;
        pool->fn(pool->arg, me->number, pool->n);
        /* Release: pairs with the acquire in workers_run(); what fn wrote is readable. */
        __atomic_store_n(&me->done, round, __ATOMIC_RELEASE);
    }
}

static uint32_t publish(struct workers *pool, void (*fn)(void *, uint32_t, uint32_t), void *arg)
{
    uint32_t round;

    pool->fn = fn;
    pool->arg = arg;
    /* Release for next_round(); sequential for sleep_until_work(). */
    round = __atomic_add_fetch(&pool->round, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&pool->asleep, __ATOMIC_SEQ_CST) != 0)
        syscall(SYS_futex, &pool->round, FUTEX_WAKE_PRIVATE, pool->n, NULL, NULL, 0);
    return round;
}

void workers_run(struct workers *pool, void (*fn)(void *, uint32_t, uint32_t), void *arg)
{
    uint64_t since = 0;
    uint32_t round;

    if (pool->n == 1) {
        fn(arg, 0, 1);
        return;
    }
    round = publish(pool, fn, arg);
    fn(arg, 0, pool->n);
    for (uint32_t w = 1; w < pool->n; w++) {
        /* Acquire: pairs with the release in worker_thread(). No limit: fn has its own, and
         * returning before it does would free what it uses. */
        while (__atomic_load_n(&pool->worker[w].done, __ATOMIC_ACQUIRE) != round)
            pass_time(pool, &since);
    }
}

void workers_destroy(struct workers *pool)
{
    if (pool == NULL)
        return;
    if (pool->made > 0)
        publish(pool, NULL, NULL);
    for (uint32_t w = 1; w <= pool->made; w++)
        pthread_join(pool->worker[w].thread, NULL);
    free(pool);
}

enum epa_status workers_create(uint32_t n, const struct epa_world *world, struct workers **out,
                               struct epa_error *err)
{
    size_t bytes = sizeof(struct workers) + n * sizeof(struct worker);
    struct workers *pool = aligned_alloc(64, bytes);

    if (pool == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u workers", n);
    memset(pool, 0, bytes);
    pool->n = n;
    pool->core = world->core;
    pool->cores = world->cores;
    pool->crowded = (uint64_t)world->local_size * n > world->local_cores ||
                    (world->cores > 0 && n > world->cores);
    for (uint32_t w = 1; w < n; w++) {
        struct worker *worker = &pool->worker[w];
        int failed;

        worker->number = w;
        worker->pool = pool;
        failed = pthread_create(&worker->thread, NULL, worker_thread, worker);
        if (failed != 0) {
            workers_destroy(pool);
            return epa_fail(err, EPA_ERR_SYSTEM, "thread for worker %u of %u: %s", w, n,
                            strerror(failed));
        }
        pool->made++;
    }
    *out = pool;
    return EPA_OK;
}
