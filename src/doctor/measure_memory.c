/* Rates of memory. Each thread has memory of its own, which it has touched first, on its own
 * core. All begin together; a rate is all bytes by the time from the first that began to the
 * last that was done, the best of a few runs: other load only takes away. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "doctor/measure.h"
#include "launch/pin.h"

enum { OPERATIONS = 3, RUNS_MOST = 5, PHASES = 2 };
enum operation { READ, WRITE, COPY };
enum phase { ALONE, TOGETHER };

struct crew {
    pthread_mutex_t gate; /* held until all threads are there */
    pthread_barrier_t meet;
    uint64_t bytes;
    uint32_t runs;
    bool called_off, no_memory;
};

struct worker {
    struct crew *crew;
    uint32_t index;
    int32_t core;
    pthread_t thread;
    char *memory;
    struct span {
        uint64_t begun, ended;
    } span[PHASES][OPERATIONS][RUNS_MOST];
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

static void read_all(const char *memory, uint64_t bytes)
{
    const uint64_t *word = (const uint64_t *)(const void *)memory;
    uint64_t sum[8] = {0}, all = 0;

    for (uint64_t i = 0; i < bytes / 8; i += 8) {
        for (uint32_t k = 0; k < 8; k++)
            sum[k] += word[i + k];
    }
    for (uint32_t k = 0; k < 8; k++)
        all += sum[k];
    __asm__ __volatile__("" : : "r"(all)); /* or nobody would have to read */
}

static void work(const struct worker *w, enum operation operation, uint32_t run)
{
    uint64_t bytes = w->crew->bytes;

    if (operation == READ)
        read_all(w->memory, bytes);
    else if (operation == WRITE)
        memset(w->memory, (int)run + 1, bytes);
    else
        memcpy(w->memory, w->memory + bytes / 2, bytes / 2);
    __asm__ __volatile__("" : : "r"(w->memory) : "memory");
}

static void take_part(struct worker *w, enum phase phase)
{
    for (uint32_t i = 0; i < OPERATIONS * w->crew->runs; i++) {
        struct span *span = &w->span[phase][i % OPERATIONS][i / OPERATIONS];

        pthread_barrier_wait(&w->crew->meet);
        span->begun = clock_ns();
        if (phase == TOGETHER || w->index == 0)
            work(w, (enum operation)(i % OPERATIONS), i / OPERATIONS);
        span->ended = clock_ns();
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct crew *crew = w->crew;
    bool called_off;

    pthread_mutex_lock(&crew->gate);
    called_off = crew->called_off;
    pthread_mutex_unlock(&crew->gate);
    if (called_off)
        return NULL;
    (void)pin_self(w->core); /* where it may not, the kernel places it */
    w->memory = mmap(NULL, crew->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (w->memory == MAP_FAILED) {
        /* Relaxed: the barrier orders it. */
        __atomic_store_n(&crew->no_memory, true, __ATOMIC_RELAXED);
    } else {
        (void)madvise(w->memory, crew->bytes, MADV_HUGEPAGE); /* small pages do, slower */
        memset(w->memory, 1, crew->bytes);
    }
    pthread_barrier_wait(&crew->meet);
    if (!__atomic_load_n(&crew->no_memory, __ATOMIC_RELAXED)) {
        take_part(w, ALONE);
        take_part(w, TOGETHER);
    }
    if (w->memory != MAP_FAILED)
        munmap(w->memory, crew->bytes);
    return NULL;
}

static double best_rate(const struct worker *w, uint32_t workers, enum phase phase,
                        enum operation operation)
{
    const struct crew *crew = w->crew;
    double bytes = (double)(operation == COPY ? crew->bytes / 2 : crew->bytes) * workers;
    double best = 0;

    for (uint32_t run = 0; run < crew->runs; run++) {
        struct span whole = w[0].span[phase][operation][run];
        double rate;

        for (uint32_t i = 1; i < workers; i++) {
            const struct span *one = &w[i].span[phase][operation][run];

            whole.begun = one->begun < whole.begun ? one->begun : whole.begun;
            whole.ended = one->ended > whole.ended ? one->ended : whole.ended;
        }
        rate = bytes / (double)(whole.ended > whole.begun ? whole.ended - whole.begun : 1);
        best = rate > best ? rate : best;
    }
    return best;
}

static struct measure_rates rates_of(const struct worker *w, uint32_t workers, enum phase phase)
{
    return (struct measure_rates){.read = best_rate(w, workers, phase, READ),
                                  .write = best_rate(w, workers, phase, WRITE),
                                  .copy = best_rate(w, workers, phase, COPY)};
}

/* Nobody works before all are there: a barrier with one missing would never open. */
static enum epa_status run_all(struct worker *w, uint32_t workers, struct epa_error *err)
{
    struct crew *crew = w->crew;
    uint32_t n = 0;
    int failed = 0;

    pthread_mutex_lock(&crew->gate);
    while (n < workers && failed == 0) {
        failed = pthread_create(&w[n].thread, NULL, worker_main, &w[n]);
        n += failed == 0;
    }
    crew->called_off = failed != 0;
    pthread_mutex_unlock(&crew->gate);
    for (uint32_t i = 0; i < n; i++)
        pthread_join(w[i].thread, NULL);
    if (failed != 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "thread %u of %u cannot be made: %s", n, workers,
                        strerror(failed));
    if (crew->no_memory)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u times %llu bytes", workers,
                        (unsigned long long)crew->bytes);
    return EPA_OK;
}

enum epa_status measure_memory(const int32_t *core, uint32_t cores, uint64_t bytes, bool quick,
                               struct measure_memory *out, struct epa_error *err)
{
    struct crew crew = {
        .gate = PTHREAD_MUTEX_INITIALIZER, .bytes = bytes, .runs = quick ? 2 : RUNS_MOST};
    struct worker *w = calloc(cores, sizeof(*w));
    enum epa_status status;
    int failed;

    if (w == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u threads", cores);
    failed = pthread_barrier_init(&crew.meet, NULL, cores);
    if (failed != 0) {
        free(w);
        return epa_fail(err, EPA_ERR_SYSTEM, "a barrier of %u threads: %s", cores,
                        strerror(failed));
    }
    for (uint32_t i = 0; i < cores; i++) {
        w[i].crew = &crew;
        w[i].index = i;
        w[i].core = core[i];
    }
    status = run_all(w, cores, err);
    if (status == EPA_OK)
        *out = (struct measure_memory){.bytes = bytes,
                                       .cores = cores,
                                       .one = rates_of(w, 1, ALONE),
                                       .all = rates_of(w, cores, TOGETHER)};
    pthread_barrier_destroy(&crew.meet);
    free(w);
    return status;
}
