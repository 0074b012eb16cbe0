/* token_flag on hosts: the protocol, set-up, and the calls that wait.
 *
 * Each rank has a buffer for every source, with room for all that may come, so that nobody
 * asks before sending. dispatch_send gives each flat token the next row of its rank's buffer
 * and stores the message there; dispatch_recv copies what came to rows by expert. combine_send
 * stores the answer to the flat token's slot at its rank, which the message named, and
 * combine_recv adds up a token's slots. Peers that loads and stores do not reach get the same
 * by puts.
 *
 * Flags. Counts: a signal, epoch << 32 | rows + 1, so that it says two things at once and is
 * never cleared; with flag_granularity: rank it comes after all rows, with flag_granularity: token before them, and
 * then each row has a flag, the epoch. So has each expert output. Of what is stored, the flag is the
 * last word of the message or slot: written by a release, waited for by an acquire. Of what
 * is put, it is a signal of its own that comes with the put. How its rows and expert outputs come a
 * rank says with its counts. All flags of a dispatch and its combine carry its epoch, count
 * up, and are waited for with >=.
 *
 * Stages that send end with quiet(): nothing that peers wait for is held back while this rank
 * is elsewhere, two SETs of one word cannot swap, and what was put may be written again.
 *
 * Dispatches count as epochs 1, 2, 3... A dispatch takes the first set that is free, its
 * combine gives it back; all ranks make the same calls in the same order, so they agree on
 * the set. There is no barrier: let epoch m take the set that epoch n had, n < m, so that
 * combine n ended on this rank before dispatch m began.
 *   - A rank writes rows of m at p into its own part of p's buffer. Those of n that stood
 *     there it has got the answers to, so p has copied them out.
 *   - Rows by expert and y are p's own, and are read for the last time in its combine_send n
 *     (quiet: also by puts), before its dispatch m.
 *   - Slots of m are written at p by a rank that has ended dispatch_recv m, so it has seen p's
 *     counts of m, and p has ended combine n, which read the slots.
 *   - Counts and their signal have two places, of odd and even epochs, whatever the set: a
 *     rank with no row for p does not wait for p's expert outputs. It writes those of m + 2 after its
 *     dispatch_recv m + 1, which saw p's counts of m + 1; p has read those of m before.
 *   - Signals of rows and expert outputs are apart for each set, as flags are, being in its memory:
 *     two dispatches may be open, and an expert output of the later must not pass for one of the
 *     earlier, which another rank owes. */
#include "token_flag_host.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum { LOOKS = 64, SPIN_NS = 20000 };

enum epa_status tf_fail(struct tf_host *h, enum epa_status status, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(h->last.text, sizeof(h->last.text), fmt, args);
    va_end(args);
    h->last.status = status;
    return status;
}

/* ---- passes of workers ---- */

enum epa_status tf_parallel(struct tf_task *task,
                            void (*fn)(void *, uint32_t worker, uint32_t workers))
{
    enum epa_status status;

    task->done = 0;
    status = task->h->backend->ops->parallel(task->h->backend, fn, task);
    return status == EPA_OK ? task->status : status;
}

bool tf_stop(struct tf_task *task, enum epa_status status, const char *what, uint32_t peer,
             uint32_t row)
{
    /* Relaxed: it only says that all is over; the end of the pass carries the rest. */
    if (__atomic_exchange_n(&task->stop, 1, __ATOMIC_RELAXED) != 0)
        return false;
    task->status = status;
    task->h->last.what = what;
    task->h->last.peer = peer;
    task->h->last.row = row;
    return true;
}

static bool stopped(const struct tf_task *task)
{
    return __atomic_load_n(&task->stop, __ATOMIC_RELAXED) != 0;
}

static bool has_arrived(const uint64_t *flag, uint64_t epoch)
{
    /* Acquire: pairs with the release after the row or answer was stored. */
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE) >= epoch;
}

bool tf_await(struct tf_task *task, const uint64_t *flag, uint32_t worker, const char *what,
              uint32_t peer, uint32_t row)
{
    struct tf_host *h = task->h;
    struct epa_wait_state w = {.kind = EPA_WAIT_DATA,
                            .what = what,
                            .number = row,
                            .peer = peer,
                            .wanted = task->set->epoch};
    uint64_t begun = 0, waited = 0, reported = 0;

    for (uint32_t poll_launch = 1; !has_arrived(flag, task->set->epoch); poll_launch++) {
        enum epa_status status = EPA_OK;

        clock_pause(waited, h->crowded ? 0 : SPIN_NS);
        if (poll_launch % LOOKS != 0 && !h->crowded)
            continue;
        if (stopped(task))
            return false;
        if (worker == 0)
            status = h->t->ops->progress(h->t);
        if (begun == 0)
            begun = clock_ns();
        waited = clock_ns() - begun;
        if (status == EPA_OK && waited > h->timeout_ns)
            status = EPA_ERR_TIMEOUT;
        w.waited_ns = waited;
        w.seen = __atomic_load_n(flag, __ATOMIC_RELAXED);
        epa_wait_report(h->observer, &w, &reported);
        if (status == EPA_OK)
            continue;
        if (tf_stop(task, status, what, peer, row) && status == EPA_ERR_TIMEOUT)
            (void)tf_fail(h, status, "waited %.3f s for %s %u of rank %u",
                          (double)waited * 1e-9, what, row, peer);
        return false;
    }
    epa_wait_clear(h->observer, reported);
    return true;
}

void tf_tend(struct tf_task *task, uint32_t worker, uint32_t workers)
{
    struct tf_host *h = task->h;
    uint64_t begun = clock_ns();
    enum epa_status status = EPA_OK;

    if (worker != 0) { /* relaxed: the end of the pass carries what it did */
        __atomic_add_fetch(&task->done, 1, __ATOMIC_RELAXED);
        return;
    }
    while (__atomic_load_n(&task->done, __ATOMIC_RELAXED) + 1 < workers &&
           status == EPA_OK && !stopped(task)) {
        clock_pause(clock_ns() - begun, h->crowded ? 0 : SPIN_NS);
        status = h->t->ops->progress(h->t);
    }
    if (status != EPA_OK)
        (void)tf_stop(task, status, "the other workers of rank", h->world.rank, 0);
}

/* ---- the transport ---- */

enum epa_status tf_wait(struct tf_host *h, uint32_t signal, uint64_t value,
                        const char *what, uint32_t peer, uint32_t row)
{
    h->last.what = what;
    h->last.peer = peer;
    h->last.row = row;
    return epa_wait(h->t, h->signal + signal, value, h->timeout_ns);
}

/* Called inside of tf_wait(), by its own thread. */
static void wait_describe(const struct epa_algorithm *a, struct epa_wait_state *w)
{
    const struct tf_host *h = (const struct tf_host *)(const void *)a;
    uint32_t signal = w->number - h->signal, counts = 2 * h->l.size;
    uint32_t rows = counts + h->l.buffers * h->l.row_signals;

    if (w->number < h->signal || signal >= h->l.signals)
        return;
    w->peer = h->last.peer;
    w->what = signal < counts ? "counts" : signal < rows ? "rows" : "expert outputs";
}

/* After a call that may have had no room (EPA_AGAIN): true if it must be made again.
 * *deadline is 0 before the first try. */
static bool again(struct tf_host *h, uint32_t peer, enum epa_status *status,
                  uint64_t *deadline)
{
    h->last.what = "room for what goes to";
    h->last.peer = peer;
    h->last.row = 0;
    if (*status != EPA_AGAIN)
        return false;
    *status = h->t->ops->progress(h->t);
    if (*status != EPA_OK)
        return false;
    if (*deadline == 0)
        *deadline = clock_ns() + h->timeout_ns;
    if (clock_ns() <= *deadline)
        return true;
    *status = tf_fail(h, EPA_ERR_TIMEOUT,
                      "for %.3f s the transport had no room for what goes to rank %u",
                      (double)h->timeout_ns * 1e-9, peer);
    return false;
}

enum epa_status tf_put(struct tf_host *h, uint64_t dst, const void *src, uint64_t bytes,
                       uint32_t peer)
{
    enum epa_status status;
    uint64_t deadline = 0;

    do
        status = epa_put(h->t, dst, src, bytes, peer);
    while (again(h, peer, &status, &deadline));
    return status;
}

enum epa_status tf_put_signal(struct tf_host *h, uint64_t dst, const void *src,
                              uint64_t bytes, uint32_t signal, uint64_t value,
                              uint32_t peer)
{
    enum epa_status status;
    uint64_t deadline = 0;

    do
        status = epa_put_signal(h->t, dst, src, bytes, h->signal + signal, value, peer);
    while (again(h, peer, &status, &deadline));
    return status;
}

/* ---- calls in their order ---- */

struct tf_set *tf_set_of(struct tf_host *h, uint64_t epoch, enum tf_state state)
{
    static const char *const done[] = {"", "sent", "received", "answered"};
    struct tf_set *oldest = NULL;

    for (uint32_t i = 0; i < h->l.buffers; i++) {
        if (h->set[i].state == state && (oldest == NULL || h->set[i].epoch < oldest->epoch))
            oldest = &h->set[i];
    }
    if (oldest != NULL && oldest->epoch == epoch)
        return oldest;
    if (oldest != NULL)
        (void)tf_fail(h, EPA_ERR_CONFIG,
                      "called for dispatch %llu, but %llu is the oldest that is %s: they "
                      "go in order",
                      (unsigned long long)epoch, (unsigned long long)oldest->epoch,
                      done[state]);
    else
        (void)tf_fail(h, EPA_ERR_CONFIG,
                      "called for dispatch %llu, but there is none that is %s",
                      (unsigned long long)epoch, done[state]);
    return NULL;
}

static void explain(struct epa_algorithm *a, struct epa_error *err)
{
    struct tf_host *h = host_of(a);
    struct epa_error inner = {EPA_OK, ""};

    if (h->last.text[0] != 0) {
        (void)epa_fail(err, h->last.status, "%s, %s, epoch %llu: %s", h->last.stage,
                       h->last.phase, (unsigned long long)h->epoch, h->last.text);
        return;
    }
    h->t->ops->explain(h->t, &inner);
    (void)epa_fail(err, inner.status, "%s, %s: epoch %llu, %s %u of rank %u: %s",
                   h->last.stage, h->last.phase, (unsigned long long)h->epoch, h->last.what,
                   h->last.row, h->last.peer, inner.text);
}

/* ---- set-up ---- */

static void destroy(struct epa_algorithm *a)
{
    struct tf_host *h = host_of(a);

    if (h == NULL)
        return;
    for (uint32_t i = 0; i < 2; i++) {
        free(h->set[i].recv_count);
        free(h->set[i].recv_start);
    }
    free(h->source);
    free(h->rank_of);
    free(h->sent);
    free(h->taken);
    free(h->scratch);
    free(h);
}

static bool set_alloc(const struct tf_layout *l, struct tf_set *s)
{
    s->recv_count = calloc(l->local, sizeof(*s->recv_count));
    s->recv_start = calloc(l->local, sizeof(*s->recv_start));
    return s->recv_count != NULL && s->recv_start != NULL;
}

static bool host_alloc(struct tf_host *h)
{
    const struct tf_layout *l = &h->l;
    size_t scratch = (h->workers * l->message_bytes + TF_PAGE - 1) / TF_PAGE * TF_PAGE;
    bool ok = true;

    for (uint32_t b = 0; b < l->buffers; b++)
        ok = set_alloc(l, &h->set[b]) && ok;
    h->source = calloc(l->size, sizeof(*h->source));
    h->rank_of = calloc(l->experts, sizeof(*h->rank_of));
    h->sent = calloc(l->size, sizeof(*h->sent));
    h->taken = calloc(l->local, sizeof(*h->taken));
    h->scratch = aligned_alloc(TF_PAGE, scratch);
    if (h->scratch != NULL)
        memset(h->scratch, 0, scratch);
    return ok && h->source != NULL && h->rank_of != NULL && h->sent != NULL &&
           h->taken != NULL && h->scratch != NULL;
}

/* A transport may give less than its plugin says it can; the layout counts on what was said. */
static enum epa_status check_heap(const struct epa_algorithm_params *p,
                                  const struct tf_layout *l, struct epa_error *err)
{
    const struct epa_transport *t = p->transport;

    if (p->heap + l->heap_bytes > t->heap_bytes)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "token_flag: the heap of %llu bytes is too small",
                        (unsigned long long)t->heap_bytes);
    for (uint32_t r = 0; r < t->size && !l->puts; r++) {
        if (t->peer_heap[r] == NULL)
            return epa_fail(err, EPA_ERR_UNSUPPORTED,
                            "token_flag: loads and stores do not reach rank %u, though the "
                            "transport said that they reach all",
                            r);
    }
    return EPA_OK;
}

/* No transport promises what is in its heap at first. Nobody begins before all ranks have set
 * up, so no flag that has come is lost. */
static void clear_flags(struct tf_host *h)
{
    uint64_t slots = (uint64_t)h->l.max_tokens * h->l.topk;

    for (uint32_t b = 0; b < h->l.buffers; b++) {
        char *msg = h->t->heap + comm_offset(h, &h->set[b], 0, 0);
        char *slot = h->t->heap + slot_offset(h, &h->set[b], 0, 0);

        for (uint64_t i = 0; i < h->l.rows; i++, msg += h->l.message_bytes)
            meta_of(h, msg)->flag = 0;
        for (uint64_t i = 0; i < slots; i++, slot += h->l.slot_bytes)
            *flag_of_slot(h, slot) = 0;
    }
}

static void count_worker(void *arg, uint32_t worker, uint32_t workers)
{
    if (worker == 0)
        *(uint32_t *)arg = workers;
}

static const struct epa_stage stages[4] = {
    {"dispatch_send", EPA_STAGE_SEND, tf_dispatch_send},
    {"dispatch_recv", EPA_STAGE_DISPATCH, tf_dispatch_recv},
    {"combine_send", EPA_STAGE_SEND, tf_combine_send},
    {"combine_recv", EPA_STAGE_COMBINE, tf_combine_recv},
};

static void find_ways(struct tf_host *h)
{
    for (uint32_t e = 0; e < h->l.experts; e++)
        h->rank_of[e] = (uint16_t)(e / h->l.local);
    for (uint32_t r = 0; r < h->l.size; r++)
        h->far += !reachable(h, r);
    h->crowded = (uint64_t)h->world.local_size * h->workers > h->world.local_cores;
}

enum epa_status tf_host_create(const struct epa_algorithm_params *p,
                               const struct tf_layout *l, struct epa_algorithm **out,
                               struct epa_error *err)
{
    struct tf_host *h = calloc(1, sizeof(*h));
    const struct tf_config *c = p->config;
    enum epa_status status;

    if (h == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "token_flag: no memory");
    *h = (struct tf_host){
        .base = {.stages = stages,
                 .n_stages = 4,
                 .wait_describe = wait_describe,
                 .explain = explain,
                 .destroy = destroy},
        .l = *l,
        .world = p->world,
        .t = p->transport,
        .backend = p->backend,
        .kernels = epa_kernels_get((enum epa_dtype)p->problem->u.moe.dtype, NULL),
        .store = c->nontemporal == TF_NONTEMPORAL_ON ? EPA_STORE_NONTEMPORAL : EPA_STORE_CACHED,
        .heap = p->heap,
        .signal = p->signal,
        .timeout_ns = p->timeout_ns,
        .observer = p->observer,
        .last = {.stage = "create", .phase = "create", .what = "nothing"},
    };
    status = p->backend->ops->parallel(p->backend, count_worker, &h->workers);
    if (status == EPA_OK && !host_alloc(h))
        status = epa_fail(err, EPA_ERR_NOMEM, "token_flag: no memory for %u workers",
                          h->workers);
    if (status == EPA_OK)
        status = check_heap(p, l, err);
    if (status != EPA_OK) {
        destroy(&h->base);
        return status;
    }
    find_ways(h);
    clear_flags(h);
    *out = &h->base;
    return EPA_OK;
}
