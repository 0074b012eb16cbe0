/* Host code of ll_v1, over any transport: set-up, and why it is right.
 *
 * Dispatches count as calls 1, 2, 3... and so do combines, apart from them; all ranks make the
 * same calls in the same order. A call uses the buffers of its position, call mod 2, and its
 * signals carry its count.
 *
 * Two buffers are enough, whatever calls come in between. What call m of a mode writes at p, s
 * writes in call m of that mode: s has ended call m - 1, for which it waited for p; so p has
 * begun m - 1 and ended m - 2, the last that had this position, and what comes in a call is used
 * up before the call ends: dispatch copies rows and splits away, combine adds expert outputs up. Tokens
 * are read by p in place of being written there, with the same conclusion. With one buffer s,
 * back from call n, would write what p, in call n still, has not read. A dispatch that is given
 * up and a combine that is called again are calls like any other.
 *
 * The word of a source, mode and position takes n, n + 2, ... and never passes a rank that waits
 * for n: s raises n + 2 after p has begun n + 1. So == would do, as in the source; >= is what
 * all protocols here wait with.
 *
 * Rows by expert, starts and y belong to sets, of which a dispatch takes the first that no open
 * one has; its combine, or discard, gives it back. Rows are written and read by their rank
 * alone. Let dispatch m take the set that dispatch n had. p writes `starts` once DATA of m has
 * come from every s, and its experts write y later: s has begun dispatch m, so it has ended
 * combine n, in which it pulled both; and what p itself put from y was in place when the quiet()
 * at the end of combine n returned.
 *
 * quiet() ends each call: it lets go of what a transport holds back, for which peers would wait
 * while experts run, keeps the two SETs of a word apart, and frees what was put from. */
#include "ll_v1_host.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

uint64_t v1_now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

enum epa_status v1_fail(struct v1_host *h, enum epa_status status, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(h->last.text, sizeof(h->last.text), fmt, args);
    va_end(args);
    h->last.status = status;
    return status;
}

static void explain(struct epa_algorithm *a, struct epa_error *err)
{
    struct v1_host *h = v1_host_of(a);
    struct epa_error inner = {EPA_OK, ""};

    if (h->last.text[0] != 0) {
        (void)epa_fail(err, h->last.status, "%s, %s: %s", h->last.stage, h->last.phase,
                       h->last.text);
        return;
    }
    h->t->ops->explain(h->t, &inner);
    (void)epa_fail(err, inner.status, "%s, %s: call %llu, rank %u: %s", h->last.stage,
                   h->last.phase, (unsigned long long)h->last.call, h->last.peer,
                   inner.text);
}

/* The inverse of v1_signal_of(). */
static void wait_describe(const struct epa_algorithm *a, struct epa_wait_state *w)
{
    static const char *const what[] = {[V1_DISPATCH] = "rows", [V1_COMBINE] = "expert outputs"};
    const struct v1_host *h = (const struct v1_host *)(const void *)a;
    uint32_t mode = (w->number - h->signal) / (V1_POSITIONS * h->l.size);

    if (w->number < h->signal || mode >= sizeof(what) / sizeof(what[0]))
        return;
    w->peer = (w->number - h->signal) % h->l.size;
    w->what = what[mode];
}

static void set_free(struct v1_set *s)
{
    free(s->at);
    free(s->cumsum);
    free(s->count);
    free(s->offset);
    free(s->recv_count);
    free(s->recv_start);
}

static void destroy(struct epa_algorithm *a)
{
    struct v1_host *h = v1_host_of(a);

    if (h == NULL)
        return;
    set_free(&h->set[0]);
    set_free(&h->set[1]);
    free(h->tokens_of);
    free(h->next);
    free(h->outputs);
    free(h->move);
    free(h->moves);
    free(h->dest);
    free(h->seen);
    free(h);
}

/* Nothing of it is wanted: no signal, no wait. */
static enum epa_status discard(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct v1_host *h = v1_host_of(a);

    h->last.stage = h->last.phase = "discard";
    for (uint32_t i = 0; i < h->l.buffers; i++) {
        if (h->set[i].open && h->set[i].epoch == h->calls[V1_DISPATCH] &&
            h->set[i].epoch == problem->u.moe.epoch) {
            h->set[i].open = false;
            return EPA_OK;
        }
    }
    return v1_fail(h, EPA_ERR_CONFIG, "dispatch %llu is not the last, or not open any more",
                   (unsigned long long)problem->u.moe.epoch);
}

static bool set_alloc(const struct v1_layout *l, struct v1_set *s)
{
    s->at = calloc(l->max_tokens, l->topk * sizeof(*s->at));
    s->cumsum = calloc(l->experts + 1, sizeof(*s->cumsum));
    s->count = calloc(l->experts, sizeof(*s->count));
    s->offset = calloc(l->size, sizeof(*s->offset));
    s->recv_count = calloc(l->local, sizeof(*s->recv_count));
    s->recv_start = calloc(l->local, sizeof(*s->recv_start));
    return s->at != NULL && s->cumsum != NULL && s->count != NULL && s->offset != NULL &&
           s->recv_count != NULL && s->recv_start != NULL;
}

static bool host_alloc(struct v1_host *h)
{
    const struct v1_layout *l = &h->l;
    bool ok = true;

    for (uint32_t b = 0; b < l->buffers; b++)
        ok = set_alloc(l, &h->set[b]) && ok;
    h->tokens_of = calloc(l->experts, sizeof(*h->tokens_of));
    h->next = calloc(h->workers, l->experts * sizeof(*h->next));
    h->outputs = calloc(l->experts, sizeof(*h->outputs));
    h->move = calloc(l->rows, sizeof(*h->move));
    h->moves = calloc(l->size, sizeof(*h->moves));
    h->dest = calloc(l->rows, sizeof(*h->dest));
    h->seen = calloc(h->workers, l->max_tokens * sizeof(*h->seen));
    return ok && h->tokens_of != NULL && h->next != NULL && h->outputs != NULL &&
           h->move != NULL && h->moves != NULL && h->dest != NULL && h->seen != NULL;
}

/* A transport may give less than its plugin says it can; the layout counts on what was said. */
static enum epa_status check_heap(const struct epa_algorithm_params *p,
                                  const struct v1_layout *l, struct epa_error *err)
{
    const struct epa_transport *t = p->transport;

    if (p->heap + l->heap_bytes > t->heap_bytes)
        return epa_fail(err, EPA_ERR_CONFIG, "ll_v1: the heap of %llu bytes is too small",
                        (unsigned long long)t->heap_bytes);
    for (uint32_t r = 0; r < t->size && !l->puts; r++) {
        if (t->peer_heap[r] == NULL)
            return epa_fail(err, EPA_ERR_UNSUPPORTED,
                            "ll_v1: loads and stores do not reach rank %u, though the "
                            "transport said that they reach all",
                            r);
    }
    return EPA_OK;
}

/* Few rows stay in the caches near by, where a streaming store only costs; rows that no last
 * level cache holds are streamed; between the two it is tried out. */
static void choose_store(struct v1_host *h, int stores)
{
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    double rows = (double)h->world.local_size * h->l.max_tokens * h->l.topk;
    double share = rows * (double)(h->l.row_bytes + h->l.scales_bytes + h->l.output_bytes) /
                   (double)(cache > 0 ? cache : 32 << 20);

    h->store = stores == V1_NONTEMPORAL_ON || (stores == V1_NONTEMPORAL_AUTO && share > 1)
                   ? EPA_STORE_NONTEMPORAL
                   : EPA_STORE_CACHED;
    if (stores == V1_NONTEMPORAL_AUTO && share <= 1 && share > 1.0 / 16)
        h->trial.left = 2 * V1_TRIALS;
}

static void count_worker(void *arg, uint32_t worker, uint32_t workers)
{
    if (worker == 0)
        *(uint32_t *)arg = workers;
}

static const struct epa_stage stages[] = {
    {"dispatch", EPA_STAGE_DISPATCH, v1_dispatch},
    {"combine", EPA_STAGE_COMBINE, v1_combine},
};

enum epa_status v1_host_create(const struct epa_algorithm_params *p,
                               const struct v1_layout *l, struct epa_algorithm **out,
                               struct epa_error *err)
{
    struct v1_host *h = calloc(1, sizeof(*h));
    const struct v1_config *config = p->config;
    enum epa_status status;

    if (h == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "ll_v1: no memory");
    *h = (struct v1_host){
        .base = {.stages = stages,
                 .n_stages = sizeof(stages) / sizeof(stages[0]),
                 .discard = discard,
                 .combines_again = true,
                 .wait_describe = wait_describe,
                 .explain = explain,
                 .destroy = destroy},
        .l = *l,
        .world = p->world,
        .t = p->transport,
        .backend = p->backend,
        .kernels = epa_kernels_get((enum epa_dtype)p->problem->u.moe.dtype, NULL),
        .heap = p->heap,
        .signal = p->signal,
        .timeout_ns = p->timeout_ns,
        .trace = p->trace,
        .last = {.stage = "create", .phase = "create"},
    };
    choose_store(h, config->nontemporal);
    status = p->backend->ops->parallel(p->backend, count_worker, &h->workers);
    if (status == EPA_OK && !host_alloc(h))
        status = epa_fail(err, EPA_ERR_NOMEM,
                          "ll_v1: no memory for the places of %u tokens and %llu rows",
                          l->max_tokens, (unsigned long long)l->rows);
    if (status == EPA_OK)
        status = check_heap(p, l, err);
    if (status != EPA_OK) {
        destroy(&h->base);
        return status;
    }
    for (uint32_t e = 0; e < l->experts; e++)
        h->tokens_of[e] = v1_splits_to(l, e / l->local + 1, 0);
    for (uint32_t r = 0; r < l->size; r++)
        h->far = h->far || way_to(h, r) == V1_PUT;
    *out = &h->base;
    return EPA_OK;
}
