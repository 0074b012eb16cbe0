/* allgather on hosts.
 *
 * Call e = 1, 2, ... uses buffer set e % 2. A rank copies its rows to their place in its own set,
 * unless the rows are there already (in place). In mode push, the same pass of its workers stores
 * the rows at the same offset of each peer's set, and peers that loads and stores do not reach
 * receive puts from the own set. In mode pull, peers load the rows from the own set. Each chunk of
 * a rank has a signal word at each peer. The rank sets the word to e: in mode push after the chunk
 * is in the peer's set, in mode pull as soon as peers may load the chunk. A call returns when it
 * has seen e in the words of all chunks of all peers, has copied the chunks in mode pull, and its
 * own puts are in place (quiet).
 *
 * The calls need no barrier, and two sets suffice:
 *   (1) A rank begins call e after its return from e - 1. All peers have set their signals of
 *       e - 1. So all peers have begun e - 1 and returned from e - 2.
 *   (2) push: the set of e at a peer contains the peer's output of e - 2. It was valid until the
 *       peer began e - 1.
 *   (3) pull: only the owner writes its set. Peers loaded from the owner's part of the set of e in
 *       e - 2, from which they have returned.
 *   (4) In place, the own part of the set of e is written between e - 1 and e: after (1).
 *   (5) Words only grow. Quiet separates two SETs of a word, of e and e + 1, so they cannot swap.
 *       Quiet also flushes buffered puts before the rank leaves the call, and frees the own set,
 *       from which puts read. */
#include "allgather_host.h"

#include <string.h>
#include <unistd.h>

#include "../../common/algo_host.h"

/* A row block of this size stays in L1 and L2 between the copies to two peers. */
enum { BLOCK_BYTES = 16 << 10, LINE = 64, ROW_ALIGN = 16 };

/* Names of slices in traces. */
struct ag_names {
    uint16_t copy, put, wait, pull, quiet;
};

struct ag_host {
    struct algo_host a; /* first member */
    struct ag_layout l;
    struct ag_names name;
    /* start of each rank's rows in the output of the current call, in bytes */
    uint64_t start[AG_RANKS];
};

/* ---- the current call ---- */

static uint64_t set_offset(const struct ag_host *h, uint64_t epoch)
{
    return h->a.heap + epoch % AG_SETS * h->l.set_bytes;
}

/* A chunk of a rank's rows: offset from the start of the output, and bytes, possibly 0. */
struct span {
    uint64_t at, bytes;
};

static struct span chunk_span(const struct ag_host *h, const struct epa_allgather *g, uint32_t rank,
                              uint32_t chunk)
{
    uint32_t first = chunk * h->l.chunk_rows, n = g->rows[rank];
    uint32_t rows = first >= n ? 0 : n - first;

    if (rows > h->l.chunk_rows)
        rows = h->l.chunk_rows;
    return (struct span){h->start[rank] + (uint64_t)first * h->l.row_bytes,
                         (uint64_t)rows * h->l.row_bytes};
}

static enum epa_status find_starts(struct ag_host *h, const struct epa_allgather *g)
{
    uint64_t at = 0;

    for (uint32_t r = 0; r < h->l.size; r++) {
        if (g->rows[r] > h->l.max_rows)
            return algo_fail_key(&h->a, EPA_ERR_CONFIG, "allgather.max_rows",
                                 "rank %u has %u rows; allgather.max_rows allows %u", r, g->rows[r],
                                 h->l.max_rows);
        h->start[r] = at;
        at += (uint64_t)g->rows[r] * h->l.row_bytes;
    }
    return EPA_OK;
}

/* ---- copies ---- */

/* One pass of the workers: push a chunk of this rank to all `to`, or pull a chunk of each peer into
 * this rank's set. */
struct copy {
    struct ag_host *h;
    const char *from[AG_RANKS];
    char *to[AG_RANKS];
    uint64_t bytes[AG_RANKS];
    uint32_t n;
    bool spread; /* copy from[0] to each of to[]; false: from[i] to to[i] */
};

static bool is_aligned(const void *p)
{
    return (uintptr_t)p % LINE == 0;
}

/* Returns a worker's share of `bytes`, in whole units. */
static struct span share_of(uint64_t bytes, uint64_t unit, uint32_t worker, uint32_t workers)
{
    uint64_t n = bytes / unit, first = n * worker / workers, end = n * (worker + 1) / workers;

    return (struct span){first * unit, (end - first) * unit};
}

/* Copies a block. Kernels store whole lines only; memcpy copies rows of other sizes, and inputs
 * that begin inside a line. */
static void copy_block(const struct ag_host *h, void *const *to, uint32_t n, const char *from,
                       uint64_t bytes, bool lines)
{
    if (lines)
        h->a.kernels->spread(to, n, from, bytes, h->a.store);
    else
        for (uint32_t i = 0; i < n; i++)
            memcpy(to[i], from, bytes);
}

static void copy_to_all(const struct copy *c, char *const *to, uint32_t n, const char *from,
                        uint64_t bytes, uint32_t worker, uint32_t workers)
{
    bool lines = is_aligned(from) && bytes % LINE == 0;
    struct span share;

    for (uint32_t i = 0; i < n; i++)
        lines = lines && is_aligned(to[i]);
    share = share_of(bytes, lines ? LINE : ROW_ALIGN, worker, workers);
    for (uint64_t at = 0; at < share.bytes; at += BLOCK_BYTES) {
        uint64_t left = share.bytes - at;
        void *block[AG_RANKS];

        for (uint32_t i = 0; i < n; i++)
            block[i] = to[i] + share.at + at;
        copy_block(c->h, block, n, from + share.at + at, left < BLOCK_BYTES ? left : BLOCK_BYTES,
                   lines);
    }
}

static void copy_rows(void *arg, uint32_t worker, uint32_t workers)
{
    const struct copy *c = arg;
    struct epa_trace *trace = c->h->a.trace;
    uint64_t begin = epa_trace_now(trace), bytes = 0;

    if (c->spread)
        copy_to_all(c, c->to, c->n, c->from[0], c->bytes[0], worker, workers);
    else
        for (uint32_t i = 0; i < c->n; i++)
            copy_to_all(c, &c->to[i], 1, c->from[i], c->bytes[i], worker, workers);
    algo_drain(c->h->a.store); /* before the signal */
    for (uint32_t i = 0; i < c->n; i++)
        bytes += c->bytes[c->spread ? 0 : i];
    (void)epa_trace_slice(trace, worker, c->spread ? c->h->name.copy : c->h->name.pull, begin,
                          EPA_TRACE_NOBODY, bytes / workers, 0);
}

static enum epa_status run_copy(struct ag_host *h, struct copy *c)
{
    c->h = h;
    if (c->n == 0 || (c->spread && c->bytes[0] == 0))
        return EPA_OK;
    return algo_parallel(&h->a, copy_rows, c);
}

/* ---- sending ---- */

/* Stores a chunk of this rank in its own set, and in mode push in the sets of peers in reach. */
static enum epa_status store_chunk(struct ag_host *h, const struct epa_allgather *g, struct span s)
{
    uint64_t at = set_offset(h, h->a.epoch) + s.at;
    struct copy c = {.spread = true, .bytes = {s.bytes}};

    c.from[0] = h->a.t->heap + at;
    if (g->in != NULL) {
        c.from[0] = (const char *)g->in + (s.at - h->start[h->a.world.rank]);
        c.to[c.n++] = h->a.t->heap + at;
    }
    for (uint32_t i = 1; i < h->l.size && !h->l.pull; i++) {
        char *to = epa_peer(h->a.t, at, algo_peer(&h->a, i));

        if (to != NULL)
            c.to[c.n++] = to;
    }
    return run_copy(h, &c);
}

/* Signals a chunk to a peer. A peer out of reach also gets a put of the chunk from the own set. */
static enum epa_status send_chunk_to(struct ag_host *h, struct span s, uint32_t chunk,
                                     uint32_t peer)
{
    uint64_t at = set_offset(h, h->a.epoch) + s.at;
    uint64_t bytes = algo_reachable(&h->a, peer) ? 0 : s.bytes;

    h->a.last.row = chunk;
    return algo_signal(&h->a, at, h->a.t->heap + at, bytes,
                       ag_signal(&h->l, h->a.world.rank, chunk), h->a.epoch, peer);
}

static enum epa_status send_rows(struct ag_host *h, const struct epa_allgather *g)
{
    enum epa_status status = EPA_OK;

    for (uint32_t c = 0; c < h->l.chunks && status == EPA_OK; c++) {
        struct span s = chunk_span(h, g, h->a.world.rank, c);
        uint64_t begin;

        status = store_chunk(h, g, s);
        begin = epa_trace_now(h->a.trace);
        for (uint32_t i = 1; i < h->l.size && status == EPA_OK; i++)
            status = send_chunk_to(h, s, c, algo_peer(&h->a, i));
        (void)epa_trace_slice(h->a.trace, 0, h->name.put, begin, EPA_TRACE_NOBODY, 0, 0);
    }
    return status;
}

/* ---- receiving ---- */

static enum epa_status wait_for_chunk(struct ag_host *h, uint32_t peer, uint32_t chunk)
{
    uint32_t signal = ag_signal(&h->l, peer, chunk);
    uint64_t begin = epa_trace_now(h->a.trace), end;
    enum epa_status status = algo_wait(&h->a, signal, h->a.epoch, "chunk", chunk, peer);

    end = epa_trace_slice(h->a.trace, 0, h->name.wait, begin, peer, 0, 0);
    if (status == EPA_OK)
        epa_trace_flow_end(h->a.trace, 0, begin, end, peer, h->a.signal + signal, h->a.epoch);
    return status;
}

/* Receives chunk by chunk, in the order in which peers send. */
static enum epa_status receive_rows(struct ag_host *h, const struct epa_allgather *g)
{
    enum epa_status status = EPA_OK;

    for (uint32_t chunk = 0; chunk < h->l.chunks && status == EPA_OK; chunk++) {
        struct copy c = {.n = 0};

        for (uint32_t i = 1; i < h->l.size && status == EPA_OK; i++) {
            uint32_t peer = algo_peer(&h->a, i);
            struct span s = chunk_span(h, g, peer, chunk);
            uint64_t at = set_offset(h, h->a.epoch) + s.at;

            status = wait_for_chunk(h, peer, chunk);
            if (!h->l.pull || s.bytes == 0)
                continue;
            c.from[c.n] = algo_at(&h->a, peer, at);
            c.to[c.n] = h->a.t->heap + at;
            c.bytes[c.n++] = s.bytes;
        }
        if (status == EPA_OK)
            status = run_copy(h, &c);
    }
    return status;
}

/* ---- the stage ---- */

static void publish_views(const struct ag_host *h, struct epa_allgather *g)
{
    g->epoch = h->a.epoch;
    g->out = h->a.t->heap + set_offset(h, h->a.epoch);
    g->next_out = h->a.t->heap + set_offset(h, h->a.epoch + 1);
    g->signal = h->a.signal;
    g->chunks = h->l.pull ? 0 : h->l.chunks;
    g->chunk_rows = h->l.chunk_rows;
}

static enum epa_status run_gather(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct ag_host *h = (struct ag_host *)a;
    struct epa_allgather *g = &problem->u.allgather;
    enum epa_status status;
    uint64_t begin;

    h->a.last.text[0] = '\0'; /* drop the error of an earlier rejected call */
    h->a.last.what = "chunk";
    h->a.last.phase = "send";
    status = find_starts(h, g);
    if (status != EPA_OK)
        return status;
    h->a.epoch++;
    publish_views(h, g);
    status = send_rows(h, g);
    h->a.last.phase = status == EPA_OK ? "wait" : h->a.last.phase;
    if (status == EPA_OK)
        status = receive_rows(h, g);
    if (status != EPA_OK)
        return status;
    h->a.last.phase = "quiet";
    begin = epa_trace_now(h->a.trace);
    status = h->a.t->ops->quiet(h->a.t);
    (void)epa_trace_slice(h->a.trace, 0, h->name.quiet, begin, EPA_TRACE_NOBODY, 0, 0);
    return status;
}

static const struct epa_stage stages[] = {
    {.name = "allgather", .kind = EPA_STAGE_WHOLE, .run = run_gather},
};

/* ---- set-up ---- */

/* Ordinary stores leave rows in the last-level cache for the reader. Non-temporal stores are faster
 * if the outputs of all ranks of the host exceed a third of that cache. */
static enum epa_store choose_store(const struct ag_layout *l, const struct epa_world *world,
                                   int nontemporal)
{
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    uint64_t third = (uint64_t)(cache > 0 ? cache : 32 << 20) / 3;
    bool large = world->local_size * l->set_bytes > third;

    return nontemporal == AG_NONTEMPORAL_ON || (nontemporal == AG_NONTEMPORAL_AUTO && large)
               ? EPA_STORE_NONTEMPORAL
               : EPA_STORE_CACHED;
}

enum epa_status ag_host_create(const struct epa_algorithm_params *p, const struct ag_layout *l,
                               struct epa_algorithm **out, struct epa_error *err)
{
    const struct ag_config *config = p->config;
    const struct algo_setup setup = {.name = "allgather",
                                     .stages = stages,
                                     .n_stages = 1,
                                     .state_bytes = sizeof(struct ag_host),
                                     .signals = l->signals,
                                     .heap_bytes = l->heap_bytes,
                                     .puts = !l->pull};
    struct algo_host *host = NULL;
    enum epa_status status = algo_create(&setup, p, &host, err);
    /* setup.state_bytes is the size of struct ag_host */
    struct ag_host *h = (struct ag_host *)host;

    if (status != EPA_OK)
        return status;
    h->l = *l;
    host->store = choose_store(l, &p->world, config->nontemporal);
    host->last.stage = "allgather";
    h->name = (struct ag_names){.copy = epa_trace_name(p->trace, "copy"),
                                .put = epa_trace_name(p->trace, "put"),
                                .wait = epa_trace_name(p->trace, "wait"),
                                .pull = epa_trace_name(p->trace, "pull"),
                                .quiet = epa_trace_name(p->trace, "quiet")};
    return algo_created(host, out, err);
}
