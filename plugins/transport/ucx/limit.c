/* What the links can do, measured: bytes out of each rank while all of them put to all
 * others, and the latency of a signal. How much a run moves is found out first, since links
 * differ by a factor of a thousand. */
#include "ucx.h"

#include <stdlib.h>

enum {
    RUNS = 5, /* the median counts */
    ALIGN = 64,
    PART_MOST = 1 << 20, /* of one put */
    BATCHES = 5,
    TURNS = 20, /* of a batch */
};

static const double run_ns = 4e6;
static const uint64_t run_bytes_most = 64u << 20;

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

static enum epa_status put_part(struct ucx *u, uint64_t at, uint64_t bytes, uint32_t peer)
{
    struct epa_transport *t = &u->base;
    uint64_t begun = ucx_now_ns();
    enum epa_status status;

    while ((status = t->ops->put(t, at + t->rank * bytes, t->heap + at + t->rank * bytes,
                                 bytes, peer)) == EPA_AGAIN) {
        status = wait_progress(u);
        if (status != EPA_OK)
            return status;
        if (ucx_now_ns() - begun > u->config.default_timeout_ns) {
            u->failure = (struct failure){.at = FAILED_PEAK, .status = EPA_ERR_TIMEOUT};
            return EPA_ERR_TIMEOUT;
        }
    }
    return status;
}

/* All ranks at once: `passes` times `bytes` to each other. */
static enum epa_status put_dedup(struct ucx *u, uint64_t at, uint64_t bytes, uint32_t passes,
                                double *out)
{
    struct epa_transport *t = &u->base;
    enum epa_status status = wait_barrier(u, u->config.default_timeout_ns);
    uint64_t begun = ucx_now_ns();

    for (uint32_t pass = 0; pass < passes; pass++) {
        for (uint32_t i = 1; i < t->size && status == EPA_OK; i++)
            status = put_part(u, at, bytes, (t->rank + i) % t->size);
    }
    if (status == EPA_OK)
        status = t->ops->quiet(t);
    *out = (double)(ucx_now_ns() - begun);
    return status;
}

/* Each with each other in turn, the circle method: with whom in which round; `n` even, and
 * who is paired with n - 1 of an odd number rests. */
static uint32_t partner(uint32_t n, uint32_t round, uint32_t rank)
{
    uint32_t even = n + n % 2, other;

    if (rank == even - 1)
        return round * (even / 2) % (even - 1);
    other = (round + even - 1 - rank) % (even - 1);
    return other == rank ? even - 1 : other;
}

static enum epa_status ping(struct ucx *u, uint32_t peer)
{
    const uint64_t *own =
        (const uint64_t *)(const void *)(u->region.base + u->region.ping_at);
    const struct failure failure = {.at = FAILED_PEAK};
    uint64_t value = ++u->pings;
    bool first = u->base.rank < peer;
    enum epa_status status = EPA_OK;

    if (!first)
        status = wait_word(u, own, EPA_EQ, value, u->config.default_timeout_ns, failure);
    if (status == EPA_OK)
        status =
            wait_raised(u, u->region.ping_at, value, peer, u->config.default_timeout_ns, failure);
    if (first && status == EPA_OK)
        status = wait_word(u, own, EPA_EQ, value, u->config.default_timeout_ns, failure);
    return status;
}

/* With one other rank; the time there and back, halved. */
static enum epa_status play(struct ucx *u, uint32_t peer, double *latency_ns)
{
    double each[BATCHES], ns;
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < BATCHES; i++) {
        uint64_t begun = ucx_now_ns();

        for (uint32_t turn = 0; turn < TURNS && status == EPA_OK; turn++)
            status = ping(u, peer);
        each[i] = (double)(ucx_now_ns() - begun) / (2 * TURNS);
    }
    ns = median(each, BATCHES);
    if (ns > *latency_ns)
        *latency_ns = ns;
    return status;
}

/* A barrier between rounds keeps the word of one pair from the next. Who rests has counted
 * as many pings. */
static enum epa_status play_all(struct ucx *u, double *latency_ns)
{
    uint32_t size = u->base.size, rounds = size + size % 2 - 1;
    enum epa_status status = EPA_OK;

    for (uint32_t round = 0; round < rounds && status == EPA_OK; round++) {
        uint32_t peer = partner(size, round, u->base.rank);

        status = wait_barrier(u, u->config.default_timeout_ns);
        if (status == EPA_OK && peer < size)
            status = play(u, peer, latency_ns);
        else
            u->pings += BATCHES * TURNS;
    }
    return status;
}

static enum epa_status tell_all(struct ucx *u, struct measured *mine, struct measured *all)
{
    enum epa_status status = u->boot->allgather(u->boot, mine, sizeof(*mine), all);

    if (status != EPA_OK)
        u->failure = (struct failure){.at = FAILED_PEAK, .status = status};
    for (uint32_t r = 0; r < u->base.size && status == EPA_OK; r++) {
        status = all[r].status;
        if (status != EPA_OK && mine->status == EPA_OK)
            u->failure = (struct failure){.at = FAILED_PEAK, .status = status};
    }
    return status;
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

/* Each rank puts its own part: `bytes` at scratch + rank * bytes, at every other. */
static enum epa_status measure(struct ucx *u, uint64_t at, uint64_t bytes,
                               struct measured *all, struct epa_peak *out)
{
    struct measured mine = {.status = EPA_OK};
    uint32_t size = u->base.size, passes;
    double each[RUNS];
    enum epa_status status;

    mine.status = put_dedup(u, at, bytes, 1, &mine.put_ns[0]); /* the first is slow */
    if (mine.status == EPA_OK)
        mine.status = put_dedup(u, at, bytes, 1, &mine.put_ns[0]);
    if (mine.status == EPA_OK)
        mine.status = play_all(u, &mine.latency_ns);
    status = tell_all(u, &mine, all);
    if (status != EPA_OK)
        return status;
    out->latency_ns = 0;
    for (uint32_t r = 0; r < size; r++) {
        if (all[r].latency_ns > out->latency_ns)
            out->latency_ns = all[r].latency_ns;
    }
    passes = (uint32_t)(run_ns / slowest(all, size, 0)) + 1;
    if (passes > run_bytes_most / bytes / (size - 1))
        passes = (uint32_t)(run_bytes_most / bytes / (size - 1)) + 1;
    for (uint32_t i = 0; i < RUNS && mine.status == EPA_OK; i++)
        mine.status = put_dedup(u, at, bytes, passes, &mine.put_ns[i]);
    status = tell_all(u, &mine, all);
    for (uint32_t i = 0; i < RUNS; i++)
        each[i] = slowest(all, size, i);
    out->bytes_per_ns = (double)bytes * (size - 1) * passes / median(each, RUNS);
    return status;
}

/* One rank has no links, and a heap without room cannot tell: 0 is "unknown". */
enum epa_status ucx_peak(struct epa_transport *t, uint64_t scratch, struct epa_peak *out)
{
    struct ucx *u = ucx_of(t);
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
        u->failure = (struct failure){.at = FAILED_PEAK, .status = EPA_ERR_NOMEM};
        return EPA_ERR_NOMEM;
    }
    status = measure(u, at, bytes, all, out);
    free(all);
    return status;
}
