/* Waits for signals, requests and barriers; explain() and describe(). See verbs.h.
 *
 * A wait polls a word in memory. It also polls completions from time to time: they reveal the loss
 * of a peer, and software devices make progress by them. */
#include "waits.h"

#include "device.h"
#include "state.h"

#include <inttypes.h>
#include <string.h>

/* ---- reading signals ---- */

/* `pause` separates the two reads, so that a software device can complete a half-written value. A
 * device that copies the low byte first would not need the pause: a partly written counter is below
 * its final value, so a wait with >= cannot end too early.
 * Acquire: pairs with the release of a direct peer's store. The device itself orders its writes:
 * data before the following signal. */
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

    for (int tries = 0; tries < 64; tries++) { /* a torn write settles within a few reads */
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

/* Requests to a failed rank fail after it has left, so `aborted` takes precedence. Stores the
 * expected value of the wait, except after a failed request, which is stored already. */
enum epa_status verbs_go_on(struct verbs *v, struct epa_wait *w, struct failure *f)
{
    enum epa_status status = verbs_poll(v), turn = wait_turn(&v->wait, w, f);

    if (turn != EPA_ERR_ABORTED && status != EPA_OK)
        return status;
    if (turn != EPA_OK)
        v->failure = *f;
    return turn;
}

/* Waits for a line that peers write; `f` names it for the failure message. */
static enum epa_status wait_until(struct verbs *v, uint32_t line, struct epa_wait *w,
                                  struct failure *f)
{
    const uint64_t *word = word_at(v, line, v->base.rank);

    for (;;) {
        enum epa_status status;

        for (uint32_t i = 0; i < v->wait.burst; i++) {
            if (poll_settled(word, f->compare, f->want, settle, v))
                return epa_wait_done(&v->wait, w);
            epa_relax();
        }
        f->seen = __atomic_load_n(word, __ATOMIC_RELAXED);
        status = verbs_go_on(v, w, f);
        if (status != EPA_OK)
            return status;
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

/* Waits for requests to `peer`, of which `n` are in flight. */
static enum epa_status wait_for_requests(struct verbs *v, uint32_t peer, uint64_t n,
                                         struct epa_wait *w)
{
    return verbs_go_on(v, w, &(struct failure){.at = FAILED_QUIET, .peer = peer, .want = n});
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

/* Signals the arrival to a peer; waits for room in the queue. */
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
    queue_set(&v->queues, q, epoch, remote_line(q, line),
              true); /* verbs_barrier() drains it soon */
    queue_post(&v->queues, q);
    return EPA_OK;
}

/* Each rank counts its arrivals in a cache line of its own at every other rank: one message per
 * pair, and every rank can name a late one. All puts of a rank must complete before its arrival: a
 * rank that sees the arrival may load data that was put to a third rank. */
enum epa_status verbs_barrier(struct epa_transport *t, uint64_t timeout_ns)
{
    struct verbs *v = (struct verbs *)t;
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

/* ---- explanations ---- */

static const char *name_of(enum ibv_wr_opcode opcode)
{
    return opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? "fetch-and-add" : "RDMA write";
}

/* Writes a hint for the user that depends on the status of the completion. */
static void advise(const struct request_words *w, char *out, size_t room)
{
    uint32_t peer = w->failure->peer;
    double wait_s = 4.096e-6 * (double)(1ull << w->timeout);

    switch (w->failure->status) {
    case IBV_WC_RETRY_EXC_ERR:
        snprintf(out, room,
                 "it was not acknowledged in %u tries at intervals of %.3g s or more: is "
                 "rank %u still running and reachable? %s here; transport.timeout and "
                 "retries set how long to try",
                 w->retries + 1, wait_s, peer, w->port);
        break;
    case IBV_WC_REM_ACCESS_ERR:
        snprintf(out, room, "rank %u has no such memory any more: it has left, or began anew",
                 peer);
        break;
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
        snprintf(out, room,
                 "the device of rank %u rejects an operation of the local device; `ibv_devinfo "
                 "-v` on both hosts shows their capabilities",
                 peer);
        break;
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_PROT_ERR:
        snprintf(out, room,
                 "the device here refused it: %s; is there a route to rank %u for "
                 "transport.gid?",
                 w->port, peer);
        break;
    case IBV_WC_WR_FLUSH_ERR:
        snprintf(out, room, "the queue pair was shut down before it: %s", w->port);
        break;
    default:
        snprintf(out, room, "%s; see the kernel's log (dmesg) on both hosts", w->port);
        break;
    }
}

void request_in_words(const struct request_words *w, char *out, size_t room)
{
    const struct queue_failure *f = w->failure;
    char advice[320], size[48] = "";

    if (f->bytes > 0)
        snprintf(size, sizeof(size), " of %" PRIu64 " bytes", f->bytes);
    if (f->posting) {
        snprintf(out, room, "rank %u: the device took no %s%s to rank %u: %s (errno %d); %s",
                 w->rank, name_of(f->opcode), size, f->peer, strerror(f->error), f->error, w->port);
        return;
    }
    advise(w, advice, sizeof(advice));
    snprintf(out, room, "rank %u: %s%s to rank %u failed: %s (status %d, vendor 0x%x); %s", w->rank,
             name_of(f->opcode), size, f->peer, ibv_wc_status_str(f->status), (int)f->status,
             f->vendor, advice);
}

static void explain_request(struct verbs *v, const struct failure *f, struct epa_error *err)
{
    char port[160], text[480];
    const struct request_words words = {.failure = &v->queues.failure,
                                        .port = port,
                                        .rank = v->base.rank,
                                        .timeout = v->config.timeout,
                                        .retries = v->config.retries};

    device_state(&v->device, port, sizeof(port));
    request_in_words(&words, text, sizeof(text));
    (void)epa_fail(epa_awaits(err, v->queues.failure.peer), f->status, "verbs: %s", text);
}

void verbs_explain(struct epa_transport *t, struct epa_error *err)
{
    struct verbs *v = (struct verbs *)t;
    const struct failure *f = &v->failure;

    switch (f->at) {
    case FAILED_QUIET:
        (void)epa_fail(epa_awaits(err, f->peer), f->status,
                       "verbs: rank %u waited %.3f s for its device to be done with %" PRIu64
                       " requests to rank %u%s",
                       t->rank, (double)f->waited_ns * 1e-9, f->want, f->peer, wait_why(f));
        break;
    case FAILED_REQUEST:
        explain_request(v, f, err);
        break;
    case FAILED_SOURCE:
        if (v->given) {
            (void)epa_fail(err, f->status, "verbs: rank %u puts %" PRIu64 " bytes to rank %u: %s",
                           t->rank, f->want, f->peer, v->source_err.text);
            break;
        }
        (void)epa_fail(err, f->status,
                       "verbs: rank %u puts %" PRIu64 " bytes to rank %u that are not in "
                       "its heap; only that is registered with the device",
                       t->rank, f->want, f->peer);
        break;
    default:
        wait_explain("verbs", t, v->boot, f, err);
        break;
    }
}

void verbs_describe(struct epa_transport *t,
                    void (*say)(void *arg, const char *key, const char *value), void *arg)
{
    static const char *const kind[] = {
        [GID_INFINIBAND] = "InfiniBand", [GID_ROCE_V1] = "RoCE v1", [GID_ROCE_V2] = "RoCE v2"};
    struct verbs *v = (struct verbs *)t;
    const struct port *p = &v->device.port;
    char text[128], gid[64];
    uint32_t near = 0;

    for (uint32_t r = 0; r < t->size; r++)
        near += r != t->rank && is_direct(v, r);
    snprintf(text, sizeof(text), "%s%s", p->device, v->device.software ? " (software)" : "");
    say(arg, "device", text);
    snprintf(text, sizeof(text), "%u", p->number);
    say(arg, "port", text);
    say(arg, "link", kind[v->device.gid.kind]);
    snprintf(text, sizeof(text), "%g Gbit/s", p->gbit_per_s);
    say(arg, "rate", text);
    snprintf(text, sizeof(text), "%u (%s)", v->device.gid.index,
             gid_text(v->device.gid.raw, gid, sizeof(gid)));
    say(arg, "gid", text);
    snprintf(text, sizeof(text), "%u", v->mtu);
    say(arg, "mtu", text);
    snprintf(text, sizeof(text), "%u", v->queues.queue[0].inline_bytes);
    say(arg, "inline", text);
    snprintf(text, sizeof(text), "%u of %u peers", near, t->size - 1);
    say(arg, "loads and stores", text);
}
