/* What the links can do, measured: bytes out of each rank while all of them put to all others,
 * and the latency of a signal. */
#include "verbs.h"

#include <stdlib.h>

#include "base/clock.h"

enum {
    RUNS = 5, /* after one that finds out how much to move; the median counts */
    ALIGN = 4096,
    PART_MOST = 1 << 20, /* of one put */
    BATCHES = 5,
    TURNS = 20, /* of a batch */
};

static const double run_ns = 5e6;
static const uint64_t run_bytes_most = 256u << 20;
static const uint64_t default_timeout_ns = 60000000000u;

struct measured {
    int32_t status;
    double put_ns[RUNS], latency_ns;
};

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *values, uint32_t n)
{
    qsort(values, n, sizeof(*values), by_size);
    return values[n / 2];
}

static enum epa_status put_part(struct verbs *v, uint64_t at, uint64_t bytes, uint32_t peer)
{
    struct epa_transport *t = &v->base;
    struct waiting w = {.timeout_ns = default_timeout_ns};
    uint64_t place = at + t->rank * bytes;
    enum epa_status status;

    while ((status = t->ops->put(t, place, t->heap + place, bytes, peer)) == EPA_AGAIN) {
        status = verbs_go_on(v, &w);
        if (status != EPA_OK)
            break;
    }
    if (status == EPA_ERR_ABORTED || status == EPA_ERR_TIMEOUT)
        v->failure = (struct failure){.at = FAILED_PEAK, .status = status};
    return status;
}

/* All ranks at once: `passes` times `bytes` to each other. */
static enum epa_status put_dedup(struct verbs *v, uint64_t at, uint64_t bytes,
                                uint32_t passes, double *out)
{
    struct epa_transport *t = &v->base;
    enum epa_status status = verbs_barrier(v, default_timeout_ns);
    uint64_t begun = clock_ns();

    for (uint32_t pass = 0; pass < passes; pass++) {
        for (uint32_t i = 1; i < t->size && status == EPA_OK; i++)
            status = put_part(v, at, bytes, (t->rank + i) % t->size);
    }
    if (status == EPA_OK)
        status = t->ops->quiet(t);
    *out = (double)(clock_ns() - begun);
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

static enum epa_status ping(struct verbs *v, uint32_t peer, uint64_t turn)
{
    bool first = v->base.rank < peer;
    enum epa_status status = EPA_OK;

    if (!first)
        status = verbs_wait(v, line_ping(v), EPA_GE, turn, default_timeout_ns, FAILED_PEAK);
    if (status == EPA_OK)
        status = verbs_set(v, line_ping(v), turn, peer, default_timeout_ns);
    if (first && status == EPA_OK)
        status = verbs_wait(v, line_ping(v), EPA_GE, turn, default_timeout_ns, FAILED_PEAK);
    return status;
}

static enum epa_status play(struct verbs *v, uint32_t peer, double *latency_ns)
{
    double each[BATCHES], ns;
    uint64_t turn = v->turns;
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < BATCHES; i++) {
        uint64_t begun = clock_ns();

        for (uint32_t k = 0; k < TURNS && status == EPA_OK; k++)
            status = ping(v, peer, ++turn);
        each[i] = (double)(clock_ns() - begun) / (2 * TURNS);
    }
    ns = median(each, BATCHES);
    if (ns > *latency_ns)
        *latency_ns = ns;
    return status;
}

/* A barrier keeps the words of one pair from the next. Who rests has counted as many turns. */
static enum epa_status play_all(struct verbs *v, double *latency_ns)
{
    uint32_t size = v->base.size, rounds = size + size % 2 - 1;
    enum epa_status status = EPA_OK;

    for (uint32_t round = 0; round < rounds && status == EPA_OK; round++) {
        uint32_t peer = partner(size, round, v->base.rank);

        status = verbs_barrier(v, default_timeout_ns);
        if (status == EPA_OK && peer < size)
            status = play(v, peer, latency_ns);
        v->turns += BATCHES * TURNS;
    }
    return status;
}

/* So that all return the same. */
static enum epa_status share(struct verbs *v, const struct measured *mine,
                             struct measured *all)
{
    enum epa_status status = v->boot->allgather(v->boot, mine, sizeof(*mine), all);

    for (uint32_t r = 0; r < v->base.size && status == EPA_OK; r++)
        status = all[r].status;
    if (status != EPA_OK && mine->status == EPA_OK) /* else that is what there is to tell */
        v->failure = (struct failure){.at = FAILED_PEAK, .status = status};
    return mine->status != EPA_OK ? mine->status : status;
}

static double slowest(const struct measured *all, uint32_t ranks, uint32_t run)
{
    double ns = 1;

    for (uint32_t r = 0; r < ranks; r++) {
        if (all[r].put_ns[run] > ns)
            ns = all[r].put_ns[run];
    }
    return ns;
}

static enum epa_status measure(struct verbs *v, uint64_t at, uint64_t bytes,
                               struct measured *all, struct epa_peak *out)
{
    struct measured mine = {.status = EPA_OK};
    uint64_t a_pass = bytes * (v->base.size - 1), passes;
    double each[RUNS];
    enum epa_status status;

    mine.status = put_dedup(v, at, bytes, 1, &mine.put_ns[0]);
    if (mine.status == EPA_OK)
        mine.status = play_all(v, &mine.latency_ns);
    status = share(v, &mine, all);
    if (status != EPA_OK)
        return status;
    passes = (uint64_t)(run_ns / slowest(all, v->base.size, 0)) + 1;
    if (passes > run_bytes_most / a_pass + 1)
        passes = run_bytes_most / a_pass + 1;
    for (uint32_t i = 0; i < RUNS && mine.status == EPA_OK; i++)
        mine.status = put_dedup(v, at, bytes, (uint32_t)passes, &mine.put_ns[i]);
    status = share(v, &mine, all);
    if (status != EPA_OK)
        return status;
    for (uint32_t i = 0; i < RUNS; i++)
        each[i] = slowest(all, v->base.size, i);
    out->latency_ns = 0;
    for (uint32_t r = 0; r < v->base.size; r++) {
        if (all[r].latency_ns > out->latency_ns)
            out->latency_ns = all[r].latency_ns;
    }
    out->bytes_per_ns = (double)(a_pass * passes) / median(each, RUNS);
    return EPA_OK;
}

/* One rank has no links, and a heap without room cannot tell: 0 is "unknown". */
enum epa_status verbs_peak(struct epa_transport *t, uint64_t scratch,
                            struct epa_peak *out)
{
    struct verbs *v = (struct verbs *)t;
    uint64_t at = (scratch + ALIGN - 1) / ALIGN * ALIGN, bytes;
    struct measured *all;
    enum epa_status status;

    bytes = at < t->heap_bytes ? (t->heap_bytes - at) / t->size / ALIGN * ALIGN : 0;
    if (bytes > PART_MOST)
        bytes = PART_MOST;
    *out = (struct epa_peak){.bytes_per_ns = 0};
    if (t->size == 1 || bytes == 0)
        return EPA_OK;
    all = calloc(t->size, sizeof(*all));
    if (all == NULL) {
        v->failure = (struct failure){.at = FAILED_PEAK, .status = EPA_ERR_NOMEM};
        return EPA_ERR_NOMEM;
    }
    status = measure(v, at, bytes, all, out);
    free(all);
    return status;
}
