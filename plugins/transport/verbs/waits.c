/* All that waits: for signals, for requests, for all ranks. See verbs.h.
 *
 * A wait polls a word in memory. Now and then it takes completions, too, as that is how a peer
 * that is gone shows, and how software devices get on with their work. */
#include "verbs.h"

#include "base/clock.h"

/* ---- looking ---- */

static bool reached(uint64_t seen, enum epa_compare compare, uint64_t want)
{
    return compare == EPA_EQ ? seen == want : seen >= want;
}

/* What settles a half-written value is time, so `pause` comes between the looks. A copy that
 * begins with the low byte could do without: half of a value that counts up is then below what
 * it becomes, so nothing that is waited for with >= comes too early.
 * Acquire: pairs with the release of a direct peer's store. What a device wrote is ordered by
 * the device: data before the signal behind it. */
bool poll_launch(const uint64_t *word, enum epa_compare compare, uint64_t want,
          void (*pause)(const void *arg), const void *arg)
{
    uint64_t seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);

    if (!reached(seen, compare, want))
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
    begun = clock_ns();
    do
        clock_relax();
    while (clock_ns() - begun < v->settle_ns);
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
enum epa_status verbs_go_on(struct verbs *v, struct waiting *w)
{
    enum epa_status status = verbs_poll(v);
    uint64_t now = clock_ns();

    if (w->begun == 0)
        w->begun = now;
    w->waited_ns = now - w->begun;
    if (epa_aborted(v->boot))
        return EPA_ERR_ABORTED;
    if (status != EPA_OK)
        return status;
    if (w->waited_ns >= w->timeout_ns)
        return EPA_ERR_TIMEOUT;
    if (w->waited_ns >= v->spin_ns)
        clock_pause(w->waited_ns, v->spin_ns);
    return EPA_OK;
}

/* Tells what was waited for, unless it is a request that failed, which has told already. */
static enum epa_status give_up(struct verbs *v, enum epa_status status,
                               const struct waiting *w, const struct failure *what)
{
    if (status == EPA_ERR_ABORTED || status == EPA_ERR_TIMEOUT) {
        v->failure = *what;
        v->failure.status = status;
        v->failure.waited_ns = w->waited_ns;
    }
    return status;
}

/* The wait is over, well; another may begin with the same `w`. */
static enum epa_status done(const struct verbs *v, struct waiting *w)
{
    epa_wait_clear(v->boot->observer, w->reported_ns);
    w->reported_ns = 0;
    return EPA_OK;
}

/* For a line that others set: a signal, or where one of them counts its arrivals. */
static void tell_of_line(const struct verbs *v, uint32_t line, uint64_t seen, uint64_t want,
                         struct waiting *w)
{
    bool barrier = line >= v->segments.params.signals;

    epa_wait_report(v->boot->observer,
              &(struct epa_wait_state){
                  .kind = barrier ? EPA_WAIT_BARRIER : EPA_WAIT_SIGNAL,
                  .peer = barrier ? line - line_arrived(v, 0) : EPA_WAIT_NOBODY,
                  .number = barrier ? EPA_WAIT_NOBODY : line,
                  .seen = seen,
                  .wanted = want,
                  .waited_ns = w->waited_ns},
              &w->reported_ns);
}

static void tell_of_puts(const struct verbs *v, uint32_t peer, struct waiting *w)
{
    epa_wait_report(v->boot->observer,
              &(struct epa_wait_state){.kind = EPA_WAIT_PUTS,
                                    .peer = peer,
                                    .number = EPA_WAIT_NOBODY,
                                    .waited_ns = w->waited_ns},
              &w->reported_ns);
}

static enum epa_status wait_until(struct verbs *v, uint32_t line, enum epa_compare compare,
                                  uint64_t want, struct waiting *w, enum failed_at at)
{
    const uint64_t *word = word_at(v, line, v->base.rank);
    enum epa_status status;

    for (;;) {
        for (uint32_t i = 0; i < v->burst; i++) {
            if (poll_launch(word, compare, want, settle, v))
                return done(v, w);
            clock_relax();
        }
        status = verbs_go_on(v, w);
        tell_of_line(v, line, __atomic_load_n(word, __ATOMIC_RELAXED), want, w);
        if (status != EPA_OK)
            return give_up(
                v, status, w,
                &(struct failure){.at = at,
                                  .compare = compare,
                                  .line = line,
                                  .want = want,
                                  .seen = __atomic_load_n(word, __ATOMIC_RELAXED)});
    }
}

enum epa_status verbs_wait(struct verbs *v, uint32_t line, enum epa_compare compare,
                           uint64_t want, uint64_t timeout_ns, enum failed_at at)
{
    struct waiting w = {.timeout_ns = timeout_ns};

    return wait_until(v, line, compare, want, &w, at);
}

static enum epa_status drain_until(struct verbs *v, struct waiting *w)
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
            status = verbs_go_on(v, w);
            tell_of_puts(v, r, w);
            if (status != EPA_OK)
                return give_up(v, status, w,
                               &(struct failure){
                                   .at = FAILED_QUIET, .peer = r, .want = mark - q->done});
        }
    }
    return done(v, w);
}

enum epa_status verbs_drain(struct verbs *v, uint64_t timeout_ns)
{
    struct waiting w = {.timeout_ns = timeout_ns};

    return drain_until(v, &w);
}

/* ---- lines of the transport's own ---- */

static enum epa_status set_until(struct verbs *v, uint32_t line, uint64_t value,
                                 uint32_t peer, struct waiting *w)
{
    struct queue *q = &v->queues.queue[peer];
    enum epa_status status;

    if (is_direct(v, peer)) {
        /* Release: pairs with the acquire in look(). */
        __atomic_store_n(word_at(v, line, peer), value, __ATOMIC_RELEASE);
        return EPA_OK;
    }
    while (!queue_has_room(q, 1)) {
        queue_ask(&v->queues, q);
        queue_post(&v->queues, q);
        status = verbs_go_on(v, w);
        tell_of_puts(v, peer, w);
        if (status != EPA_OK)
            return give_up(v, status, w,
                           &(struct failure){.at = FAILED_QUIET,
                                             .peer = peer,
                                             .want = q->built - q->done});
    }
    queue_set(&v->queues, q, value, remote_line(q, line), true); /* drained before long */
    queue_post(&v->queues, q);
    return EPA_OK;
}

enum epa_status verbs_set(struct verbs *v, uint32_t line, uint64_t value, uint32_t peer,
                          uint64_t timeout_ns)
{
    struct waiting w = {.timeout_ns = timeout_ns};

    return set_until(v, line, value, peer, &w);
}

static void find_missing(const struct verbs *v, uint64_t epoch, struct failure *failure)
{
    for (uint32_t r = v->base.size; r-- > 0;) {
        if (r == v->base.rank || verbs_read(v, line_arrived(v, r)) >= epoch)
            continue;
        failure->missing++;
        failure->first_missing = r;
    }
}

/* Each rank has a line at every other, where it alone counts its arrivals: one message for
 * each pair, and it is known who is late. Before it tells anybody, all that it has put must be
 * in place: who is told may load what was put to a third. */
enum epa_status verbs_barrier(struct verbs *v, uint64_t timeout_ns)
{
    struct waiting w = {.timeout_ns = timeout_ns};
    uint32_t size = v->base.size, mine = line_arrived(v, v->base.rank);
    uint64_t epoch = ++v->barriers;
    enum epa_status status = drain_until(v, &w);

    for (uint32_t i = 1; i < size && status == EPA_OK; i++)
        status = set_until(v, mine, epoch, (v->base.rank + i) % size, &w);
    for (uint32_t i = 1; i < size && status == EPA_OK; i++)
        status = wait_until(v, line_arrived(v, (v->base.rank + i) % size), EPA_GE, epoch,
                            &w, FAILED_BARRIER);
    if (status != EPA_OK && v->failure.at == FAILED_BARRIER)
        find_missing(v, epoch, &v->failure);
    return status;
}
