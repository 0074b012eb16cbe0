/* What memory and cores do on their own. Rates of memory: each thread has memory of its own, which it
 * has touched first, on its own core; the best of a few runs counts, as other load only takes away.
 * Flags: two threads, each with a cache line that the other writes; the time there and back is
 * halved, and the least of several batches counts. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/interval.h"
#include "doctor/doctor.h"
#include "launch/pin.h"

enum {
    RUNS_MOST = 5,
    CORES_MOST = 16, /* whose flags are measured */
    BATCHES = 7,
    PAIRS_MOST = CORES_MOST * (CORES_MOST - 1) / 2,
};
enum operation { READ, WRITE, COPY, OPERATIONS };
enum phase { ALONE, TOGETHER, PHASES };

/* ---- memory ---- */

struct crew {
    pthread_mutex_t gate; /* held until all threads are there */
    pthread_barrier_t meet;
    uint64_t bytes;
    uint32_t workers, runs;
    bool called_off, no_memory;
    double best[PHASES][OPERATIONS]; /* bytes a nanosecond; the first worker's */
};

struct worker {
    struct crew *crew;
    uint32_t index;
    int32_t core;
    pthread_t thread;
};

uint64_t measure_bytes(uint64_t l3_bytes, uint64_t available, uint32_t cores, bool quick)
{
    uint64_t most = quick ? 32u << 20 : 256u << 20, least = 8u << 20;
    uint64_t bytes = 2 * l3_bytes, share = available / 8 / (cores > 0 ? cores : 1);

    bytes = bytes < most / 4 ? most / 4 : bytes;
    bytes = bytes > most ? most : bytes;
    bytes = bytes > share ? share : bytes;
    bytes = bytes < least ? least : bytes;
    return bytes / (2u << 20) * (2u << 20);
}

static void work(char *memory, uint64_t bytes, enum operation operation, uint32_t run)
{
    const uint64_t *word = (const uint64_t *)(const void *)memory;
    uint64_t sum[8] = {0};

    if (operation == WRITE)
        memset(memory, (int)run + 1, bytes);
    if (operation == COPY)
        memcpy(memory, memory + bytes / 2, bytes / 2);
    for (uint64_t i = 0; operation == READ && i < bytes / 8; i += 8) {
        for (uint32_t k = 0; k < 8; k++)
            sum[k] += word[i + k];
    }
    for (uint32_t k = 1; k < 8; k++)
        sum[0] += sum[k];
    __asm__ __volatile__("" : : "r"(sum[0]), "r"(memory) : "memory"); /* or nobody would have to */
}

/* Between barriers, by the clock of the first worker. */
static void take_part(const struct worker *w, char *memory, enum phase phase, uint32_t i)
{
    struct crew *crew = w->crew;
    enum operation operation = (enum operation)(i % OPERATIONS);
    double *best = &crew->best[phase][operation], rate;
    uint64_t begun;

    pthread_barrier_wait(&crew->meet);
    begun = clock_ns();
    if (phase == TOGETHER || w->index == 0)
        work(memory, crew->bytes, operation, i / OPERATIONS);
    pthread_barrier_wait(&crew->meet);
    rate = (double)crew->bytes * (phase == TOGETHER ? crew->workers : 1) /
           (operation == COPY ? 2 : 1) / (double)(clock_ns() - begun + 1);
    if (w->index == 0 && rate > *best)
        *best = rate;
}

static void *worker_main(void *arg)
{
    const struct worker *w = arg;
    struct crew *crew = w->crew;
    bool called_off;
    char *memory;

    pthread_mutex_lock(&crew->gate);
    called_off = crew->called_off;
    pthread_mutex_unlock(&crew->gate);
    if (called_off)
        return NULL;
    (void)pin_self(w->core); /* where it may not, the kernel places it */
    memory = mmap(NULL, crew->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        /* Relaxed: the barrier orders it. */
        __atomic_store_n(&crew->no_memory, true, __ATOMIC_RELAXED);
    } else {
        (void)madvise(memory, crew->bytes, MADV_HUGEPAGE); /* small pages do, slower */
        memset(memory, 1, crew->bytes);
    }
    pthread_barrier_wait(&crew->meet);
    for (uint32_t i = 0; i < PHASES * OPERATIONS * crew->runs; i++) {
        if (__atomic_load_n(&crew->no_memory, __ATOMIC_RELAXED))
            break;
        take_part(w, memory, (enum phase)(i / (OPERATIONS * crew->runs)), i);
    }
    if (memory != MAP_FAILED)
        munmap(memory, crew->bytes);
    return NULL;
}

/* Nobody works before all are there: a barrier with one missing would never open. */
static enum epa_status run_all(struct crew *crew, struct worker *w, struct epa_error *err)
{
    uint32_t n = 0;
    int failed = 0;

    pthread_mutex_lock(&crew->gate);
    while (n < crew->workers && failed == 0) {
        failed = pthread_create(&w[n].thread, NULL, worker_main, &w[n]);
        n += failed == 0;
    }
    crew->called_off = failed != 0;
    pthread_mutex_unlock(&crew->gate);
    for (uint32_t i = 0; i < n; i++)
        pthread_join(w[i].thread, NULL);
    if (failed != 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "thread %u of %u cannot be made: %s", n, crew->workers,
                        strerror(failed));
    if (crew->no_memory)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u times %llu bytes", crew->workers,
                        (unsigned long long)crew->bytes);
    return EPA_OK;
}

enum epa_status measure_memory(const int32_t *core, uint32_t cores, uint64_t bytes, bool quick,
                               struct measure_memory *out, struct epa_error *err)
{
    struct crew crew = {.gate = PTHREAD_MUTEX_INITIALIZER,
                        .bytes = bytes,
                        .workers = cores,
                        .runs = quick ? 2 : RUNS_MOST};
    struct worker *w = calloc(cores, sizeof(*w));
    enum epa_status status;

    if (w == NULL || pthread_barrier_init(&crew.meet, NULL, cores) != 0) {
        free(w);
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u threads", cores);
    }
    for (uint32_t i = 0; i < cores; i++)
        w[i] = (struct worker){.crew = &crew, .index = i, .core = core[i]};
    status = run_all(&crew, w, err);
    if (status == EPA_OK) {
        const double *one = crew.best[ALONE], *all = crew.best[TOGETHER];

        *out = (struct measure_memory){bytes, cores, {one[READ], one[WRITE], one[COPY]},
                                       {all[READ], all[WRITE], all[COPY]}};
    }
    pthread_barrier_destroy(&crew.meet);
    free(w);
    return status;
}

/* ---- flags ---- */

static const uint64_t pair_timeout_ns = 200000000; /* for one pair */

struct line {
    _Alignas(128) uint64_t word; /* neighbours are fetched in pairs */
};

struct game {
    struct line line[2];
    uint64_t turns; /* of a batch */
    uint64_t end_ns;
    bool given_up;
};

struct player {
    struct game *game;
    uint32_t index; /* 0 begins */
    int32_t core;
    double ns;
};

static bool await(struct game *g, const uint64_t *word, uint64_t want)
{
    for (uint32_t polls = 1;; polls++) {
        /* Acquire: pairs with the release in play(). */
        if (__atomic_load_n(word, __ATOMIC_ACQUIRE) >= want)
            return true;
        clock_relax();
        if (polls % 1024 != 0)
            continue;
        if (clock_ns() > g->end_ns)
            __atomic_store_n(&g->given_up, true, __ATOMIC_RELAXED);
        if (__atomic_load_n(&g->given_up, __ATOMIC_RELAXED))
            return false;
    }
}

static void *play(void *arg)
{
    struct player *p = arg;
    struct game *g = p->game;
    uint64_t *mine = &g->line[p->index].word, *other = &g->line[1 - p->index].word;
    uint64_t turn = 0;

    (void)pin_self(p->core);
    for (uint32_t batch = 0; batch <= BATCHES; batch++) {
        uint64_t begun = clock_ns();
        double ns;

        for (uint64_t i = 0; i < g->turns; i++) {
            turn++;
            /* Release: pairs with the acquire in await(). */
            if (p->index == 0)
                __atomic_store_n(other, turn, __ATOMIC_RELEASE);
            if (!await(g, mine, turn))
                return NULL;
            if (p->index == 1)
                __atomic_store_n(other, turn, __ATOMIC_RELEASE);
        }
        ns = (double)(clock_ns() - begun) / (2.0 * (double)g->turns);
        if (batch == 1 || (batch > 1 && ns < p->ns)) /* in the first, one was not there yet */
            p->ns = ns;
    }
    return NULL;
}

/* *out is 0 where that takes too long. */
static enum epa_status measure_pair(int32_t a, int32_t b, uint64_t turns, double *out,
                                    struct epa_error *err)
{
    struct game game = {.turns = turns, .end_ns = clock_ns() + pair_timeout_ns};
    struct player player[2] = {{&game, 0, a, 0}, {&game, 1, b, 0}};
    pthread_t thread[2];
    int failed = pthread_create(&thread[0], NULL, play, &player[0]);

    if (failed == 0) {
        failed = pthread_create(&thread[1], NULL, play, &player[1]);
        if (failed != 0)
            __atomic_store_n(&game.given_up, true, __ATOMIC_RELAXED);
        else
            pthread_join(thread[1], NULL);
        pthread_join(thread[0], NULL);
    }
    if (failed != 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "a thread for a flag cannot be made: %s",
                        strerror(failed));
    *out = game.given_up ? 0 : player[0].ns;
    return EPA_OK;
}

static void add_pair(struct measure_flags *to, double *ns, double one, int32_t a, int32_t b)
{
    if (!(one > 0)) {
        to->missed++;
        return;
    }
    if (to->pairs == 0 || one < to->least) {
        to->least = one;
        memcpy(to->least_core, (int32_t[]){a, b}, sizeof(to->least_core));
    }
    if (to->pairs == 0 || one > to->most) {
        to->most = one;
        memcpy(to->most_core, (int32_t[]){a, b}, sizeof(to->most_core));
    }
    ns[to->pairs++] = one;
}

enum epa_status measure_flags(const int32_t *core, uint32_t cores, bool quick,
                              struct measure_flags *out, struct epa_error *err)
{
    struct measure_flags flags = {.pairs = 0};
    uint32_t n = cores < CORES_MOST ? cores : CORES_MOST;
    double ns[PAIRS_MOST];
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < n && status == EPA_OK; i++) {
        for (uint32_t j = i + 1; j < n && status == EPA_OK; j++) {
            int32_t a = core[(uint64_t)i * cores / n], b = core[(uint64_t)j * cores / n];
            double one = 0;

            status = measure_pair(a, b, quick ? 100 : 1000, &one, err);
            if (status == EPA_OK)
                add_pair(&flags, ns, one, a, b);
        }
    }
    if (status != EPA_OK)
        return status;
    flags.median = flags.pairs > 0 ? median_by_sorting(ns, flags.pairs) : 0;
    *out = flags;
    return EPA_OK;
}
