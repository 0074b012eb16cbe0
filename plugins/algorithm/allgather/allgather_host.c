/* allgather on hosts.
 *
 * Call e = 1, 2, ... uses buffer set e % 2. A rank copies its rows to their place in its own
 * set, unless they are there (in place). Pushed, its workers store them at the same offset of
 * each peer's set in the same pass, and peers that loads and stores do not reach get them by
 * puts from the own set. Pulled, peers load them from there. Each chunk of a rank has a signal
 * word at each peer, which is set to e: pushed, after the chunk is in the peer's set; pulled,
 * once it can be loaded. A call returns when it has seen e in the words of all chunks of all
 * peers, copied them if pulled, and its own puts are in place (quiet).
 *
 * Why no barrier is needed, and two sets are enough:
 *   (1) A rank begins call e after it returned from e - 1, so all peers have set their signals
 *       of e - 1, and so have begun e - 1 and returned from e - 2.
 *   (2) Pushed: what a peer has in the set of e is its output of e - 2. It was valid until the
 *       peer began e - 1.
 *   (3) Pulled: only the rank itself writes its set. Peers loaded from its part of the set of e
 *       in e - 2, from which they have returned.
 *   (4) In place, the own part of the set of e is written between e - 1 and e: after (1).
 *   (5) Words only count up. Two SETs of a word, of e and e + 1, cannot swap, as quiet is
 *       between them; nor is anything held back while this rank is elsewhere. The same quiet
 *       frees the own set, from which puts read. */
#include "allgather.h"

#include <epa2a/quant.h>

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <epa2a/wait.h>

/* A row block of this size stays in L1 and L2 between the copies to two peers. */
enum { BLOCK_BYTES = 16 << 10, LINE = 64, ROW_ALIGN = 16 };

/* Of traces. */
struct ag_names {
    uint16_t copy, put, wait, pull, quiet;
};

struct ag_host {
    struct epa_algorithm base; /* first */
    struct ag_layout l;
    struct epa_world world;
    struct epa_transport *t;
    struct epa_backend *backend;
    struct epa_trace *trace;
    const struct epa_kernels *kernels;
    enum epa_store store;
    uint64_t heap, timeout_ns, epoch;
    uint32_t signal;
    struct ag_names name;
    uint64_t start[AG_RANKS]; /* of each rank's rows in the output at hand, in bytes */
    struct {                  /* for explain() */
        const char *phase;
        uint32_t peer, chunk;
        enum epa_status status;
        char text[200]; /* empty: it was the transport that failed */
    } last;
};

static struct ag_host *host_of(struct epa_algorithm *a)
{
    return (struct ag_host *)a; /* base is the first member */
}

EPA_PRINTF(3, 4)
static enum epa_status host_fail(struct ag_host *h, enum epa_status status, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(h->last.text, sizeof(h->last.text), fmt, args);
    va_end(args);
    h->last.status = status;
    return status;
}

/* ---- the call at hand ---- */

static uint64_t set_offset(const struct ag_host *h, uint64_t epoch)
{
    return h->heap + epoch % AG_SETS * h->l.set_bytes;
}

/* Everybody in turn, beginning after this rank, so that not all begin with rank 0. */
static uint32_t peer_at(const struct ag_host *h, uint32_t i)
{
    return (h->world.rank + i) % h->l.size;
}

/* A chunk of a rank's rows: offset from the start of the output, and bytes, maybe none. */
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
            return host_fail(h, EPA_ERR_CONFIG,
                             "rank %u has %u rows, and there is room for %u of a rank", r,
                             g->rows[r], h->l.max_rows);
        h->start[r] = at;
        at += (uint64_t)g->rows[r] * h->l.row_bytes;
    }
    return EPA_OK;
}

/* ---- copies ---- */

/* One pass of the workers: push a chunk of this rank to all `to`, or pull a chunk of each peer
 * into this rank's set. */
struct copy {
    struct ag_host *h;
    const char *from[AG_RANKS];
    char *to[AG_RANKS];
    uint64_t bytes[AG_RANKS];
    uint32_t n;
    bool spread; /* from[0] to all of to */
};

static bool is_aligned(const void *p)
{
    return (uintptr_t)p % LINE == 0;
}

/* A worker's share of `bytes`, in whole units. */
static struct span share_of(uint64_t bytes, uint64_t unit, uint32_t worker, uint32_t workers)
{
    uint64_t n = bytes / unit, first = n * worker / workers, end = n * (worker + 1) / workers;

    return (struct span){first * unit, (end - first) * unit};
}

/* Kernels store whole lines; rows of another size, and inputs that begin within a line, go by
 * memcpy. */
static void copy_block(const struct ag_host *h, void *const *to, uint32_t n, const char *from,
                       uint64_t bytes, bool lines)
{
    if (lines)
        h->kernels->spread(to, n, from, bytes, h->store);
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
    uint64_t begin = epa_trace_now(c->h->trace), bytes = 0;

    if (c->spread)
        copy_to_all(c, c->to, c->n, c->from[0], c->bytes[0], worker, workers);
    else
        for (uint32_t i = 0; i < c->n; i++)
            copy_to_all(c, &c->to[i], 1, c->from[i], c->bytes[i], worker, workers);
    if (c->h->store == EPA_STORE_NONTEMPORAL)
        epa_store_drain(); /* before the signal */
    for (uint32_t i = 0; i < c->n; i++)
        bytes += c->bytes[c->spread ? 0 : i];
    (void)epa_trace_slice(c->h->trace, worker, c->spread ? c->h->name.copy : c->h->name.pull, begin,
                          EPA_TRACE_NOBODY, bytes / workers, 0);
}

static enum epa_status run_copy(struct ag_host *h, struct copy *c)
{
    c->h = h;
    if (c->n == 0 || (c->spread && c->bytes[0] == 0))
        return EPA_OK;
    h->last.phase = "copying rows";
    return h->backend->ops->parallel(h->backend, copy_rows, c);
}

/* ---- sending ---- */

/* A chunk of this rank to its own set, and, pushed, to those of peers in reach. */
static enum epa_status store_chunk(struct ag_host *h, const struct epa_allgather *g, struct span s)
{
    uint64_t at = set_offset(h, h->epoch) + s.at;
    struct copy c = {.spread = true, .bytes = {s.bytes}};

    c.from[0] = h->t->heap + at;
    if (g->in != NULL) {
        c.from[0] = (const char *)g->in + (s.at - h->start[h->world.rank]);
        c.to[c.n++] = h->t->heap + at;
    }
    for (uint32_t i = 1; i < h->l.size && !h->l.pull; i++) {
        char *to = epa_peer(h->t, at, peer_at(h, i));

        if (to != NULL)
            c.to[c.n++] = to;
    }
    return run_copy(h, &c);
}

/* Sends a chunk that is in the own set where loads and stores do not reach, and signals it to
 * all. Tries again while the transport has no room. */
static enum epa_status send_chunk_to(struct ag_host *h, struct span s, uint32_t chunk,
                                     uint32_t peer)
{
    uint64_t at = set_offset(h, h->epoch) + s.at, deadline = 0;
    uint32_t signal = h->signal + ag_signal(&h->l, h->world.rank, chunk);
    bool put = h->t->peer_heap[peer] == NULL && s.bytes != 0;

    h->last.phase = "sending";
    h->last.peer = peer;
    h->last.chunk = chunk;
    epa_trace_flow_begin(h->trace, 0, peer, signal, h->epoch);
    for (;;) {
        enum epa_status status =
            put ? epa_put_signal(h->t, at, h->t->heap + at, s.bytes, signal, h->epoch, peer)
                : h->t->ops->signal(h->t, signal, h->epoch, EPA_SIGNAL_SET, peer);
        if (status == EPA_AGAIN)
            status = h->t->ops->progress(h->t);
        else
            return status;
        if (status != EPA_OK)
            return status;
        if (deadline == 0)
            deadline = epa_now_ns() + h->timeout_ns;
        if (epa_now_ns() > deadline)
            return host_fail(h, EPA_ERR_TIMEOUT,
                             "for %.3f s the transport had no room for what goes to rank %u",
                             (double)h->timeout_ns * 1e-9, peer);
    }
}

static enum epa_status send_rows(struct ag_host *h, const struct epa_allgather *g)
{
    enum epa_status status = EPA_OK;

    for (uint32_t c = 0; c < h->l.chunks && status == EPA_OK; c++) {
        struct span s = chunk_span(h, g, h->world.rank, c);
        uint64_t begin;

        status = store_chunk(h, g, s);
        begin = epa_trace_now(h->trace);
        for (uint32_t i = 1; i < h->l.size && status == EPA_OK; i++)
            status = send_chunk_to(h, s, c, peer_at(h, i));
        (void)epa_trace_slice(h->trace, 0, h->name.put, begin, EPA_TRACE_NOBODY, 0, 0);
    }
    return status;
}

/* ---- receiving ---- */

static enum epa_status wait_for_chunk(struct ag_host *h, uint32_t peer, uint32_t chunk)
{
    uint32_t signal = h->signal + ag_signal(&h->l, peer, chunk);
    uint64_t begin = epa_trace_now(h->trace), end;
    enum epa_status status;

    h->last.phase = "waiting";
    h->last.peer = peer;
    h->last.chunk = chunk;
    status = epa_wait(h->t, signal, h->epoch, h->timeout_ns);
    end = epa_trace_slice(h->trace, 0, h->name.wait, begin, peer, 0, 0);
    if (status == EPA_OK)
        epa_trace_flow_end(h->trace, 0, begin, end, peer, signal, h->epoch);
    return status;
}

/* Chunk by chunk, as peers send them. */
static enum epa_status receive_rows(struct ag_host *h, const struct epa_allgather *g)
{
    enum epa_status status = EPA_OK;

    for (uint32_t chunk = 0; chunk < h->l.chunks && status == EPA_OK; chunk++) {
        struct copy c = {.n = 0};

        for (uint32_t i = 1; i < h->l.size && status == EPA_OK; i++) {
            uint32_t peer = peer_at(h, i);
            struct span s = chunk_span(h, g, peer, chunk);
            uint64_t at = set_offset(h, h->epoch) + s.at;

            status = wait_for_chunk(h, peer, chunk);
            if (!h->l.pull || s.bytes == 0)
                continue;
            c.from[c.n] = h->t->peer_heap[peer] + at;
            c.to[c.n] = h->t->heap + at;
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
    g->epoch = h->epoch;
    g->out = h->t->heap + set_offset(h, h->epoch);
    g->next_out = h->t->heap + set_offset(h, h->epoch + 1);
    g->signal = h->signal;
    g->chunks = h->l.pull ? 0 : h->l.chunks;
    g->chunk_rows = h->l.chunk_rows;
}

static enum epa_status gather(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct ag_host *h = host_of(a);
    struct epa_allgather *g = &problem->u.allgather;
    enum epa_status status = find_starts(h, g);
    uint64_t begin;

    if (status != EPA_OK)
        return status;
    h->epoch++;
    publish_views(h, g);
    status = send_rows(h, g);
    if (status == EPA_OK)
        status = receive_rows(h, g);
    if (status != EPA_OK)
        return status;
    h->last.phase = "completing puts";
    begin = epa_trace_now(h->trace);
    status = h->t->ops->quiet(h->t);
    (void)epa_trace_slice(h->trace, 0, h->name.quiet, begin, EPA_TRACE_NOBODY, 0, 0);
    return status;
}

static const struct epa_stage stages[] = {
    {.name = "allgather", .kind = EPA_STAGE_WHOLE, .run = gather},
};

/* Called within wait_for_chunk(), by its own thread. */
static void wait_describe(const struct epa_algorithm *a, struct epa_wait_state *w)
{
    const struct ag_host *h = (const struct ag_host *)(const void *)a;

    if (w->number < h->signal || w->number >= h->signal + h->l.signals)
        return;
    w->peer = (w->number - h->signal) / h->l.chunks;
    w->what = "rows";
}

static void explain(struct epa_algorithm *a, struct epa_error *err)
{
    struct ag_host *h = host_of(a);
    struct epa_error inner = {EPA_OK, ""};

    if (h->last.text[0] != 0) {
        (void)epa_fail(err, h->last.status, "%s", h->last.text);
        return;
    }
    h->t->ops->explain(h->t, &inner);
    (void)epa_fail(err, inner.status, "allgather/%s: chunk %u of rank %u: %s", h->last.phase,
                   h->last.chunk, h->last.peer, inner.text);
}

/* ---- set-up ---- */

static void destroy(struct epa_algorithm *a)
{
    free(host_of(a));
}

/* A transport may give less than its plugin says it can; plan() relied on what was said. */
static enum epa_status check_heap(const struct epa_algorithm_params *p, const struct ag_layout *l,
                                  struct epa_error *err)
{
    const struct epa_transport *t = p->transport;

    if (p->heap + l->heap_bytes > t->heap_bytes)
        return epa_fail(err, EPA_ERR_CONFIG, "allgather: the heap of %llu bytes is too small",
                        (unsigned long long)t->heap_bytes);
    for (uint32_t r = 0; r < t->size && l->pull; r++) {
        if (t->peer_heap[r] == NULL)
            return epa_fail(err, EPA_ERR_UNSUPPORTED,
                            "allgather with mode: pull: loads and stores do not reach rank "
                            "%u, though the transport said that they reach all; set mode: "
                            "push",
                            r);
    }
    return EPA_OK;
}

/* Ordinary stores leave rows in the last-level cache for the reader; nontemporal stores are
 * faster once the outputs of all ranks of the host take more than a third of it. */
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
    enum epa_status status = check_heap(p, l, err);
    struct ag_host *h;

    if (status != EPA_OK)
        return status;
    h = calloc(1, sizeof(*h));
    if (h == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "allgather: no memory");
    *h = (struct ag_host){
        .base = {.stages = stages,
                 .n_stages = 1,
                 .wait_describe = wait_describe,
                 .explain = explain,
                 .destroy = destroy},
        .l = *l,
        .world = p->world,
        .t = p->transport,
        .backend = p->backend,
        .trace = p->trace,
        .kernels = epa_kernels_get(EPA_BF16, NULL), /* rows are copied, whatever is in them */
        .store = choose_store(l, &p->world, config->nontemporal),
        .heap = p->heap,
        .timeout_ns = p->timeout_ns,
        .signal = p->signal,
        .epoch = p->epoch,
        .name = {.copy = epa_trace_name(p->trace, "copy"),
                 .put = epa_trace_name(p->trace, "put"),
                 .wait = epa_trace_name(p->trace, "wait"),
                 .pull = epa_trace_name(p->trace, "pull"),
                 .quiet = epa_trace_name(p->trace, "quiet")},
        .last = {.phase = "create"},
    };
    *out = &h->base;
    return EPA_OK;
}
