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
 *   device  kernels, which the transport runs: device_peak(). Where that is not there, as kernels
 *           do not reach all ranks by themselves: puts.
 *
 * Nothing makes links faster than they are, and much makes them slower: of the runs of a way the
 * fastest counts, of a pair the fastest batch of signals; and the latency is that of the slowest
 * pair. Where others have the cores for most of the time, the fastest is found late. So it goes on
 * until the second fastest is as fast, for some tenths of a second at most. */
#include "session/session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <epa2a/wait.h>
#include "base/stats.h"
#include "epa2a/quant.h"

enum {
    RUNS = 7, /* of each way at most */
    WAYS_MOST = 6,
    LINE = 64,
    ROW = 4096,
    SPREAD = 16,       /* peers that a row is stored to at once */
    PAIR_ROUNDS = 7,   /* of pairs, at most */
    BATCHES_FEW = 5,   /* of signals there and back, between two exchanges of all ranks */
    BATCHES_MOST = 25, /* where they are short */
    TURNS_HOST = 10,   /* of a batch: the clock costs a signal 1 ns, and few are interrupted */
    TURNS_DEVICE = 64, /* a kernel times its turns itself */
    TURNS_FEW = 5,     /* of kernels whose signals take long */
};

/* Longest wait for another rank, where set-up has no limit. */
static const uint64_t most_ns = 30000000000u;
/* No round is begun after these times: with more ranks than cores all takes longer. */
static const double pairs_ns = 8e6, runs_ns = 25e6;
/* Unless what was found so far is not settled, that is: the second fastest takes more by this. */
static const double patience_ns = 250e6, settled = 1.05;
/* Of a signal that is a store, and for each rank where several share a core a switch to it: one
 * that takes longer has waited for something else on that core, and is no property of a link. */
static const double store_ns = 1e3, switch_ns = 2e3;
static const double turn_long_ns = 500; /* there and back: the clock costs 3 % of it */
static const double batches_ns = 1e6;   /* between two exchanges */

/* Stores: bytes out of a rank in a run. The first fits in an L2, the second hardly does. */
static const uint64_t stores_out[] = {64u << 10, 1u << 20};
/* Puts and device: as many passes as take so long, or bring so much out of a rank. */
static const double run_ns = 4e6;
static const uint64_t puts_out = 256u << 20, device_out = 64u << 20;
static const uint64_t put_bytes_most = 1u << 20; /* of one put */

enum means { BY_COPY, BY_CACHED_STORE, BY_STREAMING_STORE, BY_PUT, BY_DEVICE };

struct way {
    enum means means;
    uint64_t part; /* bytes to each peer in a pass */
    uint64_t passes;
};

/* After the first failure nothing below does anything. */
struct measure {
    struct epa_bootstrap *boot;
    struct epa_backend *backend;
    struct epa_transport *t;
    enum epa_status status;
    struct epa_error *err;
    uint64_t wait_ns; /* longest wait for another rank */
    uint32_t signal;
    uint64_t turns; /* of signals so far, the same on all ranks */
    uint32_t ways;
    struct way way[WAYS_MOST];
};

struct fastest {
    double ns, second_ns;
};

static const struct fastest none = {INFINITY, INFINITY};

static void keep_fastest(struct fastest *f, double ns)
{
    if (!(ns > 0))
        return;
    f->second_ns = fmin(f->second_ns, fmax(f->ns, ns));
    f->ns = fmin(f->ns, ns);
}

static bool is_settled(const struct fastest *f)
{
    return f->second_ns <= settled * f->ns; /* not if there was none */
}

static bool good(const struct measure *m)
{
    return m->status == EPA_OK;
}

static bool by_kernels(const struct epa_transport *t)
{
    return t->view != NULL && t->ops->device_peak != NULL;
}

static bool all_mapped(const struct epa_transport *t)
{
    bool mapped = true;

    for (uint32_t r = 0; r < t->size; r++)
        mapped = mapped && t->peer_heap[r] != NULL;
    return mapped && t->view == NULL;
}

/* Whether a signal can take so long by itself. */
static bool is_plausible(const struct measure *m, double ns)
{
    const struct epa_world *world = &m->boot->world;
    double sharers = (double)m->t->size / world->local_cores;

    return ns > 0 && (!all_mapped(m->t) || ns < store_ns + (sharers > 1 ? switch_ns * sharers : 0));
}

/* Of the workers on the host, to which memory is mapped. */
static bool by_stores(const struct way *way)
{
    return way->means < BY_PUT;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void transport_call(struct measure *m, enum epa_status status)
{
    if (status != EPA_OK && status != EPA_ERR_ABORTED)
        m->t->ops->explain(m->t, m->err);
    m->status = status;
}

static void barrier(struct measure *m)
{
    if (good(m))
        transport_call(m, m->t->ops->barrier(m->t, m->wait_ns));
}

/* The largest `mine` of all ranks, so that they decide alike. */
static double find_slowest(struct measure *m, double mine)
{
    double *all;

    if (!good(m))
        return mine;
    all = memory_alloc(m->t->size, sizeof(*all));
    m->status = m->boot->allgather(m->boot, &mine, sizeof(mine), all);
    for (uint32_t r = 0; r < m->t->size && good(m); r++)
        mine = fmax(mine, all[r]);
    if (!good(m) && m->status != EPA_ERR_ABORTED) {
        m->boot->explain(m->boot, m->err);
        (void)epa_fail(m->err, m->status, "the exchange of measurements failed");
    }
    free(all);
    return mine;
}

/* Whether all ranks go on: some rank has found nothing settled yet, and has time left. */
static bool find_patience(struct measure *m, bool unsettled, uint64_t begun)
{
    double waited = find_slowest(m, unsettled ? (double)(epa_now_ns() - begun) + 1 : 0);

    return good(m) && waited > 0 && waited < patience_ns;
}

/* Makes room after EPA_AGAIN. Returns whether to try again. *wait begins with 0. */
static bool again(struct measure *m, enum epa_status status, uint32_t peer, struct epa_wait *wait)
{
    if (status != EPA_AGAIN) {
        transport_call(m, status);
        return false;
    }
    wait->waited_ns = epa_waited_ns(&wait->begun_ns, wait->waited_ns, m->wait_ns);
    transport_call(m, m->t->ops->progress(m->t));
    if (good(m) && wait->waited_ns > m->wait_ns)
        m->status = epa_fail(m->err, EPA_ERR_TIMEOUT,
                             "link peak: rank %u could start nothing to rank %u for %.0f s",
                             m->t->rank, peer, (double)m->wait_ns * 1e-9);
    return good(m);
}

/* ---- rates ---- */

/* Each rank puts its own part, which lies at the same place everywhere. */
static void put_parts(struct measure *m, const struct way *way)
{
    struct epa_transport *t = m->t;
    uint64_t at = t->rank * way->part;

    for (uint64_t i = 0; i < way->passes * (t->size - 1) && good(m); i++) {
        uint32_t peer = (uint32_t)((t->rank + 1 + i % (t->size - 1)) % t->size);
        struct epa_wait wait = {0};

        while (again(m, epa_put(t, at, t->heap + at, way->part, peer), peer, &wait))
            continue;
    }
    if (good(m))
        transport_call(m, t->ops->quiet(t));
}

struct stores {
    const struct epa_transport *t;
    const struct way *way;
};

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

static double run_way(struct measure *m, const struct way *way)
{
    const struct epa_peak_run run = {.bytes = way->part, .passes = (uint32_t)way->passes};
    struct stores stores = {.t = m->t, .way = way};
    uint64_t begun;
    double ns = 0;

    if (way->means == BY_DEVICE) {
        if (good(m))
            transport_call(m, m->t->ops->device_peak(m->t, &run, &ns));
        return ns;
    }
    barrier(m);
    begun = epa_now_ns();
    if (way->means == BY_PUT)
        put_parts(m, way);
    else if (good(m))
        on_workers(m->backend, store_parts, &stores);
    ns = (double)(epa_now_ns() - begun);
    barrier(m);
    if (good(m) && by_stores(way))
        on_workers(m->backend, load_parts, &stores);
    return ns;
}

static double rate_of(const struct measure *m, const struct way *way, const struct fastest *f)
{
    return f->ns < INFINITY ? (double)(way->part * (m->t->size - 1) * way->passes) / f->ns : 0;
}

/* In the first round each way but stores gets as many passes as take some milliseconds. */
static void warm_ways(struct measure *m)
{
    for (uint32_t i = 0; i < m->ways && good(m); i++) {
        struct way *way = &m->way[i];
        uint64_t most = way->means == BY_PUT ? puts_out : device_out;
        double slowest = run_way(m, way);

        if (by_stores(way))
            continue;
        slowest = find_slowest(m, slowest + 1);
        way->passes =
            1 + least((uint64_t)(run_ns / slowest), (most - 1) / (way->part * (m->t->size - 1)));
    }
}

/* The rate of the fastest way; 0: there is none. Of the fastest run the time of the slowest rank,
 * each by its own clock: a wait for a core between two ranks' begins is none of the link's, and a
 * peak is what nobody exceeds. */
static double run_all(struct measure *m)
{
    struct fastest fastest[WAYS_MOST];
    uint64_t begun = epa_now_ns();
    uint32_t best;

    for (uint32_t i = 0; i < WAYS_MOST; i++)
        fastest[i] = none;
    warm_ways(m);
    do {
        uint64_t turn = epa_now_ns();

        for (uint32_t run = 0; run < RUNS && good(m); run++) {
            if (run > 0 && find_slowest(m, (double)(epa_now_ns() - turn)) > runs_ns)
                break;
            for (uint32_t i = 0; i < m->ways && good(m); i++)
                keep_fastest(&fastest[i], find_slowest(m, run_way(m, &m->way[i])));
        }
        best = 0;
        for (uint32_t i = 0; i < m->ways; i++)
            if (rate_of(m, &m->way[i], &fastest[i]) > rate_of(m, &m->way[best], &fastest[best]))
                best = i;
    } while (find_patience(m, !is_settled(&fastest[best]), begun));
    return rate_of(m, &m->way[best], &fastest[best]);
}

/* ---- latency ---- */

static void send_signal(struct measure *m, uint32_t peer, uint64_t value)
{
    struct epa_transport *t = m->t;
    struct epa_wait wait = {0};

    while (good(m) &&
           again(m, t->ops->signal(t, m->signal, value, EPA_SIGNAL_SET, peer), peer, &wait))
        continue;
}

/* The transport knows a signal's number, not its sender. */
static void wait_for_peer(struct measure *m, uint32_t peer, uint64_t turn)
{
    struct epa_error why = {EPA_OK, ""};

    m->status = epa_wait(m->t, m->signal, turn, m->wait_ns);
    if (good(m) || m->status == EPA_ERR_ABORTED)
        return;
    m->t->ops->explain(m->t, &why);
    (void)epa_fail(m->err, m->status, "link peak: a signal of rank %u: %s", peer, why.text);
}

/* `turns` there and back; the lower rank begins. Who rests counts on. Returns the time of one
 * signal, as the lower rank has it: the other one may find the first signal there. Else 0. */
static double play(struct measure *m, uint32_t peer, uint32_t turns)
{
    struct epa_transport *t = m->t;
    bool plays = peer < t->size && good(m), first = t->rank < peer;
    uint64_t begun = epa_now_ns(), end = m->turns + turns;
    double ns = 0;

    if (plays && by_kernels(t)) {
        const struct epa_peak_run run = {.peer = peer, .turns = turns};

        transport_call(m, t->ops->device_peak(t, &run, &ns));
    } else if (plays) {
        for (uint64_t turn = m->turns + 1; turn <= end && good(m); turn++) {
            if (first)
                send_signal(m, peer, turn);
            if (good(m))
                wait_for_peer(m, peer, turn);
            if (!first)
                send_signal(m, peer, turn);
        }
        ns = first ? (double)(epa_now_ns() - begun) : 0;
        /* The last signal may be held back until now, and its receiver waits for it. */
        if (good(m))
            transport_call(m, t->ops->quiet(t));
    }
    m->turns = end;
    return ns / (2.0 * turns);
}

/* The fastest batch. A first one, not counted, finds out how many there is time for, and keeps the
 * signals of one pair from the next: all ranks take part in it. Where a turn is long it is a batch
 * by itself: of several one would have to wait for a core that others have. */
static double play_batches(struct measure *m, uint32_t peer, uint64_t begun)
{
    uint32_t turns = by_kernels(m->t) ? TURNS_FEW : TURNS_HOST;
    double slowest = find_slowest(m, play(m, peer, turns));
    struct fastest fastest = none;
    bool unsettled = peer < m->t->size && m->t->rank < peer;

    do {
        struct fastest of_block = none;
        double batches;

        if (by_kernels(m->t))
            turns =
                2.0 * BATCHES_FEW * TURNS_DEVICE * slowest > pairs_ns ? TURNS_FEW : TURNS_DEVICE;
        else
            turns = 2 * slowest > turn_long_ns ? 1 : TURNS_HOST;
        batches = fmin(BATCHES_MOST * TURNS_HOST / turns, batches_ns / (2 * turns * slowest + 1));
        for (uint32_t i = 0; (i < batches || i < BATCHES_FEW) && good(m); i++)
            keep_fastest(&of_block, play(m, peer, turns));
        keep_fastest(&fastest, of_block.ns);
        slowest = find_slowest(m, fastest.ns < INFINITY ? fastest.ns : 0);
        unsettled = unsettled && !(is_settled(&fastest) && is_plausible(m, fastest.ns));
    } while (find_patience(m, unsettled, begun));
    return fastest.ns < INFINITY ? fastest.ns : 0;
}

/* The slowest pair; of many ranks not every one: partners near and far. */
static double play_all(struct measure *m)
{
    uint32_t all = 1, rounds;
    uint64_t begun = epa_now_ns();
    double latency_ns = 0;

    while (all + 1 < m->t->size) /* 2^k - 1: in round i, from 1, rank r plays with r ^ i */
        all = 2 * all + 1;
    rounds = (uint32_t)least(all, PAIR_ROUNDS);
    for (uint32_t i = 0; i < rounds && good(m); i++) {
        double slowest = find_slowest(m, (double)(epa_now_ns() - begun));

        if (slowest > pairs_ns && i > 0)
            break;
        latency_ns = fmax(latency_ns, play_batches(m, m->t->rank ^ (1 + i * all / rounds), begun));
    }
    latency_ns = find_slowest(m, latency_ns);
    return is_plausible(m, latency_ns) ? latency_ns : 0;
}

/* ---- in all ---- */

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

enum epa_status peak_measure(struct epa_bootstrap *boot, struct epa_backend *backend,
                             struct epa_transport *t, uint32_t signal, struct peak *out,
                             struct epa_error *err)
{
    struct measure m = {.boot = boot,
                        .backend = backend,
                        .t = t,
                        .err = err,
                        .wait_ns = boot->set_up_ns != 0 ? boot->set_up_ns : most_ns,
                        .signal = signal};
    struct peak found = {.bytes_per_ns = 0};

    *out = found;
    if (t->size == 1)
        return EPA_OK;
    choose_ways(&m);
    found.latency_ns = play_all(&m);
    if (m.ways > 0)
        found.bytes_per_ns = run_all(&m);
    if (good(&m))
        *out = found;
    return m.status;
}
