/* The thread of the proxy, and functions that both ways of carrying data (messages.c, direct.c) use.
 * See proxy.h. */
#include "proxy.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/helper_thread.h"

enum {
    SPIN_NS = 20000000, /* an idle proxy with a core of its own polls for this time, */
    IDLE_NS = 3200000,  /* then sleeps; a proxy without its own core sleeps up to a 32nd of it */
    HOLD_ACKS_NS = 20000,
};

/* Time limit of the wait for a signal that was already read as set. */
static const uint64_t acquire_ns = 1000000000u;

/* Time limit on close: for the messages of this rank, and for the other ranks. */
static const uint64_t leave_ns = 2000000000u;

struct proxy {
    struct proxy_params params;
    const struct proxy_way *way;
    struct messages messages;
    struct epa_transport *net;
    struct epa_wait_config wait;
    bool has_core; /* the host has a core for each rank and each proxy */
    pthread_t thread;
    sem_t started;
    bool opened;     /* written, like messages.err, before `started` is posted */
    uint32_t status; /* enum epa_status of a failure; written after messages.err */
    uint32_t stop;   /* the rank's own thread writes it */
    uint32_t facts;
    struct {
        char key[32], value[160];
    } fact[PROXY_FACTS];
};

/* ---- functions for both ways: messages.c, direct.c ---- */

enum epa_status messages_net_failed(struct messages *m, enum epa_status status)
{
    struct epa_error why = {EPA_OK, ""};

    if (status == EPA_OK || status == EPA_AGAIN || status == EPA_ERR_ABORTED)
        return status;
    m->net->ops->explain(m->net, &why);
    return epa_fail(epa_awaits_as(&m->err, &why), status, "nvlink: rank %u, between nodes: %s",
                    m->rank, why.text);
}

enum epa_status messages_copies_failed(struct messages *m, enum epa_status status)
{
    struct epa_error why = {EPA_OK, ""};

    if (status == EPA_OK || status == EPA_AGAIN)
        return status;
    m->params->copies->explain(m->params->copies, &why);
    return epa_fail(&m->err, status, "nvlink: rank %u, staging: %s", m->rank, why.text);
}

enum epa_status messages_look(struct messages *m, uint32_t signal, uint64_t value, bool *there)
{
    *there = m->net->ops->read(m->net, signal) >= value;
    return *there ? messages_net_failed(m, epa_wait(m->net, signal, value, acquire_ns)) : EPA_OK;
}

enum epa_status messages_begin(struct messages *m, struct reading *r)
{
    struct epa_descriptor *d = &r->now;
    const uint32_t signals = EPA_RING_SET | EPA_RING_ADD;
    bool is_inline = (d->op & EPA_RING_INLINE) != 0;
    uint64_t end = 0;

    r->row = 0;
    r->at = 0;
    if (d->op == PROXY_QUIET) {
        m->quiet_wanted = d->value;
        d->op = 0;
        return EPA_OK;
    }
    if ((d->op & EPA_RING_PUT) == 0)
        d->bytes = d->rows = 0;
    d->rows = d->rows == 0 ? 1 : d->rows;
    if (d->peer >= m->size || !m->params->far[d->peer] ||
        __builtin_mul_overflow(d->stride, d->rows - 1, &end) ||
        __builtin_add_overflow(end, d->dst, &end) || __builtin_add_overflow(end, d->bytes, &end) ||
        end > m->params->heap_bytes ||
        ((d->op & signals) != 0 && d->signal >= m->params->signals) ||
        (is_inline && (r->payload == NULL || d->rows != 1 || d->bytes > EPA_RING_PAYLOAD)))
        return epa_fail(&m->err, EPA_ERR_SYSTEM,
                        "nvlink: rank %u was asked to put %u x %" PRIu64 " bytes at %" PRIu64
                        " of rank %u, signal %u: its heap has %" PRIu64
                        " bytes, there are %u signals, and it must be of another node",
                        m->rank, d->rows, d->bytes, d->dst, d->peer, d->signal,
                        m->params->heap_bytes, m->params->signals);
    if (d->op == EPA_RING_FENCE)
        m->fence[d->peer] = true;
    if (d->op == EPA_RING_FENCE ||
        ((d->op & signals) == 0 && (d->op & EPA_RING_PUT) != 0 && d->bytes == 0))
        d->op = 0;
    return EPA_OK;
}

static bool init(struct messages *m, const struct proxy_params *params, const struct proxy_way *way)
{
    uint32_t size = params->boot->world.size;

    *m = (struct messages){.params = params, .rank = params->boot->world.rank, .size = size};
    proxy_trace_init(&m->trace, params->trace);
    m->arrived = calloc(size, sizeof(*m->arrived));
    return m->arrived != NULL && way->init(m);
}

static void finish(struct messages *m)
{
    free(m->direct);
    free(m->arrived);
    free(m->out);
    free(m->in);
}

/* ---- the thread ---- */

static void rest(const struct proxy *p, uint64_t idle_ns)
{
    if (p->has_core && idle_ns < SPIN_NS)
        epa_relax();
    else
        epa_backoff(p->has_core || idle_ns > IDLE_NS ? IDLE_NS : idle_ns, p->wait.spin_ns);
}

static enum epa_status serve(struct proxy *p)
{
    uint64_t idle_since = 0, stop_since = 0, stopping = 0;

    for (;;) {
        /* Reads `stop` before the turn, which then handles all earlier descriptors. Acquire: pairs
         * with the release in proxy_stop(). */
        bool stops = __atomic_load_n(&p->stop, __ATOMIC_ACQUIRE) != 0, moved = false;
        struct proxy_trace *trace = &p->messages.trace;
        uint64_t begin = proxy_trace_now(trace), now;
        enum epa_status status = p->way->turn(&p->messages, &moved);

        if (trace->to != NULL)
            proxy_trace_state(trace, moved ? PROXY_BUSY : p->way->wait_for(&p->messages), begin);
        if (status != EPA_OK)
            return status;
        if (moved && !stops) {
            idle_since = 0;
            continue;
        }
        now = epa_now_ns();
        if (stops) {
            stopping = epa_waited_ns(&stop_since, stopping, leave_ns);
            if ((!moved && p->way->are_done(&p->messages)) || stopping > leave_ns)
                return EPA_OK;
        }
        idle_since = idle_since == 0 ? now : idle_since;
        rest(p, now - idle_since);
    }
}

static void keep_fact(void *arg, const char *key, const char *value)
{
    struct proxy *p = arg;

    if (p->facts == PROXY_FACTS)
        return;
    snprintf(p->fact[p->facts].key, sizeof(p->fact->key), "%s", key);
    snprintf(p->fact[p->facts].value, sizeof(p->fact->value), "%s", value);
    p->facts++;
}

/* Every rank pins its own memory before any rank pins the memory of another: ranks as threads of one
 * process share memory, which must be pinned once. */
static enum epa_status pin_own(struct proxy *p, uint64_t bytes)
{
    struct epa_bootstrap *boot = p->params.boot;
    struct proxy_copies *copies = p->params.copies;
    enum epa_status status = copies->enter(copies, p->net->heap, bytes), met;
    unsigned char *all = calloc(boot->world.size, 1), mine = 0;

    if (status != EPA_OK)
        (void)messages_copies_failed(&p->messages, status);
    met = all != NULL ? boot->allgather(boot, &mine, sizeof(mine), all) : EPA_ERR_NOMEM;
    free(all);
    if (met == EPA_OK || status != EPA_OK)
        return status;
    (void)copies->leave(copies);
    return epa_fail(&p->messages.err, met, "nvlink: pinning staging memory: %s",
                    met == EPA_ERR_NOMEM ? "no memory" : "ranks did not meet");
}

static enum epa_status open_net(struct proxy *p)
{
    /* The transport allocates no memory from this backend; it only names the kind of the heap. */
    const struct proxy_region *region = &p->params.region;
    bool direct = region->base != NULL;
    struct epa_backend heap = {.memory = direct ? region->memory : EPA_MEMORY_HOST, .device = -1};
    const struct epa_transport_params params = {.boot = p->params.boot,
                                                .backend = &heap,
                                                .config = p->params.net_config,
                                                .heap_bytes = p->way->heap_bytes(&p->messages),
                                                .signals = p->way->signals(&p->messages),
                                                .heap = region->base};
    struct epa_error why = {EPA_OK, ""};
    enum epa_status status = p->params.net->open(&params, &p->net, &why);

    if (status != EPA_OK)
        return epa_fail_key(&p->messages.err, status, "transport.direct", "%s%s", why.text,
                            direct ? "; transport.direct: off stages data" : "");
    if (p->net->ops->describe != NULL)
        p->net->ops->describe(p->net, keep_fact, p);
    p->messages.net = p->net;
    status = pin_own(p, direct ? 0 : params.heap_bytes);
    if (status == EPA_OK)
        p->way->connect(&p->messages);
    else
        p->net->ops->close(p->net);
    return status;
}

static void *run(void *arg)
{
    struct proxy *p = arg;
    enum epa_status status = open_net(p);

    p->messages.err.status = status;
    p->opened = status == EPA_OK;
    sem_post(&p->started); /* pairs with sem_wait() in proxy_start() */
    if (status != EPA_OK)
        return NULL;
    status = serve(p);
    /* Release: pairs with the acquire in proxy_status(); the text is complete. */
    __atomic_store_n(&p->status, (uint32_t)status, __ATOMIC_RELEASE);
    if (status != EPA_OK && status != EPA_ERR_ABORTED)
        p->params.copies->stop_kernels(p->params.copies, status);
    while (__atomic_load_n(&p->stop, __ATOMIC_RELAXED) == 0)
        epa_backoff(EPA_WAIT_YIELD_NS, 0);
    if (!p->params.copies->leave(p->params.copies))
        return NULL;      /* copies in flight keep their memory until the process ends */
    if (status == EPA_OK) /* peers send their last signals before this barrier */
        (void)p->net->ops->barrier(p->net, leave_ns);
    p->net->ops->close(p->net);
    return NULL;
}

static enum epa_status start_thread(struct proxy *p, struct epa_error *err)
{
    int error = helper_thread_start(run, p, &p->thread);

    return error == 0 ? EPA_OK
                      : epa_fail_errno(err, EPA_ERR_SYSTEM, error,
                                       "nvlink: no thread for the proxy: %s", strerror(error));
}

static void destroy(struct proxy *p)
{
    sem_destroy(&p->started);
    finish(&p->messages);
    free(p);
}

enum epa_status proxy_start(const struct proxy_params *params, struct proxy **out,
                            struct epa_error *err)
{
    const struct epa_world *world = &params->boot->world;
    struct proxy *p = calloc(1, sizeof(*p));
    enum epa_status status;

    if (p == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "nvlink: no memory for a proxy");
    sem_init(&p->started, 0, 0);
    p->params = *params;
    p->wait = wait_configure(params->boot, WAIT_AUTO);
    p->has_core = 2 * world->local_size <= world->local_cores;
    if (p->has_core && params->hold_acks_ns == 0)
        p->params.hold_acks_ns = HOLD_ACKS_NS;
    p->way = params->region.base != NULL ? &proxy_direct_way : &proxy_staged_way;
    status = init(&p->messages, &p->params, p->way)
                 ? start_thread(p, err)
                 : epa_fail(err, EPA_ERR_NOMEM, "nvlink: no memory for a proxy");
    if (status != EPA_OK) {
        destroy(p);
        return status;
    }
    while (sem_wait(&p->started) != 0 && errno == EINTR) {
    }
    if (p->opened) {
        *out = p;
        return EPA_OK;
    }
    pthread_join(p->thread, NULL);
    status = p->messages.err.status;
    *err = p->messages.err;
    destroy(p);
    return status;
}

void proxy_stop(struct proxy *p)
{
    if (p == NULL)
        return;
    /* Release: pairs with the acquire in serve(). */
    __atomic_store_n(&p->stop, 1, __ATOMIC_RELEASE);
    pthread_join(p->thread, NULL);
    destroy(p);
}

enum epa_status proxy_status(const struct proxy *p)
{
    return (enum epa_status)__atomic_load_n(&p->status, __ATOMIC_ACQUIRE);
}

void proxy_explain(const struct proxy *p, struct epa_error *err)
{
    (void)epa_fail(epa_awaits_as(err, &p->messages.err), proxy_status(p), "%s",
                   p->messages.err.text);
}

void proxy_describe(const struct proxy *p,
                    void (*say)(void *arg, const char *key, const char *value), void *arg)
{
    for (uint32_t i = 0; i < p->facts; i++)
        say(arg, p->fact[i].key, p->fact[i].value);
}

uint32_t proxy_reaches(const struct proxy *p)
{
    return p->messages.reached;
}

const uint64_t *proxy_quiet(const struct proxy *p, uint32_t *slow)
{
    *slow = __atomic_load_n(&p->messages.slow, __ATOMIC_RELAXED);
    return &p->messages.quiets;
}

const uint64_t *proxy_arrived(const struct proxy *p, uint32_t rank)
{
    return &p->messages.arrived[rank];
}
