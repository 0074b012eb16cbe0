/* Clusters: their barrier, and who is in one. What blocks do to each other's mbarriers is in
 * async.c. Each block is an OS thread, so all that is shared here is atomic or locked; a block sees
 * what another did after each round of its threads' turns. */
#include "cluster.h"

#include "async.h"
#include "block.h"

void simt_cluster_init(struct cluster *c, uint32_t blocks)
{
    *c = (struct cluster){.lock = PTHREAD_MUTEX_INITIALIZER, .blocks = blocks};
}

void simt_cluster_begin(struct worker *w)
{
    __atomic_store_n(&w->cluster->worker[w->rank], w, __ATOMIC_RELEASE);
}

void simt_cluster_end(struct worker *w)
{
    __atomic_fetch_or(&w->cluster->stuck, 1u << w->rank, __ATOMIC_RELAXED);
    __atomic_store_n(&w->cluster->worker[w->rank], NULL, __ATOMIC_RELEASE);
}

struct worker *simt_cluster_peer(struct worker *w, uint32_t rank)
{
    struct worker *peer = NULL;

    if (rank < w->cluster->blocks)
        peer = __atomic_load_n(&w->cluster->worker[rank], __ATOMIC_ACQUIRE);
    if (peer == NULL)
        simt_die(w, "thread %u reaches into block %u of a cluster of %u, which %s", w->now->number,
                 rank, w->cluster->blocks,
                 rank < w->cluster->blocks ? "has not begun or has ended" : "does not exist");
    return peer;
}

/* ---- the barrier ---- */

static void cluster_lock(struct cluster *c)
{
    if (c->blocks > 1)
        pthread_mutex_lock(&c->lock);
}

static void cluster_unlock(struct cluster *c)
{
    if (c->blocks > 1)
        pthread_mutex_unlock(&c->lock);
}

static uint32_t phase_of(struct cluster *c)
{
    return __atomic_load_n(&c->phase, __ATOMIC_ACQUIRE);
}

/* Under the lock: are all there that have not ended? */
static void end_phase(struct cluster *c, uint32_t threads)
{
    if (c->here == 0 || c->here + c->left < c->blocks * threads)
        return;
    c->here = 0;
    /* Release: pairs with phase_of(). */
    __atomic_store_n(&c->phase, c->phase + 1, __ATOMIC_RELEASE);
}

uint32_t simt_cluster_rank(void)
{
    return simt_place()->worker->rank;
}

void simt_cluster_arrive(void)
{
    struct worker *w = simt_place()->worker;
    struct cluster *c = w->cluster;

    if (w->now->cluster_arrived)
        simt_die(w, "thread %u arrives twice at the barrier of the cluster", w->now->number);
    cluster_lock(c);
    w->now->cluster_arrived = true;
    w->now->cluster_phase = c->phase;
    c->here++;
    end_phase(c, w->lanes);
    cluster_unlock(c);
    (void)simt_cluster_news(w);
}

void simt_cluster_wait(void)
{
    struct worker *w = simt_place()->worker;
    struct lane *self = w->now;

    if (!self->cluster_arrived)
        simt_die(w, "thread %u waits for the cluster before it arrives", self->number);
    while (phase_of(w->cluster) == self->cluster_phase)
        simt_wait(w, LANE_IN_CLUSTER, 0, __builtin_return_address(0));
    self->cluster_arrived = false;
}

void simt_cluster_leave(struct worker *w)
{
    struct cluster *c = w->cluster;
    const struct lane *self = w->now;

    cluster_lock(c);
    if (self->cluster_arrived && self->cluster_phase == c->phase)
        c->here--; /* counts as one that ended */
    c->left++;
    end_phase(c, w->lanes);
    cluster_unlock(c);
}

/* ---- news ---- */

static bool phase_is_over(const struct lane *lane, const void *phase)
{
    return lane->cluster_phase != *(const uint32_t *)phase;
}

bool simt_cluster_news(struct worker *w)
{
    struct cluster *c = w->cluster;
    uint32_t phase = phase_of(c), woken;

    woken = simt_wake(w, LANE_IN_CLUSTER, phase_is_over, &phase);
    if (c->blocks > 1)
        woken += simt_mbar_news(w);
    if (woken > 0)
        w->idle = 0;
    if (c->blocks > 1 && w->idle == 0)
        __atomic_fetch_and(&c->stuck, ~(1u << w->rank), __ATOMIC_RELAXED);
    return woken > 0;
}

bool simt_cluster_is_stuck(struct worker *w)
{
    uint32_t stuck = __atomic_or_fetch(&w->cluster->stuck, 1u << w->rank, __ATOMIC_RELAXED);

    return stuck == (1u << w->cluster->blocks) - 1;
}
