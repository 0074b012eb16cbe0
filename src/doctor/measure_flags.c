/* How long a flag takes from core to core: two threads, each with a cache line that the other
 * writes. The time there and back is halved, and the least of several batches counts. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "doctor/measure.h"
#include "launch/pin.h"

enum { CORES_MOST = 16, BATCHES = 7, PAIRS_MOST = CORES_MOST * (CORES_MOST - 1) / 2 };

static const uint64_t default_timeout_ns = 200000000; /* for one pair */

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

/* 0: no expert output in time. */
static enum epa_status measure_pair(int32_t a, int32_t b, uint64_t turns, double *out,
                                    struct epa_error *err)
{
    struct game game = {.turns = turns, .end_ns = clock_ns() + default_timeout_ns};
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

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void add_pair(struct measure_flags *to, double *ns, double one, int32_t a, int32_t b)
{
    if (!(one > 0)) {
        to->missed++;
        return;
    }
    if (to->pairs == 0 || one < to->least) {
        to->least = one;
        to->least_core[0] = a;
        to->least_core[1] = b;
    }
    if (to->pairs == 0 || one > to->most) {
        to->most = one;
        to->most_core[0] = a;
        to->most_core[1] = b;
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
    qsort(ns, flags.pairs, sizeof(*ns), by_size);
    flags.median = flags.pairs > 0 ? ns[flags.pairs / 2] : 0;
    *out = flags;
    return EPA_OK;
}
