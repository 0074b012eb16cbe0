/* Skeleton of an algorithm: AllGather on hosts, over any transport. algorithm.h and problem.h
 * define the contract; the folder `contract` beside this file describes its tests.
 *
 *     cc -std=gnu11 -O2 -shared -fPIC -Wl,-z,defs $(pkg-config --cflags epa2a-plugin) \
 *         skeleton_algorithm.c -o epa2a-algorithm-mine.so
 *     epa2a verify mine.yaml --plugin-path $PWD --set algorithm=mine
 *
 * The heap contains two sets, which calls use alternately: call e = 1, 2, ... writes its output to
 * set e % 2: the rows of rank 0, of rank 1 and so on, at the same offset on all ranks. A rank
 * copies its rows to its own set, stores or puts them to the set of each peer, and sets its signal
 * there to e. The call ends when the signals of all peers are e and its own puts are complete.
 *
 * Two sets suffice without a barrier: when all signals of call e - 1 have arrived, all peers have
 * begun call e - 1 and no longer read the output of e - 2, which call e overwrites. */
#include <epa2a/algorithm.h>

#include <stdlib.h>
#include <string.h>

/* ---- 1. options: a struct, its defaults, a table ---- */

struct config {
    bool store;
};

static const struct config defaults = {.store = true};

static const struct epa_option options[] = {
    {.name = "store",
     EPA_BOOL(struct config, store),
     .help = "store rows straight to peers that loads and stores reach; false: put them"},
    {0},
};

/* ---- 2. plan: resources for a shape; no side effects ---- */

/* Returns the bytes of one output, rounded up to whole pages. */
static uint64_t set_bytes(const struct epa_allgather *g, uint32_t ranks)
{
    return ((uint64_t)ranks * g->max_rows * g->row_bytes + 4095) / 4096 * 4096;
}

static const char *const stage_names[] = {"allgather", NULL};

static enum epa_status plan(const struct epa_problem *problem, const struct epa_world *world,
                            uint32_t transport_flags, const void *config, struct epa_footprint *out,
                            struct epa_error *err)
{
    const struct epa_allgather *g = &problem->u.allgather;

    (void)config;
    (void)transport_flags;
    if (g->max_rows == 0 || g->row_bytes == 0)
        return epa_fail_key(err, EPA_ERR_CONFIG, "allgather.max_rows allgather.row_bytes",
                            "mine needs allgather.max_rows and allgather.row_bytes above 0");
    *out = (struct epa_footprint){
        .heap_bytes = 2 * set_bytes(g, world->size),
        .signals = world->size, /* one per source of rows */
        .stages = stage_names,
        .in_flight = 1, /* an output is valid until the next call begins */
        .u.allgather.control_bytes = sizeof(uint64_t), /* to each peer: its signal */
    };
    return EPA_OK;
}

/* ---- 3. the stage: from inputs of an iteration to outputs ---- */

struct mine {
    struct epa_algorithm base; /* first member: a pointer to it also points to struct mine */
    struct epa_transport *t;
    struct epa_world world;
    bool store;
    uint64_t heap, set_bytes, timeout_ns, epoch;
    uint32_t signal;
    struct epa_error failure; /* last error of this file; otherwise the transport explains */
};

static uint64_t set_at(const struct mine *m, uint64_t epoch)
{
    return m->heap + epoch % 2 * m->set_bytes;
}

/* Sends `bytes` at offset `at` of the own heap to the same offset at `peer`, then the signal. */
static enum epa_status send_rows(struct mine *m, uint64_t at, uint64_t bytes, uint32_t peer)
{
    char *to = m->store ? epa_peer(m->t, at, peer) : NULL;
    uint64_t begun_ns = epa_now_ns();
    enum epa_status status;

    if (to != NULL) {
        memcpy(to, m->t->heap + at, bytes); /* visible before the signal that follows */
        bytes = 0;
    }
    do {
        status = epa_put_signal(m->t, at, m->t->heap + at, bytes, m->signal + m->world.rank,
                                m->epoch, peer);
        if (status != EPA_AGAIN)
            return status;
        status = m->t->ops->progress(m->t); /* no room: progress() completes earlier puts */
    } while (status == EPA_OK && epa_now_ns() - begun_ns < m->timeout_ns);
    if (status != EPA_OK)
        return status;
    return epa_fail(epa_awaits(&m->failure, peer), EPA_ERR_TIMEOUT,
                    "mine: the transport had no room for the rows to rank %u", peer);
}

/* Waits for the rows of `peer`. The failure names the rank in words and by epa_awaits(). */
static enum epa_status wait_for_rows(struct mine *m, uint32_t peer)
{
    enum epa_status status = epa_wait(m->t, m->signal + peer, m->epoch, m->timeout_ns);

    if (status != EPA_ERR_TIMEOUT)
        return status;
    return epa_fail(epa_awaits(&m->failure, peer), status, "mine: no rows of rank %u within %.3g s",
                    peer, (double)m->timeout_ns * 1e-9);
}

static enum epa_status gather(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct mine *m = (struct mine *)a;
    struct epa_allgather *g = &problem->u.allgather;
    uint32_t me = m->world.rank, size = m->world.size;
    uint64_t bytes = (uint64_t)g->rows[me] * g->row_bytes, at = set_at(m, ++m->epoch);
    enum epa_status status = EPA_OK;

    m->failure = (struct epa_error){.status = EPA_OK};
    for (uint32_t r = 0; r < me; r++)
        at += (uint64_t)g->rows[r] * g->row_bytes;
    if (g->in != NULL && bytes != 0) /* NULL: the rows are already in place */
        memcpy(m->t->heap + at, g->in, bytes);
    for (uint32_t i = 1; i < size && status == EPA_OK; i++)
        status = send_rows(m, at, bytes, (me + i) % size);
    for (uint32_t i = 1; i < size && status == EPA_OK; i++)
        status = wait_for_rows(m, (me + i) % size);
    if (status == EPA_OK)
        status = m->t->ops->quiet(m->t); /* until then the own set is read */
    g->epoch = m->epoch;
    g->out = m->t->heap + set_at(m, m->epoch);
    g->next_out = m->t->heap + set_at(m, m->epoch + 1);
    g->signal = m->signal;
    g->chunks = 1; /* one signal for all rows of a rank */
    g->chunk_rows = g->max_rows;
    return status;
}

static const struct epa_stage stages[] = {
    {.name = "allgather", .kind = EPA_STAGE_WHOLE, .run = gather},
};

/* For `epa2a status`: names the peer of a wait for one of these signals. */
static void wait_describe(const struct epa_algorithm *a, struct epa_wait_state *w)
{
    const struct mine *m = (const struct mine *)a;

    if (w->number >= m->signal && w->number - m->signal < m->world.size) {
        w->peer = w->number - m->signal;
        w->what = "rows";
    }
}

static void explain(struct epa_algorithm *a, struct epa_error *err)
{
    struct mine *m = (struct mine *)a;

    if (m->failure.status != EPA_OK)
        (void)epa_fail_copy(err, m->failure.status, &m->failure);
    else
        m->t->ops->explain(m->t, err);
}

static void destroy(struct epa_algorithm *a)
{
    free(a);
}

/* ---- 4. create: its part of the heap, and the list of stages ---- */

static enum epa_status create(const struct epa_algorithm_params *p, struct epa_algorithm **out,
                              struct epa_error *err)
{
    const struct config *config = p->config;
    struct mine *m = calloc(1, sizeof(*m));

    if (m == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "mine: no memory");
    *m = (struct mine){
        .base = {.stages = stages,
                 .n_stages = 1,
                 .wait_describe = wait_describe,
                 .explain = explain,
                 .destroy = destroy},
        .t = p->transport,
        .world = p->world,
        .store = config->store,
        .heap = p->heap,
        .set_bytes = set_bytes(&p->problem->u.allgather, p->world.size),
        .timeout_ns = p->timeout_ns,
        .epoch = p->epoch,
        .signal = p->signal,
    };
    *out = &m->base;
    return EPA_OK;
}

/* ---- 5. the descriptor ---- */

EPA_PLUGIN_EXPORT
const struct epa_algorithm_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_ALGORITHM, struct epa_algorithm_plugin), .name = "mine",
               .summary = "AllGather in as few lines as it takes",
               .options = {options, sizeof(struct config), &defaults}},
    .op = EPA_OP_ALLGATHER,
    .memory = EPA_MEMORY_HOST,
    .needs_host = EPA_TRANSPORT_HOST,
    .plan = plan,
    .create = create,
};
