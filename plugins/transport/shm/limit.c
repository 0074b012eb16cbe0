/* What memory between the ranks can do, measured: bytes out of each rank while all of them
 * store into all others, and the latency of a signal.
 *
 * How fast stores are depends on how they are made and on how much there is. So a few ways
 * take turns, and the fastest is the limit: what peers could not do better. A round is what
 * an all-to-all is: who gets rows reads them before the next round overwrites them, else
 * they would stay in the cache of who writes them, and cost nothing. Reading is not timed. */
#include "shm.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "epa2a/quant.h"

enum {
    WAYS = 3,
    SIZES = 2,
    RUNS = 7, /* of each at most; the median counts */
    ROW = 4096,
    SPREAD = 16, /* peers that a row goes to in one go */
    ROUNDS_MOST = 7,
    BATCHES = 5, /* of pings */
};

enum way { BY_PUT, CACHED, STREAMED };

/* More ranks than cores take longer for the same: after these times no round is begun. */
static const uint64_t pings_ns = 8000000, runs_ns = 25000000;
static const uint64_t default_timeout_ns = 30000000000u;
static const uint64_t out_least = 64u << 10; /* out of a rank in one run: fits in an L2 */
static const uint64_t out_most = 1u << 20;   /* and what hardly does */

struct run {
    uint64_t begun, ended;
};

struct measured {
    uint32_t runs; /* the same on all ranks */
    struct run run[SIZES][WAYS][RUNS];
    double latency_ns;
};

/* One run of one rank, on all of its workers. */
struct work {
    const struct shm *s;
    uint64_t at, part; /* this rank's part at each peer begins at `at` + rank * part */
    enum way way;
    const char *row;
};

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint64_t *own_line(const struct shm *s, uint32_t rank, uint32_t line)
{
    return &s->peer[rank].segment->signal[s->segments.params.signals + line].word;
}

/* A barrier, at which rank 0 says whether time is up. Of its two words it writes each other
 * time the same: by then all have come to the barrier in between, and read the one before. */
static enum epa_status meet(struct shm *s, uint64_t end_ns, bool *enough)
{
    struct epa_transport *t = &s->base;
    uint64_t *word = own_line(s, 0, LINE_ENOUGH + (uint32_t)(s->asked++ % 2));
    enum epa_status status;

    /* Relaxed: the barrier orders it. */
    if (t->rank == 0)
        __atomic_store_n(word, clock_ns() > end_ns, __ATOMIC_RELAXED);
    status = t->ops->barrier(t, default_timeout_ns);
    *enough = __atomic_load_n(word, __ATOMIC_RELAXED) != 0;
    return status;
}

static void store_row(const struct work *w, uint64_t offset, size_t bytes)
{
    const struct epa_transport *t = &w->s->base;
    const struct epa_kernels *k = epa_kernels_get(EPA_BF16, NULL);
    enum epa_store store = w->way == CACHED ? EPA_STORE_CACHED : EPA_STORE_NONTEMPORAL;

    for (uint32_t i = 1; i < t->size; i += SPREAD) {
        uint32_t n = least(SPREAD, t->size - i);
        void *to[SPREAD];

        for (uint32_t j = 0; j < n; j++)
            to[j] = t->peer_heap[(t->rank + i + j) % t->size] + offset;
        if (w->way != BY_PUT)
            k->spread(to, n, w->row, bytes, store);
        for (uint32_t j = 0; j < n && w->way == BY_PUT; j++)
            memcpy(to[j], w->row, bytes);
    }
}

static void store_part(void *arg, uint32_t worker, uint32_t workers)
{
    const struct work *w = arg;
    uint64_t base = w->at + w->s->base.rank * w->part;

    for (uint64_t at = worker * (uint64_t)ROW; at < w->part; at += workers * (uint64_t)ROW)
        store_row(w, base + at, w->part - at < ROW ? w->part - at : ROW);
    if (w->way == STREAMED)
        epa_store_drain();
}

/* A word of each line that peers have stored. */
static void load_parts(void *arg, uint32_t worker, uint32_t workers)
{
    const struct work *w = arg;
    const struct epa_transport *t = &w->s->base;
    uint64_t sum = 0;

    for (uint32_t r = 0; r < t->size; r++) {
        const char *part = t->heap + w->at + r * w->part;

        for (uint64_t at = worker * (uint64_t)LINE; at < w->part && r != t->rank;
             at += workers * (uint64_t)LINE)
            sum += *(const uint64_t *)(const void *)(part + at);
    }
    __asm__ __volatile__("" : : "r"(sum)); /* or nobody would have to load */
}

static void on_workers(const struct shm *s, void (*fn)(void *, uint32_t, uint32_t),
                       struct work *w)
{
    if (s->backend == NULL || s->backend->memory != EPA_MEMORY_HOST ||
        s->backend->ops->parallel(s->backend, fn, w) != EPA_OK)
        fn(w, 0, 1);
}

static enum epa_status run_once(struct shm *s, struct work *w, struct run *out)
{
    struct epa_transport *t = &s->base;
    enum epa_status status = t->ops->barrier(t, default_timeout_ns);

    out->begun = clock_ns();
    if (status == EPA_OK)
        on_workers(s, store_part, w);
    out->ended = clock_ns();
    if (status == EPA_OK)
        status = t->ops->barrier(t, default_timeout_ns);
    if (status == EPA_OK)
        on_workers(s, load_parts, w);
    return status;
}

/* `part`: of each size. The first round of all is not kept: it warms up. */
static enum epa_status run_all(struct shm *s, struct work *w, const uint64_t *part,
                               struct measured *out)
{
    uint64_t end_ns = clock_ns() + runs_ns;
    bool enough = false;
    enum epa_status status = EPA_OK;

    for (uint32_t round = 0; round <= RUNS && status == EPA_OK; round++) {
        status = meet(s, end_ns, &enough);
        if (enough && round > 1)
            break;
        for (uint32_t i = 0; i < SIZES * WAYS && status == EPA_OK; i++) {
            uint32_t size = i / WAYS;

            w->way = (enum way)(i % WAYS);
            w->part = part[size];
            status = run_once(s, w, &out->run[size][w->way][round == 0 ? 0 : round - 1]);
        }
        out->runs = round;
    }
    return status;
}

/* Each with each other in turn, opposite each other on a circle that moves on; of an even
 * number the last stays put, and of an odd one, one rests. */
static uint32_t partner(uint32_t size, uint32_t round, uint32_t rank)
{
    uint32_t circle = size + size % 2 - 1; /* odd; `circle` itself is who stays put */
    uint32_t other;

    if (rank == circle)
        return (round % 2 == 0 ? round : round + circle) / 2 % circle;
    other = (round + circle - rank) % circle;
    return other == rank ? circle : other;
}

static enum epa_status ping(struct shm *s, uint32_t peer, uint64_t turn)
{
    struct failure failure = {.at = FAILED_PEAK};
    bool first = s->base.rank < peer;
    enum epa_status status = EPA_OK;

    /* Release: pairs with the acquire in shm_await(), as any signal. */
    if (first)
        __atomic_store_n(own_line(s, peer, LINE_PING), turn, __ATOMIC_RELEASE);
    status = shm_await(s, own_line(s, s->base.rank, LINE_PING), EPA_GE, turn, default_timeout_ns,
                       &failure);
    if (status != EPA_OK)
        shm_remember(s, &failure);
    else if (!first)
        __atomic_store_n(own_line(s, peer, LINE_PING), turn, __ATOMIC_RELEASE);
    return status;
}

/* The time there and back, halved; of several batches the least, for nothing makes a line
 * faster than it is, and much makes it slower. */
static enum epa_status play(struct shm *s, uint32_t peer, uint32_t turns, double *out)
{
    double ns = 0;
    uint64_t turn = s->turns;
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < BATCHES && status == EPA_OK; i++) {
        uint64_t begun = clock_ns();
        double each;

        for (uint32_t k = 0; k < turns && status == EPA_OK; k++)
            status = ping(s, peer, ++turn);
        each = (double)(clock_ns() - begun) / (2.0 * turns);
        ns = i == 0 || each < ns ? each : ns;
    }
    *out = ns > *out ? ns : *out;
    return status;
}

/* Of many ranks not every pair: partners near and far. A barrier keeps the word of one pair
 * from the next. Who rests has counted as many turns. */
static enum epa_status play_all(struct shm *s, double *latency_ns)
{
    const struct epa_world *world = &s->boot->world;
    const struct epa_transport *t = &s->base;
    uint32_t all = t->size + t->size % 2 - 1, rounds = least(all, ROUNDS_MOST);
    uint32_t turns = world->local_size > world->local_cores ? 5 : 50;
    uint64_t end_ns = clock_ns() + pings_ns;
    bool enough = false;
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < rounds && status == EPA_OK; i++) {
        uint32_t peer = partner(t->size, i * all / rounds, t->rank);

        status = meet(s, end_ns, &enough);
        if (enough && i > 0)
            break;
        if (status == EPA_OK && peer < t->size)
            status = play(s, peer, turns, latency_ns);
        s->turns += (uint64_t)BATCHES * turns;
    }
    return status;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* From the first rank that began to the last that was done: one clock on one host. */
static double rate_of(const struct measured *all, uint32_t ranks, uint32_t size,
                      uint32_t way, uint64_t out)
{
    uint32_t runs = all[0].runs;
    double ns[RUNS];

    for (uint32_t run = 0; run < runs; run++) {
        struct run whole = all[0].run[size][way][run];

        for (uint32_t r = 1; r < ranks; r++) {
            const struct run *one = &all[r].run[size][way][run];

            whole.begun = one->begun < whole.begun ? one->begun : whole.begun;
            whole.ended = one->ended > whole.ended ? one->ended : whole.ended;
        }
        ns[run] = (double)(whole.ended - whole.begun);
    }
    qsort(ns, runs, sizeof(*ns), by_size);
    return (double)out / (ns[runs / 2] > 1 ? ns[runs / 2] : 1);
}

static void judge(const struct measured *all, uint32_t ranks, const uint64_t *part,
                  struct epa_peak *out)
{
    *out = (struct epa_peak){.bytes_per_ns = 0};
    for (uint32_t i = 0; i < SIZES * WAYS && part[0] > 0; i++) {
        double rate = rate_of(all, ranks, i / WAYS, i % WAYS, part[i / WAYS] * (ranks - 1));

        out->bytes_per_ns = rate > out->bytes_per_ns ? rate : out->bytes_per_ns;
    }
    for (uint32_t r = 0; r < ranks; r++) {
        if (all[r].latency_ns > out->latency_ns)
            out->latency_ns = all[r].latency_ns;
    }
}

/* Bytes to each peer in a run, a multiple of a line. With more ranks than cores each moves
 * less, so that all of it stays short. */
static uint64_t part_of(const struct shm *s, uint64_t out, uint64_t room)
{
    const struct epa_world *world = &s->boot->world;
    uint32_t size = s->base.size;
    uint64_t part;

    if (world->local_cores < size && out > out_least)
        out = out * (world->local_cores + 1) / size > out_least
                  ? out * (world->local_cores + 1) / size
                  : out_least;
    part = out / (size - 1) < room / size ? out / (size - 1) : room / size;
    return part / LINE * LINE;
}

/* One rank has no links; a heap without room leaves the rate unknown, which is 0. */
enum epa_status shm_peak(struct epa_transport *t, uint64_t scratch, struct epa_peak *out)
{
    static const _Alignas(64) char row[ROW] = {1};
    struct shm *s = (struct shm *)t;
    struct epa_bootstrap *boot = s->segments.params.boot;
    struct work work = {.s = s, .at = (scratch + LINE - 1) / LINE * LINE, .row = row};
    uint64_t room = work.at < t->heap_bytes ? t->heap_bytes - work.at : 0;
    struct measured mine = {.latency_ns = 0}, *all;
    uint64_t part[SIZES];
    enum epa_status status;

    *out = (struct epa_peak){.bytes_per_ns = 0};
    if (t->size == 1)
        return EPA_OK;
    part[0] = part_of(s, out_least, room);
    part[1] = part_of(s, out_most, room);
    all = calloc(t->size, sizeof(*all));
    status = all == NULL ? EPA_ERR_NOMEM : play_all(s, &mine.latency_ns);
    if (status == EPA_OK && part[0] > 0)
        status = run_all(s, &work, part, &mine);
    if (status == EPA_OK)
        status = boot->allgather(boot, &mine, sizeof(mine), all);
    if (status == EPA_OK)
        judge(all, t->size, part, out);
    else if (s->failure.status == EPA_OK)
        shm_remember(s, &(struct failure){.at = FAILED_PEAK, .status = status});
    free(all);
    return status;
}
