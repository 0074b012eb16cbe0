/* Link peak: bytes per second out of each rank while all ranks send to all others, and the latency of
 * a signal. The capabilities of the transport select one of three methods:
 *
 *   stores  all heaps are mapped: the workers of each rank store, as in algorithms. The rate depends
 *           on the instructions and on the number of bytes, so several variants alternate and the
 *           fastest counts. Between two runs the receivers read their rows, as in an all-to-all;
 *           otherwise rows would stay in the sender's cache and cost nothing. Reading is not timed.
 *   puts    put() to all peers, then quiet(). A first run determines the number of bytes, since the
 *           rates of links differ by a factor of a thousand.
 *   device  kernels of the transport: device_peak(). Puts replace it if kernels cannot reach all
 *           ranks.
 *
 * Noise only slows a link down. Therefore the fastest run of a variant counts, and the fastest batch of
 * signals of a pair; the latency is the latency of the slowest pair. If other processes occupy the
 * cores, the fastest run appears late. The measurement continues until the second fastest run is as
 * fast as the fastest one, for some tenths of a second at most. */
#include "session/peak.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "epa2a/quant.h"
#include <epa2a/wait.h>
#include "base/memory.h"
#include "base/stats.h"

enum {
    RUNS = 7, /* maximum of runs of each variant in a round */
    WAYS_MOST = 6,
    LINE = 64,
    ROW = 4096,
    SPREAD = 16,       /* number of peers that one call stores a row to */
    PAIR_ROUNDS = 7,   /* maximum of rounds of pairs */
    BATCHES_FEW = 5,   /* minimum of batches of round trips between two exchanges of all ranks */
    BATCHES_MOST = 25, /* maximum for short batches */
    TURNS_HOST = 10,   /* round trips of a batch: the clock costs 1 ns per signal; few interrupts */
    TURNS_DEVICE = 64, /* round trips of a kernel, which times them itself */
    TURNS_FEW = 5,     /* round trips of kernels with slow signals */
};

/* Time limit of a wait for another rank if set-up has no limit. */
static const uint64_t most_ns = 30000000000u;
/* No round begins after these times: with more ranks than cores every step takes longer. */
static const double pairs_ns = 8e6, runs_ns = 25e6;
/* Rounds continue up to patience_ns until the second fastest run is within this factor. */
static const double patience_ns = 250e6, settled = 1.05;
/* Plausible latency of a signal by a store, plus a context switch per rank if ranks share a core. A
 * longer time includes other work on the core and is no property of the link. */
static const double store_ns = 1e3, switch_ns = 2e3;
static const double turn_long_ns = 500; /* a round trip of which the clock costs 3 % */
static const double batches_ns = 1e6;   /* duration of the batches between two exchanges */

/* Stores: bytes out of a rank in a run. The first number fits an L2, the second one hardly does. */
static const uint64_t stores_out[] = {64u << 10, 1u << 20};
/* Puts and device: a run has passes for run_ns, or for this number of bytes out of a rank. */
static const double run_ns = 4e6;
static const uint64_t puts_out = 256u << 20, device_out = 64u << 20;
static const uint64_t put_bytes_most = 1u << 20; /* maximum bytes of one put */

enum means { BY_COPY, BY_CACHED_STORE, BY_STREAMING_STORE, BY_PUT, BY_DEVICE };

struct way {
    enum means means;
    uint64_t part; /* bytes to each peer per pass */
    uint64_t passes;
};

/* After the first failure every function below returns without effect. */
struct measure {
    struct epa_bootstrap *boot;
    struct epa_backend *backend;
    struct epa_transport *t;
    enum epa_status status;
    struct epa_error *err;
    uint64_t wait_ns; /* longest wait for another rank */
    uint32_t signal;
    uint64_t turns; /* number of round trips so far, identical on all ranks */
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
    return f->second_ns <= settled * f->ns; /* false without a second run */
}

static bool is_good(const struct measure *m)
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

/* Returns true if `ns` is a plausible latency of a signal. */
static bool is_plausible(const struct measure *m, double ns)
{
    const struct epa_world *world = &m->boot->world;
    double sharers = (double)m->t->size / world->local_cores;

    return ns > 0 && (!all_mapped(m->t) || ns < store_ns + (sharers > 1 ? switch_ns * sharers : 0));
}

/* Returns true for stores of host workers to mapped memory. */
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
    if (is_good(m))
        transport_call(m, m->t->ops->barrier(m->t, m->wait_ns));
}

/* Returns the largest `mine` of all ranks, so that all ranks make the same decision. */
static double find_slowest(struct measure *m, double mine)
{
    double *all;

    if (!is_good(m))
        return mine;
    all = memory_alloc(m->t->size, sizeof(*all));
    m->status = m->boot->allgather(m->boot, &mine, sizeof(mine), all);
    for (uint32_t r = 0; r < m->t->size && is_good(m); r++)
        mine = fmax(mine, all[r]);
    if (!is_good(m) && m->status != EPA_ERR_ABORTED) {
        m->boot->explain(m->boot, m->err);
        (void)epa_fail(m->err, m->status, "the exchange of measurements failed");
    }
    free(all);
    return mine;
}

/* Returns true on all ranks if one of them has no settled result and time is left. */
static bool agree_to_continue(struct measure *m, bool unsettled, uint64_t begun)
{
    double waited = find_slowest(m, unsettled ? (double)(epa_now_ns() - begun) + 1 : 0);

    return is_good(m) && waited > 0 && waited < patience_ns;
}

/* Makes progress after EPA_AGAIN. Returns true if the caller must repeat the call. *wait is initially
 * zero. */
static bool retry_call(struct measure *m, enum epa_status status, uint32_t peer,
                       struct epa_wait *wait)
{
    if (status != EPA_AGAIN) {
        transport_call(m, status);
        return false;
    }
    wait->waited_ns = epa_waited_ns(&wait->begun_ns, wait->waited_ns, m->wait_ns);
    transport_call(m, m->t->ops->progress(m->t));
    if (is_good(m) && wait->waited_ns > m->wait_ns)
        m->status =
            epa_fail(epa_awaits(m->err, peer), EPA_ERR_TIMEOUT,
                     "link peak: rank %u could start no put or signal to rank %u for %.0f s",
                     m->t->rank, peer, (double)m->wait_ns * 1e-9);
    return is_good(m);
}

/* ---- rates ---- */

/* Puts this rank's part to all peers, at the same heap offset on each. */
static void put_parts(struct measure *m, const struct way *way)
{
    struct epa_transport *t = m->t;
    uint64_t at = t->rank * way->part;

    for (uint64_t i = 0; i < way->passes * (t->size - 1) && is_good(m); i++) {
        uint32_t peer = (uint32_t)((t->rank + 1 + i % (t->size - 1)) % t->size);
        struct epa_wait wait = {0};

        while (retry_call(m, epa_put(t, at, t->heap + at, way->part, peer), peer, &wait))
            continue;
    }
    if (is_good(m))
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

/* Loads one word of each cache line that peers have stored. */
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
    __asm__ __volatile__("" : : "r"(sum)); /* keeps the compiler from removing the loads */
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
        if (is_good(m))
            transport_call(m, m->t->ops->device_peak(m->t, &run, &ns));
        return ns;
    }
    barrier(m);
    begun = epa_now_ns();
    if (way->means == BY_PUT)
        put_parts(m, way);
    else if (is_good(m))
        on_workers(m->backend, store_parts, &stores);
    ns = (double)(epa_now_ns() - begun);
    barrier(m);
    if (is_good(m) && by_stores(way))
        on_workers(m->backend, load_parts, &stores);
    return ns;
}

static double rate_of(const struct measure *m, const struct way *way, const struct fastest *f)
{
    return f->ns < INFINITY ? (double)(way->part * (m->t->size - 1) * way->passes) / f->ns : 0;
}

/* Runs each variant once. Chooses the passes of variants other than stores, for some milliseconds. */
static void warm_ways(struct measure *m)
{
    for (uint32_t i = 0; i < m->ways && is_good(m); i++) {
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

/* Returns the rate of the fastest variant; 0: no variant. The time of a run is the time of the slowest
 * rank, each on its own clock: a wait for a core between the begins of two ranks is no property of the
 * link, and a peak is an upper bound. */
static double measure_rate(struct measure *m)
{
    struct fastest fastest[WAYS_MOST];
    uint64_t begun = epa_now_ns();
    uint32_t best;

    for (uint32_t i = 0; i < WAYS_MOST; i++)
        fastest[i] = none;
    warm_ways(m);
    do {
        uint64_t turn = epa_now_ns();

        for (uint32_t run = 0; run < RUNS && is_good(m); run++) {
            if (run > 0 && find_slowest(m, (double)(epa_now_ns() - turn)) > runs_ns)
                break;
            for (uint32_t i = 0; i < m->ways && is_good(m); i++)
                keep_fastest(&fastest[i], find_slowest(m, run_way(m, &m->way[i])));
        }
        best = 0;
        for (uint32_t i = 0; i < m->ways; i++)
            if (rate_of(m, &m->way[i], &fastest[i]) > rate_of(m, &m->way[best], &fastest[best]))
                best = i;
    } while (agree_to_continue(m, !is_settled(&fastest[best]), begun));
    return rate_of(m, &m->way[best], &fastest[best]);
}

/* ---- latency ---- */

static void send_signal(struct measure *m, uint32_t peer, uint64_t value)
{
    struct epa_transport *t = m->t;
    struct epa_wait wait = {0};

    while (is_good(m) &&
           retry_call(m, t->ops->signal(t, m->signal, value, EPA_SIGNAL_SET, peer), peer, &wait))
        continue;
}

/* Adds the sender to the message: the transport knows only the number of the signal. */
static void wait_for_peer(struct measure *m, uint32_t peer, uint64_t turn)
{
    struct epa_error why = {EPA_OK, ""};

    m->status = epa_wait(m->t, m->signal, turn, m->wait_ns);
    if (is_good(m) || m->status == EPA_ERR_ABORTED)
        return;
    m->t->ops->explain(m->t, &why);
    (void)epa_fail(epa_awaits(m->err, peer), m->status, "link peak: a signal of rank %u: %s", peer,
                   why.text);
}

/* Exchanges `turns` round trips of signals with `peer`; the lower rank begins. A rank without a peer
 * only counts the turns. Returns the time of one signal on the lower rank and 0 on others: the higher
 * rank may find the first signal already set. */
static double time_round_trips(struct measure *m, uint32_t peer, uint32_t turns)
{
    struct epa_transport *t = m->t;
    bool plays = peer < t->size && is_good(m), first = t->rank < peer;
    uint64_t begun = epa_now_ns(), end = m->turns + turns;
    double ns = 0;

    if (plays && by_kernels(t)) {
        const struct epa_peak_run run = {.peer = peer, .turns = turns};

        transport_call(m, t->ops->device_peak(t, &run, &ns));
    } else if (plays) {
        for (uint64_t turn = m->turns + 1; turn <= end && is_good(m); turn++) {
            if (first)
                send_signal(m, peer, turn);
            if (is_good(m))
                wait_for_peer(m, peer, turn);
            if (!first)
                send_signal(m, peer, turn);
        }
        ns = first ? (double)(epa_now_ns() - begun) : 0;
        /* The transport may delay the last signal until quiet(), and its receiver waits for it. */
        if (is_good(m))
            transport_call(m, t->ops->quiet(t));
    }
    m->turns = end;
    return ns / (2.0 * turns);
}

/* Returns the time of a signal in the fastest batch. A first, uncounted batch determines the number of
 * batches and separates the signals of one pair from the next, since all ranks take part. A long round
 * trip forms a batch of its own: in a longer batch one of them would wait for a busy core. */
static double time_pair(struct measure *m, uint32_t peer, uint64_t begun)
{
    uint32_t turns = by_kernels(m->t) ? TURNS_FEW : TURNS_HOST;
    double slowest = find_slowest(m, time_round_trips(m, peer, turns));
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
        for (uint32_t i = 0; (i < batches || i < BATCHES_FEW) && is_good(m); i++)
            keep_fastest(&of_block, time_round_trips(m, peer, turns));
        keep_fastest(&fastest, of_block.ns);
        slowest = find_slowest(m, fastest.ns < INFINITY ? fastest.ns : 0);
        unsettled = unsettled && !(is_settled(&fastest) && is_plausible(m, fastest.ns));
    } while (agree_to_continue(m, unsettled, begun));
    return fastest.ns < INFINITY ? fastest.ns : 0;
}

/* Returns the latency of the slowest pair. With many ranks only some pairs are measured, near and far
 * ones. */
static double measure_latency(struct measure *m)
{
    uint32_t all = 1, rounds;
    uint64_t begun = epa_now_ns();
    double latency_ns = 0;

    while (all + 1 < m->t->size) /* 2^k - 1: in round i, from 1, rank r plays with r ^ i */
        all = 2 * all + 1;
    rounds = (uint32_t)least(all, PAIR_ROUNDS);
    for (uint32_t i = 0; i < rounds && is_good(m); i++) {
        double slowest = find_slowest(m, (double)(epa_now_ns() - begun));

        if (slowest > pairs_ns && i > 0)
            break;
        latency_ns = fmax(latency_ns, time_pair(m, m->t->rank ^ (1 + i * all / rounds), begun));
    }
    latency_ns = find_slowest(m, latency_ns);
    return is_plausible(m, latency_ns) ? latency_ns : 0;
}

/* ---- variants ---- */

/* Returns the bytes to each peer. With more ranks than cores each rank sends less, so that the
 * measurement stays short. */
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
    found.latency_ns = measure_latency(&m);
    if (m.ways > 0)
        found.bytes_per_ns = measure_rate(&m);
    if (is_good(&m))
        *out = found;
    return m.status;
}
