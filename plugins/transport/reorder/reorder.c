/* The transport reorder: shm with only the ordering that transport.h guarantees. An algorithm that
 * relies on a stronger ordering of shm fails here.
 *
 * Each put and each signal enters a short queue of the sending rank. Operations leave the queue
 * in random order and in pieces, last bytes first, while the sending rank is inside a function
 * that makes progress. The source of a put is read at that moment. close() discards the rest of
 * the queue. Ranks may be on several nodes (ranks_per_node splits a host); the shm below sees one
 * node. */
#include <epa2a/transport.h>

#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../common/transport_wait.h"

enum { ROOM = 64, DAWDLE_NS = 4000 };
enum peers { PEERS_NONE, PEERS_PAIR, PEERS_NODE };

struct config {
    uint64_t seed;
    uint32_t room;
    int peers; /* enum peers */
};

struct held {
    uint32_t peer, signal;
    bool signals;
    enum epa_signal_op op;
    uint64_t dst, value;
    const char *src;
    size_t left;     /* bytes of the payload still to copy, from its start */
    uint64_t fences; /* fences to this peer before this operation */
};

struct reorder {
    struct epa_transport base; /* first member: reorder_of() casts the pointer back */
    struct epa_transport *inner;
    struct epa_bootstrap *boot;
    uint64_t random;
    uint32_t signals, room, n, busy;
    struct held held[ROOM];
    uint64_t *fences; /* [size]: fences so far to each peer */
    char **peer_heap;
    char **to;  /* [size]: the target heap of each peer */
    bool given; /* the caller allocated the heaps, not shm */
    struct epa_error error;
};

extern const struct epa_transport_plugin shm_plugin;

static struct reorder *reorder_of(struct epa_transport *t)
{
    return (struct reorder *)t;
}

/* Random number from 0 to n - 1 (xorshift64*). */
static uint64_t draw(struct reorder *w, uint64_t n)
{
    w->random ^= w->random >> 12;
    w->random ^= w->random << 25;
    w->random ^= w->random >> 27;
    return (w->random * 2685821657736338717u >> 16) % n;
}

/* This transport lacks EPA_TRANSPORT_THREADS, so two threads must not call it at once. No other
 * check detects a caller that breaks this rule. */
static struct reorder *enter(struct epa_transport *t)
{
    struct reorder *w = reorder_of(t);

    if (__atomic_exchange_n(&w->busy, 1, __ATOMIC_ACQUIRE) != 0) {
        fprintf(stderr, "reorder: two threads of rank %u are in the transport at once\n", t->rank);
        abort();
    }
    return w;
}

static enum epa_status leave(struct reorder *w, enum epa_status status)
{
    __atomic_store_n(&w->busy, 0, __ATOMIC_RELEASE);
    return status;
}

static bool is_held_by_fence(const struct reorder *w, const struct held *held)
{
    for (uint32_t i = 0; i < w->n; i++) {
        const struct held *other = &w->held[i];

        if (other->peer == held->peer && other->fences < held->fences)
            return true;
    }
    return false;
}

/* Delays the next piece, so that a peer can read a signal while earlier puts are incomplete. */
static void dawdle(struct reorder *w)
{
    uint64_t end = epa_now_ns() + draw(w, DAWDLE_NS);

    do
        sched_yield();
    while (epa_now_ns() < end);
}

/* Delivers one piece of a random operation of the queue. */
static void land(struct reorder *w)
{
    struct epa_transport *inner = w->inner;
    uint32_t i = (uint32_t)draw(w, w->n);
    struct held *held;
    char *to;

    while (is_held_by_fence(w, &w->held[i])) /* ends: the operation with fewest fences is free */
        i = (i + 1) % w->n;
    held = &w->held[i];
    to = w->to[held->peer] + held->dst;
    if (w->given && held->left == sizeof(uint64_t) && (uintptr_t)to % sizeof(uint64_t) == 0) {
        uint64_t word;

        memcpy(&word, held->src, sizeof(word));
        /* Release: pairs with the acquire of the rank that polls this word. Operations before the
         * preceding fence are complete. */
        __atomic_store_n((uint64_t *)(void *)to, word, __ATOMIC_RELEASE);
        held->left = 0;
    } else if (held->left != 0) {
        size_t piece = 1 + draw(w, held->left);

        held->left -= piece;
        memcpy(to + held->left, held->src + held->left, piece);
        if (held->left != 0)
            return;
    }
    if (held->signals)
        (void)inner->ops->signal(inner, held->signal, held->value, held->op, held->peer);
    *held = w->held[--w->n];
    if (w->n != 0 && draw(w, 2) == 0)
        dawdle(w);
}

static enum epa_status wrong(struct reorder *w, const char *what, uint64_t value, uint64_t limit)
{
    w->error = (struct epa_error){EPA_OK, ""};
    return epa_fail(&w->error, EPA_ERR_CONFIG,
                    "reorder: rank %u: %s %" PRIu64 " is not below %" PRIu64, w->base.rank, what,
                    value, limit);
}

static enum epa_status check(struct reorder *w, const struct held *held)
{
    const struct epa_transport *t = &w->base;
    uintptr_t src = (uintptr_t)held->src, heap = (uintptr_t)t->heap;

    if (held->peer >= t->size)
        return wrong(w, "peer", held->peer, t->size);
    if (held->signals && held->signal >= w->signals)
        return wrong(w, "signal", held->signal, w->signals);
    if (held->left == 0)
        return EPA_OK;
    if (held->dst >= t->heap_bytes || held->left > t->heap_bytes - held->dst)
        return wrong(w, "heap offset of the last byte", held->dst + held->left - 1, t->heap_bytes);
    if (!w->given &&
        (src < heap || src - heap >= t->heap_bytes || held->left > t->heap_bytes - (src - heap)))
        return wrong(w, "a source outside the heap, offset", src - heap, t->heap_bytes);
    return EPA_OK;
}

static enum epa_status hold(struct epa_transport *t, const struct held *held)
{
    struct reorder *w = enter(t);
    enum epa_status status = check(w, held);

    if (status != EPA_OK)
        return leave(w, status);
    if (w->n >= w->room || draw(w, 8) == 0)
        return leave(w, EPA_AGAIN);
    w->held[w->n] = *held;
    w->held[w->n++].fences = w->fences[held->peer];
    if (draw(w, 4) == 0) /* a quarter of the operations start at once */
        land(w);
    return leave(w, EPA_OK);
}

static enum epa_status put(struct epa_transport *t, uint64_t dst, const void *src, size_t bytes,
                           uint32_t peer)
{
    return hold(t, &(struct held){.peer = peer, .dst = dst, .src = src, .left = bytes});
}

static enum epa_status put_signal(struct epa_transport *t, uint64_t dst, const void *src,
                                  size_t bytes, uint32_t signal, uint64_t value,
                                  enum epa_signal_op op, uint32_t peer)
{
    return hold(t, &(struct held){.peer = peer,
                                  .signal = signal,
                                  .signals = true,
                                  .op = op,
                                  .dst = dst,
                                  .value = value,
                                  .src = src,
                                  .left = bytes});
}

static enum epa_status raise_signal(struct epa_transport *t, uint32_t signal, uint64_t value,
                                    enum epa_signal_op op, uint32_t peer)
{
    return put_signal(t, 0, NULL, 0, signal, value, op, peer);
}

static enum epa_status fence(struct epa_transport *t, uint32_t peer)
{
    struct reorder *w = enter(t);

    w->fences[peer]++;
    return leave(w, EPA_OK);
}

static void land_all(struct reorder *w)
{
    while (w->n != 0)
        land(w);
}

static enum epa_status quiet(struct epa_transport *t)
{
    struct reorder *w = enter(t);

    land_all(w);
    return leave(w, w->inner->ops->quiet(w->inner));
}

static uint64_t read_signal(struct epa_transport *t, uint32_t signal)
{
    struct reorder *w = enter(t);
    uint64_t value = w->inner->ops->read(w->inner, signal);

    (void)leave(w, EPA_OK);
    return value;
}

static enum epa_status give_up(struct reorder *w, const struct failure *f)
{
    struct epa_error why = {EPA_OK, ""};

    wait_explain("reorder", &w->base, w->boot, f, &why);
    w->error = (struct epa_error){EPA_OK, ""};
    return epa_fail(epa_awaits_as(&w->error, &why), f->status,
                    "%.300s; it holds back %u operations of its own", why.text, w->n);
}

static enum epa_status wait_signal(struct epa_transport *t, uint32_t signal,
                                   enum epa_compare compare, uint64_t value, uint64_t timeout_ns)
{
    struct reorder *w = enter(t);
    struct epa_wait_config config = {.aborted = w->boot->aborted, .observer = w->boot->observer};
    struct epa_wait wait = {.timeout_ns = timeout_ns};
    struct failure f = {.at = FAILED_SIGNAL, .compare = compare, .signal = signal, .want = value};

    for (;;) {
        f.seen = w->inner->ops->read(w->inner, signal);
        if (wait_reached(f.seen, compare, value))
            return leave(w, epa_wait_done(&config, &wait));
        config.spin_ns = w->n != 0 ? UINT64_MAX : 0;
        if (wait_turn(&config, &wait, &f) != EPA_OK)
            return leave(w, give_up(w, &f));
        if (w->n != 0)
            land(w);
    }
}

static enum epa_status progress(struct epa_transport *t)
{
    struct reorder *w = enter(t);

    for (uint64_t i = 1 + draw(w, 4); i > 0 && w->n != 0; i--)
        land(w);
    return leave(w, epa_aborted(w->boot) ? EPA_ERR_ABORTED : EPA_OK);
}

/* Stores the error text of the transport below, whose failure is now the last one. */
static enum epa_status inner_leave(struct reorder *w, enum epa_status status)
{
    if (status != EPA_OK) {
        w->error = (struct epa_error){EPA_OK, ""};
        w->inner->ops->explain(w->inner, &w->error);
    }
    return leave(w, status);
}

static enum epa_status pass_barrier(struct epa_transport *t, uint64_t timeout_ns)
{
    struct reorder *w = enter(t);

    land_all(w);
    return inner_leave(w, w->inner->ops->barrier(w->inner, timeout_ns));
}

static enum epa_status reset_signals(struct epa_transport *t)
{
    struct reorder *w = enter(t);

    land_all(w);
    return inner_leave(w, w->inner->ops->reset(w->inner));
}

static void explain(struct epa_transport *t, struct epa_error *err)
{
    struct reorder *w = enter(t);

    if (w->error.status == EPA_OK)
        w->inner->ops->explain(w->inner, err);
    else
        (void)epa_fail_copy(err, w->error.status, &w->error);
    (void)leave(w, EPA_OK);
}

static void close_all(struct epa_transport *t)
{
    struct reorder *w = reorder_of(t);

    if (w->inner != NULL)
        w->inner->ops->close(w->inner);
    free(w->fences);
    free(w->peer_heap);
    free(w->to);
    free(w);
}

static const struct epa_transport_ops ops = {
    .put = put,
    .put_signal = put_signal,
    .signal = raise_signal,
    .fence = fence,
    .quiet = quiet,
    .read = read_signal,
    .wait = wait_signal,
    .progress = progress,
    .barrier = pass_barrier,
    .reset = reset_signals,
    .explain = explain,
    .close = close_all,
};

static bool reaches(const struct reorder *w, int peers, uint32_t r)
{
    uint32_t rank = w->boot->world.rank;

    return r == rank || (peers == PEERS_PAIR && r == (rank ^ 1)) ||
           (peers == PEERS_NODE && epa_same_node(&w->boot->world, r));
}

/* peer_heap[] always holds this rank's own heap. `pair` adds the rank whose number differs in the
 * last bit, so that a rank has peers with and without load/store access. */
static void set_base(struct reorder *w, const struct config *config)
{
    const struct epa_transport *inner = w->inner;

    for (uint32_t r = 0; r < inner->size; r++) {
        if (reaches(w, config->peers, r))
            w->peer_heap[r] = inner->peer_heap[r];
    }
    w->base = *inner;
    w->base.ops = &ops;
    w->base.flags = EPA_TRANSPORT_HOST | EPA_TRANSPORT_SIGNAL_ADD | EPA_TRANSPORT_NODES;
    w->base.peer_heap = w->peer_heap;
}

/* ---- heaps of the caller ---- */

/* Process and heap of a rank. Ranks of one process reach each other's heaps. */
struct place {
    int64_t pid;
    char *heap;
};

static enum epa_status places_meet(struct epa_bootstrap *boot, char *heap, struct place **out,
                                   struct epa_error *err)
{
    const struct place mine = {getpid(), heap};
    struct place *all = calloc(boot->world.size, sizeof(*all));
    enum epa_status status = all != NULL ? boot->allgather(boot, &mine, sizeof(mine), all)
                                         : epa_fail(err, EPA_ERR_NOMEM, "reorder: no memory");

    if (all != NULL && status != EPA_OK)
        boot->explain(boot, err);
    for (uint32_t r = 0; r < boot->world.size && status == EPA_OK; r++)
        if (all[r].pid != mine.pid)
            status =
                epa_fail(err, EPA_ERR_UNSUPPORTED,
                         "reorder accepts a heap of the caller only if all ranks are threads of "
                         "one process");
    *out = status == EPA_OK ? all : NULL;
    if (status != EPA_OK)
        free(all);
    return status;
}

static enum epa_status takes(struct epa_bootstrap *boot, const void *config, enum epa_memory memory,
                             struct epa_error *err)
{
    struct place *places = NULL;
    enum epa_status status;

    (void)config;
    if (memory != EPA_MEMORY_HOST)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "reorder accepts heaps in host memory only");
    status = boot != NULL ? places_meet(boot, NULL, &places, err) : EPA_OK;
    free(places);
    return status;
}

static enum epa_status find_heaps(struct reorder *w, const struct epa_transport_params *p,
                                  struct epa_error *err)
{
    struct place *places;
    enum epa_status status;

    for (uint32_t r = 0; r < w->inner->size; r++)
        w->to[r] = w->inner->peer_heap[r];
    if (p->heap == NULL)
        return EPA_OK;
    status = places_meet(p->boot, p->heap, &places, err);
    if (status != EPA_OK)
        return status;
    for (uint32_t r = 0; r < w->inner->size; r++) {
        w->to[r] = places[r].heap;
        w->peer_heap[r] = r == w->base.rank ? p->heap : NULL;
    }
    free(places);
    w->given = true;
    w->base.flags |= EPA_TRANSPORT_ANY_SOURCE;
    w->base.heap = p->heap;
    w->base.heap_bytes = p->heap_bytes;
    return EPA_OK;
}

static enum epa_status open_all(const struct epa_transport_params *p, struct epa_transport **out,
                                struct epa_error *err)
{
    const struct config *config = p->config;
    struct epa_transport_params inner = *p;
    struct epa_world *world = &p->boot->world, told = *world;
    uint32_t size = world->size;
    struct reorder *w = calloc(1, sizeof(*w));
    enum epa_status status;

    if (w == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "reorder: no memory");
    w->boot = p->boot;
    w->signals = p->signals;
    w->room = config->room;
    w->random = (config->seed + p->boot->world.rank + 1) * 0x9e3779b97f4a7c15u | 1;
    w->fences = calloc(size, sizeof(*w->fences));
    w->peer_heap = calloc(size, sizeof(*w->peer_heap));
    w->to = calloc(size, sizeof(*w->to));
    inner.config = shm_plugin.plugin.options.defaults;
    inner.heap_bytes = p->heap == NULL ? p->heap_bytes : 0;
    if (w->fences == NULL || w->peer_heap == NULL || w->to == NULL)
        status = epa_fail(err, EPA_ERR_NOMEM, "reorder: no memory for %u ranks", size);
    else
        status = EPA_OK;
    if (status == EPA_OK) { /* shm reads the world in open() only */
        world->local_rank = world->rank;
        world->local_size = size;
        world->node = NULL;
        status = shm_plugin.open(&inner, &w->inner, err);
        *world = told;
    }
    if (status != EPA_OK) {
        close_all(&w->base);
        return status;
    }
    set_base(w, config);
    status = find_heaps(w, p, err);
    if (status != EPA_OK) {
        close_all(&w->base);
        return status;
    }
    *out = &w->base;
    return EPA_OK;
}

static const struct epa_choice peers[] = {
    {"none", PEERS_NONE, "no rank but this one"},
    {"pair", PEERS_PAIR, "ranks 0 and 1, 2 and 3, and so on"},
    {"node", PEERS_NODE, "those of the same node"},
    {0},
};

static const struct config defaults = {.seed = 1, .room = 16, .peers = PEERS_NONE};

static const struct epa_option options[] = {
    {.name = "seed", EPA_U64(struct config, seed), .help = "seed of the random delivery order"},
    {.name = "room",
     EPA_U32(struct config, room),
     .min = 1,
     .max = ROOM,
     .help = "capacity of the queue in operations; a full queue returns EPA_AGAIN"},
    {.name = "peers",
     EPA_CHOICE(struct config, peers),
     .choices = peers,
     .help = "whose heap loads and stores reach"},
    {0},
};

EPA_PLUGIN_EXPORT
const struct epa_transport_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_TRANSPORT, struct epa_transport_plugin),
               .name = "reorder",
               .summary = "shm without the ordering that the contract does not give",
               .options = {options, sizeof(struct config), &defaults}},
    .flags = EPA_TRANSPORT_HOST | EPA_TRANSPORT_SIGNAL_ADD | EPA_TRANSPORT_NODES,
    .memory = EPA_MEMORY_HOST,
    .takes = takes,
    .open = open_all,
};
