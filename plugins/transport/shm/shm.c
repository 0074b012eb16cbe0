/* Shared-memory transport: plain loads and stores between the ranks of one node.
 *
 * Signals order all data: the sender raises a signal with release semantics and the receiver reads
 * the signal with acquire semantics. segments.c allocates and maps the memory. */
#include "../../common/segments.h"
#include "../../common/transport_wait.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    FLAGS = EPA_TRANSPORT_HOST | EPA_TRANSPORT_LOAD_STORE | EPA_TRANSPORT_SIGNAL_ADD |
            EPA_TRANSPORT_ANY_SOURCE | EPA_TRANSPORT_THREADS,
};

struct config {
    int wait;       /* enum wait_kind */
    int huge_pages; /* enum huge_kind */
    bool prefault;
};

struct shm {
    struct epa_transport base; /* first member: shm_of() casts the pointer back */
    struct epa_bootstrap *boot;
    struct segments segments;
    struct peer *peer; /* segments.peer */
    char **peer_heap;
    struct epa_wait_config wait;
    uint64_t barriers;       /* number of barriers that this rank has entered */
    pthread_mutex_t failing; /* guards `failure`: several threads may fail at once */
    struct failure failure;
};

static struct shm *shm_of(struct epa_transport *t)
{
    return (struct shm *)t;
}

static void put_bytes(const struct epa_transport *t, uint64_t dst, const void *src, size_t bytes,
                      uint32_t peer)
{
    assert(peer < t->size && dst <= t->heap_bytes && bytes <= t->heap_bytes - dst);
    if (bytes != 0) /* an empty put may pass src == NULL, which memcpy() forbids */
        memcpy(t->peer_heap[peer] + dst, src, bytes);
}

static enum epa_status put(struct epa_transport *t, uint64_t dst, const void *src, size_t bytes,
                           uint32_t peer)
{
    put_bytes(t, dst, src, bytes, peer);
    return EPA_OK;
}

static enum epa_status raise_signal(struct epa_transport *t, uint32_t signal, uint64_t value,
                                    enum epa_signal_op op, uint32_t peer)
{
    struct shm *s = shm_of(t);
    uint64_t *word = &s->peer[peer].segment->signal[signal].word;

    assert(signal < s->segments.params.signals && peer < t->size);
    /* Release: pairs with the acquire in wait_for_word() and read_signal(). A rank that reads the
     * value also sees all earlier stores and puts of this rank. */
    if (op == EPA_SIGNAL_ADD)
        __atomic_fetch_add(word, value, __ATOMIC_RELEASE);
    else
        __atomic_store_n(word, value, __ATOMIC_RELEASE);
    return EPA_OK;
}

static enum epa_status put_signal(struct epa_transport *t, uint64_t dst, const void *src,
                                  size_t bytes, uint32_t signal, uint64_t value,
                                  enum epa_signal_op op, uint32_t peer)
{
    put_bytes(t, dst, src, bytes, peer);
    return raise_signal(t, signal, value, op, peer);
}

/* A fence needs no work: peers read data only after a signal, and each signal is a release. A
 * caller that used streaming stores through peer_heap has already drained these stores. */
static enum epa_status fence(struct epa_transport *t, uint32_t peer)
{
    (void)t;
    (void)peer;
    return EPA_OK;
}

/* put() has finished its copy, but the store buffer may still hold the bytes. quiet() guarantees
 * that all peers see the stores before this rank reads again. Acquire and release do not order a
 * store before a later load: two ranks that signal each other, call quiet() and read would both
 * see 0. */
static enum epa_status quiet(struct epa_transport *t)
{
    (void)t;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return EPA_OK;
}

static uint64_t read_signal(struct epa_transport *t, uint32_t signal)
{
    struct shm *s = shm_of(t);

    assert(signal < s->segments.params.signals);
    return __atomic_load_n(&s->peer[t->rank].segment->signal[signal].word, __ATOMIC_ACQUIRE);
}

static void remember(struct shm *s, const struct failure *failure)
{
    pthread_mutex_lock(&s->failing);
    s->failure = *failure;
    pthread_mutex_unlock(&s->failing);
}

static enum epa_status wait_signal(struct epa_transport *t, uint32_t signal,
                                   enum epa_compare compare, uint64_t value, uint64_t timeout_ns)
{
    struct shm *s = shm_of(t);
    struct failure failure = {
        .at = FAILED_SIGNAL, .compare = compare, .signal = signal, .want = value};
    enum epa_status status;

    assert(signal < s->segments.params.signals);
    status = wait_for_word(&s->wait, &s->peer[t->rank].segment->signal[signal].word, timeout_ns,
                           &failure);
    if (status != EPA_OK)
        remember(s, &failure);
    return status;
}

static enum epa_status progress(struct epa_transport *t)
{
    /* puts are complete when put() returns */
    return epa_aborted(shm_of(t)->boot) ? EPA_ERR_ABORTED : EPA_OK;
}

static enum epa_status pass_barrier(struct epa_transport *t, uint64_t timeout_ns)
{
    struct shm *s = shm_of(t);
    struct failure failure;
    enum epa_status status =
        segments_barrier(&s->segments, &s->wait, ++s->barriers, timeout_ns, &failure);

    if (status != EPA_OK)
        remember(s, &failure);
    return status;
}

static enum epa_status reset_signals(struct epa_transport *t)
{
    struct shm *s = shm_of(t);
    struct failure failure;
    enum epa_status status = wait_reset(s->boot, s->peer[t->rank].segment->signal,
                                        s->segments.params.signals, sizeof(struct line), &failure);

    if (status != EPA_OK)
        remember(s, &failure);
    return status;
}

static void explain(struct epa_transport *t, struct epa_error *err)
{
    struct shm *s = shm_of(t);
    struct failure failure;

    pthread_mutex_lock(&s->failing);
    failure = s->failure;
    pthread_mutex_unlock(&s->failing);
    wait_explain("shm", t, s->boot, &failure, err);
}

static void close_all(struct epa_transport *t)
{
    struct shm *s = shm_of(t);

    segments_finish(&s->segments);
    pthread_mutex_destroy(&s->failing);
    free(s->peer_heap);
    free(s);
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

static enum epa_status check_world(const struct epa_world *world, struct epa_error *err)
{
    if (world->local_size == world->size)
        return EPA_OK;
    return epa_fail_key(
        err, EPA_ERR_UNSUPPORTED, "transport.name",
        "shm: reaches the %u ranks of one node, not all %u; ranks of another host, in "
        "another PID or user namespace (containers), or beyond ranks_per_node are on "
        "another node: set transport to one between nodes, such as ucx",
        world->local_size, world->size);
}

static enum epa_status open_all(const struct epa_transport_params *p, struct epa_transport **out,
                                struct epa_error *err)
{
    const struct config *config = p->config;
    const struct segments_params params = {.name = "shm",
                                           .boot = p->boot,
                                           .heap_bytes = p->heap_bytes,
                                           .signals = p->signals,
                                           .huge_pages = config->huge_pages,
                                           .prefault = config->prefault};
    uint32_t size = p->boot->world.size;
    struct shm *s = calloc(1, sizeof(*s));
    char **peer_heap = calloc(size, sizeof(*peer_heap));
    enum epa_status status;

    if (s == NULL || peer_heap == NULL)
        status = epa_fail(err, EPA_ERR_NOMEM, "shm: no memory for %u ranks", size);
    else
        status = check_world(&p->boot->world, err);
    if (status == EPA_OK)
        status = segments_init(&s->segments, &params, err);
    if (status != EPA_OK) {
        free(peer_heap);
        free(s);
        return status;
    }
    s->boot = p->boot;
    s->peer = s->segments.peer;
    s->peer_heap = peer_heap;
    for (uint32_t r = 0; r < size; r++)
        peer_heap[r] = s->peer[r].heap;
    pthread_mutex_init(&s->failing, NULL);
    s->wait = wait_configure(p->boot, (enum wait_kind)config->wait);
    s->base = (struct epa_transport){.ops = &ops,
                                     .flags = FLAGS,
                                     .rank = s->segments.rank,
                                     .size = size,
                                     .heap = peer_heap[s->segments.rank],
                                     .heap_bytes = p->heap_bytes,
                                     .peer_heap = peer_heap};
    *out = &s->base;
    return EPA_OK;
}

static const struct epa_choice waits[] = {
    {"auto", WAIT_AUTO, "spin 20 us, then yield; with more ranks than cores, yield at once"},
    {"spin", WAIT_SPIN, "poll without yielding the core"},
    {"yield", WAIT_YIELD, "yield the core after each poll"},
    {0},
};

static const struct epa_choice huge_pages[] = {
    {"auto", HUGE_AUTO, "request them for heaps of 2 MiB or more"},
    {"on", HUGE_ON, "request them; fail if the kernel does not allow them"},
    {"off", HUGE_OFF, "no request"},
    {0},
};

static const struct config defaults = {
    .wait = WAIT_AUTO, .huge_pages = HUGE_AUTO, .prefault = true};

static const struct epa_option options[] = {
    {.name = "wait",
     EPA_CHOICE(struct config, wait),
     .choices = waits,
     .help = "waiting strategy of a rank",
     .tune = "*"},
    {.name = "huge_pages",
     EPA_CHOICE(struct config, huge_pages),
     .choices = huge_pages,
     .help = "2 MiB pages for the heap",
     .tune = "*"},
    {.name = "prefault",
     EPA_BOOL(struct config, prefault),
     .help = "each rank touches all of its heap before the first iteration"},
    {0},
};

EPA_PLUGIN_EXPORT
const struct epa_transport_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_TRANSPORT, struct epa_transport_plugin), .name = "shm",
               .summary = "shared memory between the ranks of one node",
               .options = {options, sizeof(struct config), &defaults}},
    .flags = FLAGS,
    .memory = EPA_MEMORY_HOST,
    .open = open_all,
};
