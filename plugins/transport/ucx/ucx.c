/* The functions of the data path, and the plugin. See README.md for what orders what.
 *
 * A peer whose memory UCX has mapped is reached by this CPU's stores alone, as in shm; any
 * other by UCX alone. So there is one order towards each peer. */
#include "ucx.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    FLAGS = EPA_TRANSPORT_HOST | EPA_TRANSPORT_SIGNAL_ADD | EPA_TRANSPORT_ANY_SOURCE |
            EPA_TRANSPORT_NODES,
    STARTS = 64, /* operations between two turns of progress: acknowledgements come in */
};

/* Called by UCX within its progress or within what was started, so under the lock. */
static void settle(struct peer *peer, void *request, ucs_status_t ucs)
{
    peer->ucx->outstanding--;
    if (ucs != UCS_OK)
        links_lose(peer, ucs);
    ucp_request_free(request);
}

static void put_done(void *request, ucs_status_t ucs, void *arg)
{
    settle(arg, request, ucs);
}

static void free_value(struct value *value)
{
    struct ucx *u = value->peer->ucx;

    value->next = u->free_value;
    u->free_value = value;
}

static void value_done(void *request, ucs_status_t ucs, void *arg)
{
    struct value *value = arg;

    settle(value->peer, request, ucs);
    free_value(value);
}

/* Whether `n` more may be started. */
static bool has_room(struct ucx *u, const struct peer *peer, uint32_t n)
{
    if (u->outstanding + n > u->config.outstanding || u->started >= STARTS) {
        u->started = 0;
        u->helper.calls++;
        (void)ucp_worker_progress(u->worker);
    }
    u->started += n;
    return u->outstanding + n <= u->config.outstanding && peer->lost == UCS_OK;
}

/* Counts what UCX could not finish at once. That an endpoint has failed is no error yet:
 * trying again ends in progress(), which knows whether the launcher has a better story. */
static enum epa_status count(struct peer *peer, ucs_status_ptr_t request, const char *what)
{
    struct ucx *u = peer->ucx;
    ucs_status_t ucs = UCS_PTR_IS_ERR(request) ? UCS_PTR_STATUS(request) : UCS_OK;

    u->unflushed = true;
    peer->unfenced = true;
    if (ucs == UCS_OK) {
        u->outstanding += UCS_PTR_IS_PTR(request);
        return EPA_OK;
    }
    if (ucs != UCS_ERR_NO_MEMORY && ucs != UCS_ERR_INVALID_PARAM &&
        ucs != UCS_ERR_UNSUPPORTED) {
        links_lose(peer, ucs);
        return EPA_AGAIN;
    }
    u->failure = (struct failure){.at = FAILED_START,
                                  .status = EPA_ERR_SYSTEM,
                                  .peer = ucx_number_of(u, peer),
                                  .ucs = ucs,
                                  .what = what};
    return EPA_ERR_SYSTEM;
}

static enum epa_status start_put(struct peer *peer, uint64_t at, const void *src,
                                 size_t bytes)
{
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                       UCP_OP_ATTR_FIELD_USER_DATA,
                                       .cb.send = put_done,
                                       .user_data = peer};

    peer->put_since_flush = true;
    return count(peer,
                 ucp_put_nbx(peer->ep, src, bytes, peer->remote + at, peer->rkey, &param),
                 "ucp_put_nbx");
}

/* A value for each outstanding request: has_room() has seen that one is free. */
static enum epa_status start_value(struct peer *peer, uint64_t at, uint64_t value,
                                   enum epa_signal_op op)
{
    struct ucx *u = peer->ucx;
    struct value *slot = u->free_value;
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        (op == EPA_SIGNAL_ADD ? UCP_OP_ATTR_FIELD_DATATYPE : 0),
        .cb.send = value_done,
        .user_data = slot,
        .datatype = ucp_dt_make_contig(sizeof(slot->value)),
    };
    ucs_status_ptr_t request;

    u->free_value = slot->next;
    slot->peer = peer;
    slot->value = value;
    if (op == EPA_SIGNAL_ADD) {
        peer->added_since_flush = true;
        request = ucp_atomic_op_nbx(peer->ep, UCP_ATOMIC_OP_ADD, &slot->value, 1,
                                    peer->remote + at, peer->rkey, &param);
    } else {
        peer->put_since_flush = true;
        request = ucp_put_nbx(peer->ep, &slot->value, sizeof(slot->value),
                              peer->remote + at, peer->rkey, &param);
    }
    if (!UCS_PTR_IS_PTR(request))
        free_value(slot);
    return count(peer, request, op == EPA_SIGNAL_ADD ? "ucp_atomic_op_nbx" : "ucp_put_nbx");
}

static void store_value(const struct peer *peer, uint64_t at, uint64_t value,
                        enum epa_signal_op op)
{
    uint64_t *word = (uint64_t *)(void *)(peer->map + at);

    /* Release: pairs with the acquire in poll_word() and read_signal(); what this rank stored
     * before, by put or by itself, is in place for whoever sees the value. */
    if (op == EPA_SIGNAL_ADD)
        __atomic_fetch_add(word, value, __ATOMIC_RELEASE);
    else
        __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

/* Between a put that hardware executes and an addition that the peer's UCX does. */
static enum epa_status flush_split(struct peer *peer, bool dirty)
{
    struct ucx *u = peer->ucx;

    if (!peer->split || !dirty)
        return EPA_OK;
    return wait_flushed(
        u, u->config.patience_ns,
        (struct failure){.at = FAILED_QUIET, .peer = ucx_number_of(u, peer)});
}

enum epa_status ucx_raise(struct ucx *u, uint64_t at, uint64_t value, enum epa_signal_op op,
                          uint32_t number)
{
    struct peer *peer = &u->peer[number];
    enum epa_status status = EPA_OK;

    if (peer->map != NULL) {
        store_value(peer, at, value, op);
        return EPA_OK;
    }
    if (op == EPA_SIGNAL_ADD)
        status = flush_split(peer, peer->put_since_flush);
    if (status != EPA_OK)
        return status;
    ucx_lock(u);
    status = has_room(u, peer, 1) ? start_value(peer, at, value, op) : EPA_AGAIN;
    ucx_unlock(u);
    return status;
}

static uint64_t signal_at(const struct ucx *u, uint32_t signal)
{
    assert(signal < u->signals);
    return u->region.signals_at + signal * sizeof(struct line);
}

static enum epa_status put(struct epa_transport *t, uint64_t dst, const void *src,
                           size_t bytes, uint32_t number)
{
    struct ucx *u = ucx_of(t);
    struct peer *peer = &u->peer[number];
    enum epa_status status;

    assert(number < t->size && dst <= t->heap_bytes && bytes <= t->heap_bytes - dst);
    if (bytes == 0) /* src may be NULL then */
        return EPA_OK;
    if (peer->map != NULL) {
        memcpy(u->peer_heap[number] + dst, src, bytes);
        return EPA_OK;
    }
    ucx_lock(u);
    status = has_room(u, peer, 1) ? start_put(peer, u->region.heap_at + dst, src, bytes)
                                  : EPA_AGAIN;
    ucx_unlock(u);
    return status;
}

static enum epa_status raise_signal(struct epa_transport *t, uint32_t signal,
                                    uint64_t value, enum epa_signal_op op, uint32_t peer)
{
    struct ucx *u = ucx_of(t);

    assert(peer < t->size);
    return ucx_raise(u, signal_at(u, signal), value, op, peer);
}

static enum epa_status fence_locked(struct peer *peer)
{
    struct ucx *u = peer->ucx;
    ucs_status_t ucs;

    if (!peer->unfenced)
        return EPA_OK;
    ucs = ucp_worker_fence(u->worker);
    if (ucs == UCS_OK) {
        peer->unfenced = false;
        return EPA_OK;
    }
    u->failure = (struct failure){.at = FAILED_START,
                                  .status = EPA_ERR_SYSTEM,
                                  .peer = ucx_number_of(u, peer),
                                  .ucs = ucs,
                                  .what = "ucp_worker_fence"};
    return EPA_ERR_SYSTEM;
}

/* The payload, what orders, the signal: room for both is there before the first is begun. */
static enum epa_status start_both(struct peer *peer, uint64_t dst, const void *src,
                                  size_t bytes, uint64_t at, uint64_t value,
                                  enum epa_signal_op op)
{
    struct ucx *u = peer->ucx;
    enum epa_status status;

    if (!has_room(u, peer, 2))
        return EPA_AGAIN;
    status = start_put(peer, u->region.heap_at + dst, src, bytes);
    if (status == EPA_OK && op == EPA_SIGNAL_ADD && peer->split) {
        ucx_unlock(u); /* it waits, and nobody else starts anything meanwhile */
        status = flush_split(peer, true);
        ucx_lock(u);
    } else if (status == EPA_OK) {
        status = fence_locked(peer);
    }
    return status == EPA_OK ? start_value(peer, at, value, op) : status;
}

static enum epa_status put_signal(struct epa_transport *t, uint64_t dst, const void *src,
                                  size_t bytes, uint32_t signal, uint64_t value,
                                  enum epa_signal_op op, uint32_t number)
{
    struct ucx *u = ucx_of(t);
    struct peer *peer = &u->peer[number];
    uint64_t at = signal_at(u, signal);
    enum epa_status status;

    assert(number < t->size && dst <= t->heap_bytes && bytes <= t->heap_bytes - dst);
    if (bytes == 0)
        return ucx_raise(u, at, value, op, number);
    if (peer->map != NULL) {
        memcpy(u->peer_heap[number] + dst, src, bytes);
        store_value(peer, at, value, op);
        return EPA_OK;
    }
    ucx_lock(u);
    status = start_both(peer, dst, src, bytes, at, value, op);
    ucx_unlock(u);
    return status;
}

/* Towards a mapped peer there is nothing to do: each signal is a release. */
static enum epa_status fence(struct epa_transport *t, uint32_t number)
{
    struct ucx *u = ucx_of(t);
    struct peer *peer = &u->peer[number];
    enum epa_status status;

    if (peer->map != NULL)
        return EPA_OK;
    if (peer->split && peer->added_since_flush)
        return flush_split(peer, true);
    ucx_lock(u);
    status = fence_locked(peer);
    ucx_unlock(u);
    return status;
}

/* Stores may sit in the store buffer; see quiet() of shm. */
static enum epa_status quiet(struct epa_transport *t)
{
    struct ucx *u = ucx_of(t);

    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return wait_flushed(u, u->config.patience_ns, (struct failure){.at = FAILED_QUIET});
}

static const uint64_t *word_of(const struct ucx *u, uint32_t signal)
{
    return (const uint64_t *)(const void *)(u->region.base + signal_at(u, signal));
}

static uint64_t read_signal(struct epa_transport *t, uint32_t signal)
{
    return __atomic_load_n(word_of(ucx_of(t), signal), __ATOMIC_ACQUIRE);
}

static enum epa_status wait_signal(struct epa_transport *t, uint32_t signal,
                                   enum epa_compare compare, uint64_t value,
                                   uint64_t timeout_ns)
{
    struct ucx *u = ucx_of(t);

    return wait_word(u, word_of(u, signal), compare, value, timeout_ns,
                     (struct failure){.at = FAILED_SIGNAL, .signal = signal});
}

static enum epa_status progress(struct epa_transport *t)
{
    return wait_progress(ucx_of(t));
}

static enum epa_status pass_barrier(struct epa_transport *t, uint64_t timeout_ns)
{
    return wait_barrier(ucx_of(t), timeout_ns);
}

/* Barriers of its own words: nothing is on its way after the first, and nobody signals before
 * the second. */
static enum epa_status reset_signals(struct epa_transport *t)
{
    struct ucx *u = ucx_of(t);
    enum epa_status status = wait_barrier(u, u->config.patience_ns);

    if (status == EPA_OK) {
        for (uint32_t i = 0; i < u->signals; i++)
            __atomic_store_n((uint64_t *)(void *)(u->region.base + signal_at(u, i)), 0,
                             __ATOMIC_RELAXED);
        status = wait_barrier(u, u->config.patience_ns);
    }
    return status;
}

static void close_all(struct epa_transport *t)
{
    struct ucx *u = ucx_of(t);

    helper_stop(u);
    links_finish(u);
    region_finish(u);
    pthread_mutex_destroy(&u->lock);
    free(u->values);
    free(u->peer);
    free(u->peer_heap);
    free(u);
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
    .limit = ucx_limit,
    .describe = ucx_describe,
    .explain = ucx_explain,
    .close = close_all,
};

static enum epa_status create(const struct epa_transport_params *p, struct ucx **out,
                              struct epa_error *err)
{
    const struct epa_world *world = &p->boot->world;
    struct ucx *u = calloc(1, sizeof(*u));

    if (u == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "ucx: no memory");
    *out = u;
    u->boot = p->boot;
    u->config = *(const struct config *)p->config;
    u->signals = p->signals;
    u->base = (struct epa_transport){
        .ops = &ops, .rank = world->rank, .size = world->size, .heap_bytes = p->heap_bytes};
    u->burst = world->local_size > world->local_cores ? 1 : 64;
    u->spin_ns = world->local_size > world->local_cores ? 0 : 20000; /* as shm */
    pthread_mutex_init(&u->lock, NULL);
    u->peer = calloc(world->size, sizeof(*u->peer));
    u->peer_heap = calloc(world->size, sizeof(*u->peer_heap));
    u->values = calloc(u->config.outstanding, sizeof(*u->values));
    if (u->peer == NULL || u->peer_heap == NULL || u->values == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "ucx: no memory for %u ranks", world->size);
    for (uint32_t r = 0; r < world->size; r++)
        u->peer[r].ucx = u;
    for (uint32_t i = 0; i < u->config.outstanding; i++) {
        u->values[i].next = u->free_value;
        u->free_value = &u->values[i];
    }
    return EPA_OK;
}

static void set_base(struct ucx *u)
{
    for (uint32_t r = 0; r < u->base.size; r++) {
        if (u->peer[r].map != NULL)
            u->peer_heap[r] = u->peer[r].map + u->region.heap_at;
    }
    u->base.flags = FLAGS | (u->all_mapped ? EPA_TRANSPORT_LOAD_STORE : 0);
    u->base.heap = u->region.base + u->region.heap_at;
    u->base.peer_heap = u->peer_heap;
}

/* Whether somebody else must be able to have something done here at any time. */
static bool needs_helper(const struct ucx *u)
{
    bool emulated = false;

    for (uint32_t r = 0; r < u->base.size; r++) {
        const struct peer *peer = &u->peer[r];

        if (peer->map == NULL && !(peer->lanes.puts && peer->lanes.additions))
            emulated = true;
    }
    return u->config.progress == PROGRESS_THREAD ||
           (u->config.progress == PROGRESS_AUTO && emulated);
}

/* The barrier makes connections, which both ends must be awake for; from then on the helper
 * is. */
static enum epa_status meet(struct ucx *u, struct epa_error *err)
{
    enum epa_status status = wait_barrier(u, u->config.patience_ns);

    if (status != EPA_OK) {
        ucx_explain(&u->base, err);
        return status;
    }
    if (needs_helper(u))
        status = helper_start(u, err);
    if (status == EPA_OK)
        status = u->boot->barrier(u->boot);
    if (status != EPA_OK)
        u->boot->explain(u->boot, err);
    return status;
}

static enum epa_status open_all(const struct epa_transport_params *p,
                                struct epa_transport **out, struct epa_error *err)
{
    struct ucx *u = NULL;
    enum epa_status status = create(p, &u, err);

    log_to_stderr();
    if (status == EPA_OK)
        status = region_init(u, p->heap_bytes, err);
    if (status == EPA_OK)
        status = links_init(u, err);
    if (status == EPA_OK) {
        set_base(u);
        status = meet(u, err);
    }
    if (status != EPA_OK) {
        if (u != NULL)
            close_all(&u->base);
        return status;
    }
    *out = &u->base;
    return EPA_OK;
}

static const struct epa_choice progress_kinds[] = {
    {"auto", PROGRESS_AUTO,
     "a thread where UCX needs the peer's help for puts or additions"},
    {"thread", PROGRESS_THREAD, "a thread, always"},
    {"calls", PROGRESS_CALLS, "only while this rank is in the transport"},
    {0},
};

static const struct config defaults = {.tls = "",
                                       .devices = "",
                                       .outstanding = 256,
                                       .patience_ns = 30000000000u,
                                       .progress = PROGRESS_AUTO,
                                       .direct = true};

static const struct epa_option options[] = {
    {.name = "tls",
     EPA_STRING(struct config, tls),
     .help = "transports that UCX may use, as UCX_TLS: \"posix,self\", \"tcp\", \"rc\"; "
             "\"\": UCX_TLS, or UCX chooses"},
    {.name = "devices",
     EPA_STRING(struct config, devices),
     .help = "network devices, as UCX_NET_DEVICES: \"eth0\", \"mlx5_0:1\"; \"\": "
             "UCX_NET_DEVICES, or all"},
    {.name = "direct",
     EPA_BOOL(struct config, direct),
     .help = "store straight into the memory of ranks of this node, where UCX can map it"},
    {.name = "outstanding",
     EPA_U32(struct config, outstanding),
     .min = 2,
     .max = 65536,
     .help = "puts and signals under way at most; one more must try again"},
    {.name = "progress",
     EPA_CHOICE(struct config, progress),
     .choices = progress_kinds,
     .help = "who takes in what peers send while this rank is elsewhere"},
    {.name = "patience",
     EPA_DURATION(struct config, patience_ns),
     .min = 1,
     .help = "longest wait where the caller gives no limit: connections, quiet, reset"},
    {0},
};

EPA_PLUGIN_EXPORT
const struct epa_transport_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_TRANSPORT, struct epa_transport_plugin),
               .name = "ucx",
               .summary = "UCX: shared memory, TCP or RDMA, whatever it finds",
               .options = {options, sizeof(struct config), &defaults}},
    .flags = FLAGS | EPA_TRANSPORT_LOAD_STORE,
    .memory = EPA_MEMORY_HOST,
    .open = open_all,
};
