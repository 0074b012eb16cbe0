/* All that waits: for signals, for requests, for all ranks. See verbs.h.
 *
 * A wait polls a word in memory. Now and then it takes completions, too, as that is how a peer
 * that is gone shows, and how software devices get on with their work. */
#include "verbs.h"

/* ---- looking ---- */

/* What settles a half-written value is time, so `pause` comes between the looks. A copy that
 * begins with the low byte could do without: half of a value that counts up is then below what
 * it becomes, so nothing that is waited for with >= comes too early.
 * Acquire: pairs with the release of a direct peer's store. What a device wrote is ordered by
 * the device: data before the signal behind it. */
bool poll_settled(const uint64_t *word, enum epa_compare compare, uint64_t want,
                  void (*pause)(const void *arg), const void *arg)
{
    uint64_t seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);

    if (!wait_reached(seen, compare, want))
        return false;
    pause(arg);
    return __atomic_load_n(word, __ATOMIC_ACQUIRE) == seen;
}

uint64_t look_up(const uint64_t *word, void (*pause)(const void *arg), const void *arg)
{
    uint64_t seen = __atomic_load_n(word, __ATOMIC_ACQUIRE), before;

    for (int tries = 0; tries < 64; tries++) { /* what never settles is not being torn */
        before = seen;
        pause(arg);
        seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        if (seen == before)
            break;
    }
    return seen;
}

static void settle(const void *arg)
{
    const struct verbs *v = arg;
    uint64_t begun;

    if (v->settle_ns == 0)
        return;
    begun = epa_now_ns();
    do
        epa_relax();
    while (epa_now_ns() - begun < v->settle_ns);
}

uint64_t verbs_read(const struct verbs *v, uint32_t line)
{
    return look_up(word_at(v, line, v->base.rank), settle, v);
}

/* ---- waiting ---- */

enum epa_status verbs_poll(struct verbs *v)
{
    enum epa_status status = queues_poll(&v->queues);

    if (status != EPA_OK)
        v->failure = (struct failure){.at = FAILED_REQUEST, .status = status};
    return status;
}

/* A rank that fails leaves, and requests to it fail after that: `aborted` is the reason. */
enum epa_status verbs_go_on(struct verbs *v, struct epa_wait *w, struct epa_wait_state *state)
{
    enum epa_status status = verbs_poll(v), turn = epa_wait_turn(&v->wait, w, state);

    return turn == EPA_ERR_ABORTED || status == EPA_OK ? turn : status;
}

/* Keeps what was waited for, unless it is a request that failed, which is kept already. */
static enum epa_status give_up(struct verbs *v, enum epa_status status, const struct epa_wait *w,
                               const struct failure *what)
{
    if (status == EPA_ERR_ABORTED || status == EPA_ERR_TIMEOUT) {
        v->failure = *what;
        v->failure.status = status;
        v->failure.waited_ns = w->waited_ns;
    }
    return status;
}

/* For a line that others set: `f` says which, and what it is a failure of. */
static enum epa_status wait_until(struct verbs *v, uint32_t line, struct epa_wait *w,
                                  struct failure *f)
{
    const uint64_t *word = word_at(v, line, v->base.rank);

    for (;;) {
        struct epa_wait_state state;
        enum epa_status status;

        for (uint32_t i = 0; i < v->wait.burst; i++) {
            if (poll_settled(word, f->compare, f->want, settle, v))
                return epa_wait_done(&v->wait, w);
            epa_relax();
        }
        f->seen = __atomic_load_n(word, __ATOMIC_RELAXED);
        state = wait_state_of(f);
        status = verbs_go_on(v, w, &state);
        if (status != EPA_OK)
            return give_up(v, status, w, f);
    }
}

enum epa_status verbs_wait(struct verbs *v, uint32_t signal, enum epa_compare compare,
                           uint64_t want, uint64_t timeout_ns)
{
    struct epa_wait w = {.timeout_ns = timeout_ns};

    return wait_until(
        v, signal, &w,
        &(struct failure){.at = FAILED_SIGNAL, .compare = compare, .signal = signal, .want = want});
}

/* For requests to `peer`, of which `n` are under way. */
static enum epa_status wait_for_requests(struct verbs *v, uint32_t peer, uint64_t n,
                                         struct epa_wait *w)
{
    struct epa_wait_state state = {.kind = EPA_WAIT_PUTS, .peer = peer, .number = EPA_WAIT_NOBODY};

    return give_up(v, verbs_go_on(v, w, &state), w,
                   &(struct failure){.at = FAILED_QUIET, .peer = peer, .want = n});
}

static enum epa_status drain_until(struct verbs *v, struct epa_wait *w)
{
    struct queues *all = &v->queues;
    enum epa_status status = verbs_poll(v);

    for (uint32_t r = 0; r < all->n; r++)
        queue_ask(all, &all->queue[r]);
    queues_post(all);
    if (status != EPA_OK)
        return epa_aborted(v->boot) ? EPA_ERR_ABORTED : status;
    for (uint32_t r = 0; r < all->n; r++) {
        struct queue *q = &all->queue[r];
        uint64_t mark = q->built;

        while (!queue_is_done(q, mark)) {
            status = wait_for_requests(v, r, mark - q->done, w);
            if (status != EPA_OK)
                return status;
        }
    }
    return epa_wait_done(&v->wait, w);
}

enum epa_status verbs_drain(struct verbs *v, uint64_t timeout_ns)
{
    struct epa_wait w = {.timeout_ns = timeout_ns};

    return drain_until(v, &w);
}

/* Counts an arrival at a peer, and waits for room where it must. */
static enum epa_status arrive_at(struct verbs *v, uint64_t epoch, uint32_t peer, struct epa_wait *w)
{
    struct queue *q = &v->queues.queue[peer];
    uint32_t line = line_arrived(v, v->base.rank);

    if (is_direct(v, peer)) {
        /* Release: pairs with the acquire in poll_settled(). */
        __atomic_store_n(word_at(v, line, peer), epoch, __ATOMIC_RELEASE);
        return EPA_OK;
    }
    while (!queue_has_room(q, 1)) {
        enum epa_status status;

        queue_ask(&v->queues, q);
        queue_post(&v->queues, q);
        status = wait_for_requests(v, peer, q->built - q->done, w);
        if (status != EPA_OK)
            return status;
    }
    queue_set(&v->queues, q, epoch, remote_line(q, line), true); /* drained before long */
    queue_post(&v->queues, q);
    return EPA_OK;
}

/* Each rank has a line at every other, where it alone counts its arrivals: one message for
 * each pair, and it is known who is late. Before it arrives anywhere, all that it has put must
 * be in place: who sees it may load what was put to a third. */
enum epa_status verbs_barrier(struct verbs *v, uint64_t timeout_ns)
{
    struct epa_wait w = {.timeout_ns = timeout_ns};
    uint32_t size = v->base.size;
    uint64_t epoch = ++v->barriers;
    enum epa_status status = drain_until(v, &w);

    for (uint32_t i = 1; i < size && status == EPA_OK; i++)
        status = arrive_at(v, epoch, (v->base.rank + i) % size, &w);
    for (uint32_t i = 1; i < size && status == EPA_OK; i++) {
        uint32_t peer = (v->base.rank + i) % size;

        status =
            wait_until(v, line_arrived(v, peer), &w,
                       &(struct failure){
                           .at = FAILED_BARRIER, .compare = EPA_GE, .peer = peer, .want = epoch});
    }
    for (uint32_t r = 0; r < size && status != EPA_OK; r++) {
        if (v->failure.at == FAILED_BARRIER && r != v->base.rank &&
            verbs_read(v, line_arrived(v, r)) < epoch)
            wait_note_missing(&v->failure, r);
    }
    return status;
}
