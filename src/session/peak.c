/* Link peak: bytes out of each rank while all ranks send to all others, and the latency of a
 * signal. It is measured in one of three ways, by what the transport gives:
 *
 *   stores  all heaps are mapped: the workers of each rank store, as algorithms do. How fast
 *           that is depends on the instructions and on how much there is, so a few ways take
 *           turns and the fastest counts. Between two runs the receivers read their rows, as in
 *           an all-to-all; else rows would stay in the sender's cache and cost nothing. Reading
 *           is not timed.
 *   puts    put() to all peers, then quiet(). How much a run puts is found out first, since
 *           links differ by a factor of a thousand.
 *   device  kernels, which the transport runs: device_peak(). Where that is not there, as kernels do
 *           not reach all ranks by themselves: puts.
 *
 * Of the runs of one way the median counts. The latency is that of the slowest pair. */
#include "session/session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/stats.h"
#include "epa2a/quant.h"

enum {
    RUNS = 7, /* of each way at most */
    WAYS_MOST = 6,
    LINE = 64,
    ROW = 4096,
    SPREAD = 16,       /* peers that a row is stored to at once */
    PAIR_ROUNDS = 7,   /* of pairs, at most */
    BATCHES = 5,       /* of signals there and back */
    TURNS_FEW = 5,     /* of a batch, where a signal takes long */
    TURNS_HOST = 50,   /* at most */
    TURNS_DEVICE = 64, /* a kernel times its turns itself */
};

/* Longest wait for another rank. */
static const uint64_t wait_ns = 30000000000u;
/* No round is begun after these times: with more ranks than cores all takes longer. */
static const double pairs_ns = 8e6, runs_ns = 25e6;

/* Stores: bytes out of a rank in a run. The first fits in an L2, the second hardly does. */
static const uint64_t stores_out[] = {64u << 10, 1u << 20};
/* Puts and device: as many passes as take so long, or bring so much out of a rank. */
static const double run_ns = 4e6;
static const uint64_t puts_out = 256u << 20, device_out = 64u << 20;
static const uint64_t put_bytes_most = 1u << 20; /* of one put */

enum means { BY_PUT, BY_COPY, BY_CACHED_STORE, BY_STREAMING_STORE, BY_DEVICE };

struct way {
    enum means means;
    uint64_t part; /* bytes to each peer in a pass */
    uint64_t passes;
};

struct span {
    uint64_t begun, ended; /* on the host; all ranks of one have the same clock */
    double ns;
};

struct measure {
    struct epa_bootstrap *boot;
    struct epa_backend *backend;
    struct epa_transport *t;
    struct epa_error *err;
    uint32_t signal;
    uint64_t turns; /* of signals so far, the same on all ranks */
    uint32_t ways;
    struct way way[WAYS_MOST];
};

/* Of one rank. */
struct measured {
    uint32_t runs; /* the same on all ranks */
    struct span span[WAYS_MOST][RUNS];
    double latency_ns;
};

static bool by_kernels(const struct epa_transport *t)
{
    return t->view != NULL && t->ops->device_peak != NULL;
}

struct stores {
    const struct epa_transport *t;
    const struct way *way;
};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static enum epa_status transport_says(struct measure *m, enum epa_status status)
{
    if (status != EPA_OK && status != EPA_ERR_ABORTED)
        m->t->ops->explain(m->t, m->err);
    return status;
}

static enum epa_status boot_says(struct measure *m, enum epa_status status)
{
    if (status != EPA_OK && status != EPA_ERR_ABORTED) {
        m->boot->explain(m->boot, m->err);
        (void)epa_fail(m->err, status, "the exchange of measurements failed");
    }
    return status;
}

/* The largest `mine` of all ranks, so that they decide alike. */
static enum epa_status find_slowest(struct measure *m, double mine, double *out)
{
    uint32_t size = m->t->size;
    double *all = calloc(size, sizeof(*all));
    enum epa_status status;

    if (all == NULL)
        return epa_fail(m->err, EPA_ERR_NOMEM, "no memory for %u ranks' times", size);
    status = boot_says(m, m->boot->allgather(m->boot, &mine, sizeof(mine), all));
    *out = mine;
    for (uint32_t r = 0; r < size && status == EPA_OK; r++)
        *out = all[r] > *out ? all[r] : *out;
    free(all);
    return status;
}

/* ---- rates ---- */

/* After EPA_AGAIN. */
static enum epa_status make_room(struct measure *m, uint32_t peer, uint64_t begun_ns)
{
    enum epa_status status = m->t->ops->progress(m->t);

    if (status == EPA_OK && clock_ns() - begun_ns > wait_ns)
        return epa_fail(m->err, EPA_ERR_TIMEOUT,
                        "link peak: rank %u could start nothing to rank %u for %.0f s", m->t->rank,
                        peer, (double)wait_ns * 1e-9);
    return transport_says(m, status);
}

/* Each rank puts its own part, which lies at the same place everywhere. */
static enum epa_status put_part(struct measure *m, const struct way *way, uint32_t peer)
{
    struct epa_transport *t = m->t;
    uint64_t at = t->rank * way->part, begun = clock_ns();
    enum epa_status status;

    while ((status = epa_put(t, at, t->heap + at, way->part, peer)) == EPA_AGAIN) {
        status = make_room(m, peer, begun);
        if (status != EPA_OK)
            return status;
    }
    return transport_says(m, status);
}

static enum epa_status put_parts(struct measure *m, const struct way *way)
{
    struct epa_transport *t = m->t;
    enum epa_status status = EPA_OK;

    for (uint64_t pass = 0; pass < way->passes; pass++) {
        for (uint32_t i = 1; i < t->size && status == EPA_OK; i++)
            status = put_part(m, way, (t->rank + i) % t->size);
    }
    return status == EPA_OK ? transport_says(m, t->ops->quiet(t)) : status;
}

static void store_row(const struct stores *s, const char *row, uint64_t offset, size_t bytes)
{
    const struct epa_transport *t = s->t;
    const struct epa_kernels *k = epa_kernels_get(EPA_BF16, NULL);
    enum epa_store store =
        s->way->means == BY_CACHED_STORE ? EPA_STORE_CACHED : EPA_STORE_NONTEMPORAL;

    for (uint32_t i = 1; i < t->size; i += SPREAD) {
        uint32_t n = (uint32_t)least(SPREAD, t->size - i);
        void *to[SPREAD];

        for (uint32_t j = 0; j < n; j++)
            to[j] = t->peer_heap[(t->rank + i + j) % t->size] + offset;
        if (s->way->means != BY_COPY)
            k->spread(to, n, row, bytes, store);
        for (uint32_t j = 0; j < n && s->way->means == BY_COPY; j++)
            memcpy(to[j], row, bytes);
    }
}

static void store_parts(void *arg, uint32_t worker, uint32_t workers)
{
    static const _Alignas(LINE) char row[ROW] = {1};
    const struct stores *s = arg;
    uint64_t part = s->way->part, base = s->t->rank * part;

    for (uint64_t at = worker * (uint64_t)ROW; at < part; at += workers * (uint64_t)ROW)
        store_row(s, row, base + at, least(part - at, ROW));
    if (s->way->means == BY_STREAMING_STORE)
        epa_store_drain();
}

/* A word of each line that peers have stored. */
static void load_parts(void *arg, uint32_t worker, uint32_t workers)
{
    const struct stores *s = arg;
    uint64_t part = s->way->part, sum = 0;

    for (uint32_t r = 0; r < s->t->size; r++) {
        const char *from = s->t->heap + r * part;

        for (uint64_t at = worker * (uint64_t)LINE; at < part && r != s->t->rank;
             at += workers * (uint64_t)LINE)
            sum += *(const uint64_t *)(const void *)(from + at);
    }
    __asm__ __volatile__("" : : "r"(sum)); /* or nobody would have to load */
}

static void on_workers(struct epa_backend *b, void (*fn)(void *, uint32_t, uint32_t),
                       struct stores *s)
{
    if (b == NULL || b->memory != EPA_MEMORY_HOST || b->ops->parallel(b, fn, s) != EPA_OK)
        fn(s, 0, 1);
}

static enum epa_status run_on_host(struct measure *m, const struct way *way, struct span *out)
{
    struct epa_transport *t = m->t;
    struct stores stores = {.t = t, .way = way};
    enum epa_status status = transport_says(m, t->ops->barrier(t, wait_ns));

    out->begun = clock_ns();
    if (status == EPA_OK && way->means == BY_PUT)
        status = put_parts(m, way);
    else if (status == EPA_OK)
        on_workers(m->backend, store_parts, &stores);
    out->ended = clock_ns();
    out->ns = (double)(out->ended - out->begun);
    if (status == EPA_OK)
        status = transport_says(m, t->ops->barrier(t, wait_ns));
    if (status == EPA_OK && way->means != BY_PUT)
        on_workers(m->backend, load_parts, &stores);
    return status;
}

static enum epa_status run_on_device(struct measure *m, const struct way *way, struct span *out)
{
    const struct epa_peak_run run = {.bytes = way->part, .passes = (uint32_t)way->passes};

    return transport_says(m, m->t->ops->device_peak(m->t, &run, &out->ns));
}

/* Of the workers on the host, to whom memory is mapped. */
static bool by_stores(const struct way *way)
{
    return way->means != BY_PUT && way->means != BY_DEVICE;
}

/* After the first run: as many passes as take some milliseconds. */
static enum epa_status choose_passes(struct measure *m, struct way *way, const struct span *first)
{
    uint64_t most = way->means == BY_PUT ? puts_out : device_out;
    uint64_t out = way->part * (m->t->size - 1);
    double slowest;
    enum epa_status status = find_slowest(m, first->ns + 1, &slowest);

    if (status == EPA_OK)
        way->passes = 1 + least((uint64_t)(run_ns / slowest), (most - 1) / out);
    return status;
}

/* The first round warms up: it is overwritten by the second. */
static enum epa_status run_all(struct measure *m, struct measured *out)
{
    uint64_t begun = clock_ns();
    enum epa_status status = EPA_OK;

    for (uint32_t round = 0; round <= RUNS && status == EPA_OK; round++) {
        uint32_t run = round == 0 ? 0 : round - 1;
        double slowest;

        status = find_slowest(m, (double)(clock_ns() - begun), &slowest);
        if (status != EPA_OK || (slowest > runs_ns && round > 1))
            break;
        for (uint32_t i = 0; i < m->ways && status == EPA_OK; i++) {
            struct way *way = &m->way[i];

            status = way->means == BY_DEVICE ? run_on_device(m, way, &out->span[i][run])
                                             : run_on_host(m, way, &out->span[i][run]);
            if (status == EPA_OK && !by_stores(way) && round == 0)
                status = choose_passes(m, way, &out->span[i][run]);
        }
        out->runs = round;
    }
    return status;
}

/* ---- latency ---- */

/* With whom `rank` plays in a round; `size` or more: it rests. In size - 1 rounds, or `size` where
 * that is odd, each is with each other once: opposite each other on a circle that moves on; of an
 * even number the last stays put. */
static uint32_t partner_of(uint32_t size, uint32_t round, uint32_t rank)
{
    uint32_t circle = size + size % 2 - 1; /* odd; `circle` itself is who stays put */
    uint32_t other;

    if (rank == circle)
        return (round % 2 == 0 ? round : round + circle) / 2 % circle;
    other = (round + circle - rank) % circle;
    return other == rank ? circle : other;
}

static enum epa_status send_signal(struct measure *m, uint32_t peer, uint64_t value)
{
    struct epa_transport *t = m->t;
    uint64_t begun = 0;
    enum epa_status status;

    while ((status = t->ops->signal(t, m->signal, value, EPA_SIGNAL_SET, peer)) == EPA_AGAIN) {
        begun = begun == 0 ? clock_ns() : begun;
        status = make_room(m, peer, begun);
        if (status != EPA_OK)
            return status;
    }
    return transport_says(m, status);
}

/* The lower rank begins. */
static enum epa_status play_on_host(struct measure *m, uint32_t peer, uint32_t turns, double *ns)
{
    struct epa_transport *t = m->t;
    bool first = t->rank < peer;
    uint64_t begun = clock_ns();
    enum epa_status status = EPA_OK;

    for (uint64_t turn = m->turns + 1; turn <= m->turns + turns && status == EPA_OK; turn++) {
        if (first)
            status = send_signal(m, peer, turn);
        if (status == EPA_OK)
            status = transport_says(m, epa_wait(t, m->signal, turn, wait_ns));
        if (status == EPA_OK && !first)
            status = send_signal(m, peer, turn);
    }
    *ns = (double)(clock_ns() - begun);
    /* The last signal may be held back until now, and its receiver waits for it. */
    return status == EPA_OK ? transport_says(m, t->ops->quiet(t)) : status;
}

/* `turns` there and back; *one_way: the time of one signal. Who rests counts on. */
static enum epa_status play(struct measure *m, uint32_t peer, uint32_t turns, double *one_way)
{
    double ns = 0;
    enum epa_status status = EPA_OK;

    if (peer < m->t->size && by_kernels(m->t))
        status =
            transport_says(m, m->t->ops->device_peak(
                                  m->t, &(struct epa_peak_run){.peer = peer, .turns = turns}, &ns));
    else if (peer < m->t->size)
        status = play_on_host(m, peer, turns, &ns);
    m->turns += turns;
    *one_way = ns / (2.0 * turns);
    return status;
}

/* The least of several batches: nothing makes a line faster than it is, and much makes it
 * slower. A first one finds out how many turns there is time for, and keeps the word of one
 * pair from the next: all ranks hear of it. */
static enum epa_status play_batches(struct measure *m, uint32_t peer, double *latency_ns)
{
    uint32_t most = by_kernels(m->t) ? TURNS_DEVICE : TURNS_HOST, turns;
    double slowest = 0, best = 0, one_way;
    enum epa_status status = play(m, peer, TURNS_FEW, &one_way);

    if (status == EPA_OK)
        status = find_slowest(m, one_way, &slowest);
    turns = 2.0 * BATCHES * most * slowest > pairs_ns ? TURNS_FEW : most;
    for (uint32_t i = 0; i < BATCHES && status == EPA_OK; i++) {
        status = play(m, peer, turns, &one_way);
        best = i == 0 || one_way < best ? one_way : best;
    }
    *latency_ns = best > *latency_ns ? best : *latency_ns;
    return status;
}

/* Of many ranks not every pair: partners near and far. */
static enum epa_status play_all(struct measure *m, double *latency_ns)
{
    uint32_t size = m->t->size, all = size + size % 2 - 1;
    uint32_t rounds = (uint32_t)least(all, PAIR_ROUNDS);
    uint64_t begun = clock_ns();
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < rounds && status == EPA_OK; i++) {
        uint32_t peer = partner_of(size, i * all / rounds, m->t->rank);
        double slowest;

        status = find_slowest(m, (double)(clock_ns() - begun), &slowest);
        if (status != EPA_OK || (slowest > pairs_ns && i > 0))
            break;
        status = play_batches(m, peer, latency_ns);
    }
    return status;
}

/* ---- in all ---- */

static bool all_mapped(const struct epa_transport *t)
{
    bool mapped = true;

    for (uint32_t r = 0; r < t->size; r++)
        mapped = mapped && t->peer_heap[r] != NULL;
    return mapped && t->view == NULL;
}

/* Bytes to each peer. With more ranks than cores each moves less, so that all of it stays
 * short. */
static uint64_t part_of_stores(const struct measure *m, uint64_t out)
{
    const struct epa_world *world = &m->boot->world;
    uint32_t size = m->t->size;
    uint64_t few = out * (world->local_cores + 1) / size;

    if (world->local_cores < size && out > stores_out[0])
        out = few > stores_out[0] ? few : stores_out[0];
    return least(out / (size - 1), m->t->heap_bytes / size) / LINE * LINE;
}

static void choose_ways(struct measure *m)
{
    static const enum means stores[] = {BY_COPY, BY_CACHED_STORE, BY_STREAMING_STORE};
    const struct epa_transport *t = m->t;
    uint32_t peers = t->size - 1;

    if (by_kernels(t)) {
        m->way[m->ways++] = (struct way){
            BY_DEVICE, least(t->heap_bytes, device_out) / peers / LINE / 2 * LINE * 2, 1};
    } else if (all_mapped(t)) {
        for (uint32_t i = 0; i < 6; i++)
            m->way[m->ways++] =
                (struct way){stores[i % 3], part_of_stores(m, stores_out[i / 3]), 1};
    } else {
        m->way[m->ways++] =
            (struct way){BY_PUT, least(t->heap_bytes / t->size, put_bytes_most) / LINE * LINE, 1};
    }
    if (m->ways > 0 && m->way[0].part == 0)
        m->ways = 0;
}

/* Of the best run the time of the slowest rank, each by its own clock: a wait for a core between two
 * ranks' begins is none of the link's, and a limit is what nobody beats. */
static double rate_of(const struct measure *m, const struct measured *all, uint32_t way)
{
    const struct way *w = &m->way[way];
    uint32_t runs = all[0].runs < RUNS ? all[0].runs : RUNS; /* it is what a peer says */
    double best = INFINITY;

    for (uint32_t run = 0; run < runs; run++) {
        double slowest = 0;

        for (uint32_t r = 0; r < m->t->size; r++) {
            const struct span *one = &all[r].span[way][run];
            double ns = by_stores(w) ? (double)(one->ended - one->begun) : one->ns;

            slowest = ns > slowest ? ns : slowest;
        }
        if (slowest > 0 && slowest < best)
            best = slowest;
    }
    return best < INFINITY ? (double)(w->part * (m->t->size - 1) * w->passes) / best : 0;
}

static void sum_up(const struct measure *m, const struct measured *all, struct peak *out)
{
    *out = (struct peak){.bytes_per_ns = 0};
    for (uint32_t i = 0; i < m->ways; i++) {
        double rate = rate_of(m, all, i);

        out->bytes_per_ns = rate > out->bytes_per_ns ? rate : out->bytes_per_ns;
    }
    for (uint32_t r = 0; r < m->t->size; r++) {
        if (all[r].latency_ns > out->latency_ns)
            out->latency_ns = all[r].latency_ns;
    }
}

enum epa_status peak_measure(struct epa_bootstrap *boot, struct epa_backend *backend,
                             struct epa_transport *t, uint32_t signal, struct peak *out,
                             struct epa_error *err)
{
    struct measure m = {.boot = boot, .backend = backend, .t = t, .err = err, .signal = signal};
    struct measured mine = {.runs = 0}, *all;
    enum epa_status status;

    *out = (struct peak){.bytes_per_ns = 0};
    if (t->size == 1)
        return EPA_OK;
    all = calloc(t->size, sizeof(*all));
    if (all == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u ranks' times", t->size);
    choose_ways(&m);
    status = play_all(&m, &mine.latency_ns);
    if (status == EPA_OK && m.ways > 0)
        status = run_all(&m, &mine);
    if (status == EPA_OK)
        status = boot_says(&m, boot->allgather(boot, &mine, sizeof(mine), all));
    if (status == EPA_OK)
        sum_up(&m, all, out);
    free(all);
    return status;
}
