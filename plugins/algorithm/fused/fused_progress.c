/* fused on hosts: puts, signals of puts, and waits of tasks. */
#include "fused_progress.h"

#include <epa2a/wait.h>

/* ---- puts ---- */

void fused_request(struct fused_host *h, uint32_t peer, uint64_t dst, const void *src, size_t bytes,
                   uint32_t signal)
{
    struct fused_request *r = &h->request[__atomic_fetch_add(&h->requests, 1, __ATOMIC_RELAXED)];

    r->dst = dst;
    r->src = src;
    r->bytes = bytes;
    r->signal = signal == ALGO_NONE ? ALGO_NONE : h->a.signal + signal;
    r->peer = peer;
    /* Release: pairs with the acquire in issue_requests(). */
    __atomic_store_n(&r->ready, h->epoch, __ATOMIC_RELEASE);
}

static enum epa_status issue_request(struct fused_host *h, const struct fused_request *r)
{
    struct epa_transport *t = h->a.t;
    enum epa_status status;

    h->a.last.peer = r->peer;
    if (r->bytes == 0) {
        status = t->ops->fence(t, r->peer);
        return status != EPA_OK ? status
                                : t->ops->signal(t, r->signal, h->epoch, EPA_SIGNAL_SET, r->peer);
    }
    if (r->signal == ALGO_NONE)
        return epa_put(t, r->dst, r->src, r->bytes, r->peer);
    return epa_put_signal(t, r->dst, r->src, r->bytes, r->signal, h->epoch, r->peer);
}

/* Issues the queued puts while the transport has room. EPA_AGAIN: some remain. */
static enum epa_status issue_requests(struct fused_host *h)
{
    while (h->issued < h->request_room) {
        const struct fused_request *r = &h->request[h->issued];
        enum epa_status status;

        if (__atomic_load_n(&r->ready, __ATOMIC_ACQUIRE) != h->epoch)
            break;
        status = issue_request(h, r);
        if (status != EPA_OK)
            return status;
        h->issued++;
    }
    return EPA_OK;
}

/* ---- signals to flags ---- */

/* Sets the flag once the signal has arrived; returns true if the flag is set. */
static bool forward_signal(struct fused_host *h, uint32_t signal, uint64_t at, uint32_t n)
{
    uint64_t *flag = (uint64_t *)(void *)(h->a.t->heap + at);
    struct epa_transport *t = h->a.t;

    if (*flag >= h->epoch) /* only worker 0 writes the flag */
        return true;
    if (t->ops->read(t, h->a.signal + signal) < h->epoch)
        return false;
    if (epa_wait(t, h->a.signal + signal, h->epoch, h->a.timeout_ns) != EPA_OK)
        return false; /* another rank has failed; progress() reports it */
    for (uint32_t i = 0; i < n; i++)
        fused_flag(h, h->a.world.rank, at + i * sizeof(uint64_t));
    return true;
}

static void forward_signals(struct fused_host *h, uint32_t r)
{
    const struct fused_layout *l = &h->l;
    struct fused_far *far = &h->far[r];
    uint32_t rows = h->out_start[r + 1] - h->out_start[r];
    bool in_order = true;

    if (!forward_signal(h, head_signal(r), head_flag_at(h, r), 1))
        return; /* rows and outputs follow the header */
    if (far->row_units == ALGO_NONE)
        far->row_units = fused_row_units(h, r);
    for (uint32_t u = far->rows_from; u < far->row_units; u++) {
        in_order = forward_signal(h, row_signal(l, r, u), row_flag_at(h, r, u), 1) && in_order;
        far->rows_from = in_order ? u + 1 : far->rows_from;
    }
    in_order = true;
    for (uint32_t c = far->outs_from; c < far->out_chunks; c++) {
        uint32_t first = c * l->chunk, n = rows - first < l->chunk ? rows - first : l->chunk;

        for (uint32_t part = 0; part < l->out_parts; part++)
            in_order = forward_signal(h, out_signal(l, r, c, part),
                                      out_flag_at(h, h->out_start[r] + first, part), n) &&
                       in_order;
        far->outs_from = in_order ? c + 1 : far->outs_from;
    }
}

void fused_poll(struct fused_host *h, uint32_t worker)
{
    enum epa_status status;

    if (worker != 0 || algo_stopped(&h->pass))
        return;
    status = h->a.t->ops->progress(h->a.t);
    if (status == EPA_OK && h->a.far != 0) {
        status = issue_requests(h);
        for (uint32_t r = 0; r < h->l.size; r++) {
            if (!fused_near(h, r))
                forward_signals(h, r);
        }
    }
    if (status != EPA_OK && status != EPA_AGAIN)
        (void)algo_stop(&h->pass, status);
}

/* ---- waits ---- */

static void explain_timeout(struct fused_host *h, const struct fused_wait *why,
                            const struct algo_look *look)
{
    char rows[48] = "", who[32] = "", tile[80] = "";

    if (why->peer != ALGO_NONE)
        snprintf(who, sizeof(who), " of rank %u", why->peer);
    if (why->last != why->first)
        snprintf(rows, sizeof(rows), " %u to %u", why->first, why->last);
    else if (why->last != 0 || why->expert != ALGO_NONE)
        snprintf(rows, sizeof(rows), " %u", why->first);
    if (why->expert != ALGO_NONE)
        snprintf(tile, sizeof(tile),
                 "tile of expert %u, rows %u to %u: ", h->a.world.rank * h->l.local + why->expert,
                 why->row, why->row + why->rows - 1);
    (void)algo_fail(algo_awaits(&h->a, why->peer), EPA_ERR_TIMEOUT,
                    "epoch %llu, %swaited %.3f s for %s%s%s (is at %llu, wants %llu)",
                    (unsigned long long)h->epoch, tile, (double)look->waited_ns * 1e-9, why->what,
                    rows, who, (unsigned long long)look->seen, (unsigned long long)look->wanted);
}

static bool wait_long(struct fused_host *h, uint32_t worker, const uint64_t *word, uint64_t wanted,
                      const struct fused_wait *why)
{
    struct algo_look look = {
        .what = why->what, .number = why->first, .peer = why->peer, .wanted = wanted};
    /* The limit is shorter for waits for another rank, so that these report the time-out first. */
    uint64_t limit = why->peer != ALGO_NONE ? h->a.timeout_ns : 2 * h->a.timeout_ns;

    /* Acquire: pairs with the release of the task or rank that increases the word. */
    while ((look.seen = __atomic_load_n(word, __ATOMIC_ACQUIRE)) < wanted) {
        bool looks = algo_look_pause(&h->a, &look);

        if (looks || h->a.far != 0)
            fused_poll(h, worker);
        if (!looks)
            continue;
        if (algo_stopped(&h->pass))
            return false;
        algo_look_report(&h->a, &look);
        if (look.waited_ns <= limit)
            continue;
        if (algo_stop(&h->pass, EPA_ERR_TIMEOUT))
            explain_timeout(h, why, &look);
        return false;
    }
    epa_wait_clear(h->a.observer, look.reported_ns);
    return true;
}

bool fused_await(struct fused_host *h, uint32_t worker, const uint64_t *word, uint64_t wanted,
                 const struct fused_wait *why)
{
    uint64_t begin;
    bool there;

    /* Acquire: as in wait_long(). */
    if (__atomic_load_n(word, __ATOMIC_ACQUIRE) >= wanted)
        return true;
    begin = epa_trace_now(h->a.trace);
    there = wait_long(h, worker, word, wanted, why);
    (void)epa_trace_slice(h->a.trace, worker, h->wait_name, begin,
                          why->peer == ALGO_NONE ? EPA_TRACE_NOBODY : why->peer, 0, 0);
    return there;
}

enum epa_status fused_complete_puts(struct fused_host *h)
{
    struct algo_room room = {0, 0};
    enum epa_status status;

    if (h->a.far == 0)
        return EPA_OK;
    do {
        status = issue_requests(h);
    } while (algo_again(&h->a, &status, &room));
    return status == EPA_OK ? h->a.t->ops->quiet(h->a.t) : status;
}
