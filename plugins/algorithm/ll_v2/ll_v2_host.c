/* ll_v2 on hosts: the protocol, set-up, and the calls that wait.
 *
 * Ranks tell each other how many rows they have for whom; from then on each knows where its
 * rows stand at every receiver and stores them there, quantised on the way. Combine pulls
 * the expert outputs from where the experts wrote them and adds them up. Peers that loads and
 * stores do not reach get the same messages by puts, from a staging copy, and send the
 * expert outputs back by puts; the last put to a peer brings the signal. With `once` in layout expert
 * rows come to `arrival` and their receiver copies them to its experts; what it expert outputs stands
 * in `outbox`, as do expert outputs that are quantised.
 *
 * Dispatch and combine end with quiet(): what a transport holds back of them would else reach
 * peers when this rank next calls it, and experts may take long. It takes no longer than the
 * wait before it and the way back, and what was put may be written again after it.
 *
 * Dispatches count as epochs 1, 2, 3... and signals carry the epoch. A dispatch takes the
 * first buffer set that no open one has; its combine gives it back. All ranks make the same
 * calls in the same order, so they agree on the set without a word. There is no barrier: let
 * epoch m take the set that epoch n had, n < m, combine n called before dispatch m. Then
 *   - rows of m are written at p after COUNT m of p is seen, so p has entered dispatch m, and
 *     has done its experts and combine of n before;
 *   - expert outputs of m are written at p after its dispatch m has ended, so every rank has
 *     entered that one, and has pulled or used the expert outputs of n before;
 *   - `arrival` is written as rows are, and p has read the choices in it for the last time in
 *     its combine n; rows copied out of it p writes itself, after that;
 *   - rows that a combine n reads at p (fuse_expert: true) are read before its rank enters dispatch
 *     m, and tells COUNT m, without which nobody writes rows of m;
 *   - `outbox` p writes itself, in combine m: every rank has entered dispatch m by then, as
 *     p has its DATA, and so has pulled the expert outputs of n; where they were put, the quiet() at
 *     the end of combine n has seen them arrive, as that of dispatch n has what was staged;
 *   - counts of m are written at p by a rank that has ended dispatch m - 1, so p has sent
 *     DATA m - 1, and copied the counts of n long before.
 * With two sets one dispatch may run ahead: D1 D2 C1 D3 C2 ... Combines come in the order of
 * dispatches: each kind of signal is one word a source, and the expert outputs of a later epoch would
 * pass for those of an earlier one. */
#include "ll_v2_host.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const phase_name[LL_PHASES] = {
    [LL_DO_CREATE] = "create",
    [LL_DO_COUNT_PUT] = "count_put",
    [LL_DO_QUANT_AND_PUT] = "quant_and_put",
    [LL_DO_WAIT] = "wait",
    [LL_DO_QUIET] = "quiet",
    [LL_DO_POSTPROCESS] = "postprocess",
    [LL_DO_COPY_AND_PUT] = "copy_and_put",
    [LL_DO_RECV_WAIT] = "recv_wait",
    [LL_DO_TOPK_REDUCE] = "topk_reduce",
};
static const char *const wait_name[LL_SIGNALS] = {
    [LL_COUNT] = "counts_from", [LL_DATA] = "rows_from", [LL_OUTPUT] = "answers_from"};

uint64_t ll_now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

enum epa_status ll_fail(struct ll_host *h, enum epa_status status, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(h->last.text, sizeof(h->last.text), fmt, args);
    va_end(args);
    h->last.status = status;
    return status;
}

bool ll_again(struct ll_host *h, enum epa_status *status, uint64_t *deadline)
{
    if (*status != EPA_AGAIN)
        return false;
    *status = h->t->ops->progress(h->t);
    if (*status != EPA_OK)
        return false;
    if (*deadline == 0)
        *deadline = ll_now_ns() + h->timeout_ns;
    if (ll_now_ns() > *deadline) {
        *status = ll_fail(h, EPA_ERR_TIMEOUT,
                          "for %.3f s the transport had no room for what goes to rank %u",
                          (double)h->timeout_ns * 1e-9, h->last.peer);
        return false;
    }
    return true;
}

/* Puts what there is and tells the peer with it, after all that was put to it before. */
static enum epa_status put_and_signal(struct ll_host *h, enum ll_signal kind, uint64_t epoch,
                                    uint64_t dst, const void *src, size_t bytes,
                                    uint32_t peer)
{
    uint32_t word = signal_of(h, kind, h->world.rank);
    enum epa_status status = h->t->ops->fence(h->t, peer);
    uint64_t deadline = 0;

    if (status != EPA_OK)
        return status;
    epa_trace_flow_begin(h->trace, 0, peer, word, epoch);
    do {
        if (bytes == 0)
            status = h->t->ops->signal(h->t, word, epoch, EPA_SIGNAL_SET, peer);
        else
            status = epa_put_signal(h->t, dst, src, bytes, word, epoch, peer);
    } while (ll_again(h, &status, &deadline));
    return status;
}

enum epa_status ll_put(struct ll_host *h, enum ll_signal kind, uint64_t epoch, uint64_t dst,
                       const void *src, uint32_t rows, uint32_t peer)
{
    size_t bytes = rows * (kind == LL_DATA ? h->l.message_bytes : h->l.sent_bytes);
    enum epa_status status;
    uint64_t deadline = 0;

    h->last.peer = peer;
    h->left[peer] -= rows;
    if (h->left[peer] == 0) {
        h->reported |= 1ull << peer;
        return put_and_signal(h, kind, epoch, dst, src, bytes, peer);
    }
    do {
        status = epa_put(h->t, dst, src, bytes, peer);
    } while (ll_again(h, &status, &deadline));
    return status;
}

enum epa_status ll_signal(struct ll_host *h, enum ll_signal kind, uint64_t epoch)
{
    enum epa_status status = EPA_OK;

    for (uint32_t i = 1; i < h->l.size && status == EPA_OK; i++) {
        h->last.peer = peer_at(h, i);
        if ((h->reported >> h->last.peer & 1) == 0)
            status = put_and_signal(h, kind, epoch, 0, NULL, 0, h->last.peer);
    }
    h->reported = 0;
    return status;
}

enum epa_status ll_wait(struct ll_host *h, enum ll_signal kind, uint64_t epoch)
{
    uint64_t begin = epa_trace_now(h->trace), end;
    enum epa_status status = EPA_OK;

    h->last.signal = kind;
    for (uint32_t i = 1; i < h->l.size && status == EPA_OK; i++, begin = end) {
        uint32_t peer = peer_at(h, i), word = signal_of(h, kind, peer);

        h->last.peer = peer;
        status = epa_wait(h->t, word, epoch, h->timeout_ns);
        end = epa_trace_slice(h->trace, 0, h->notes.from[kind], begin, peer, 0, 0);
        if (status == EPA_OK)
            epa_trace_flow_end(h->trace, 0, begin, end, peer, word, epoch);
    }
    return status;
}

enum epa_status ll_wait_and_leave(struct ll_host *h, enum ll_signal kind, uint64_t epoch)
{
    enum epa_status status = ll_wait(h, kind, epoch);

    return ll_phase(h, status, LL_DO_QUIET) ? h->t->ops->quiet(h->t) : status;
}

static const char *const signal_name[LL_SIGNALS] = {
    [LL_COUNT] = "counts", [LL_DATA] = "rows", [LL_OUTPUT] = "expert outputs"};

/* The inverse of signal_of(). */
static void wait_describe(const struct epa_algorithm *a, struct epa_wait_state *w)
{
    const struct ll_host *h = (const struct ll_host *)(const void *)a;
    uint32_t kind = (w->number - h->signal) / h->l.size;

    if (w->number < h->signal || kind >= LL_SIGNALS)
        return;
    w->peer = (w->number - h->signal) % h->l.size;
    w->what = signal_name[kind];
}

static void explain(struct epa_algorithm *a, struct epa_error *err)
{
    struct ll_host *h = host_of(a);
    struct epa_error inner = {EPA_OK, ""};

    if (h->last.text[0] != 0) {
        (void)epa_fail(err, h->last.status, "%s, %s: %s", h->last.stage,
                       phase_name[h->last.phase], h->last.text);
        return;
    }
    h->t->ops->explain(h->t, &inner);
    (void)epa_fail(err, inner.status, "%s, %s: epoch %llu, %s of rank %u: %s",
                   h->last.stage, phase_name[h->last.phase], (unsigned long long)h->epoch,
                   signal_name[h->last.signal], h->last.peer, inner.text);
}

static void set_free(struct ll_set *s)
{
    free(s->place);
    free(s->entry);
    free(s->count);
    free(s->recv_count);
    free(s->recv_start);
    free(s->recv_row);
    free(s->recv_weight);
}

static void destroy(struct epa_algorithm *a)
{
    struct ll_host *h = host_of(a);

    if (h == NULL)
        return;
    set_free(&h->set[0]);
    set_free(&h->set[1]);
    free(h->rank_of);
    free(h->sum);
    free(h->next);
    free(h->next_row);
    free(h->next_output);
    free(h->block);
    free(h->left);
    free(h->scratch);
    free(h->sums);
    free(h);
}

static bool set_alloc(const struct ll_layout *l, struct ll_set *s)
{
    size_t tokens = l->max_tokens;

    s->place = calloc(tokens * l->places, sizeof(*s->place));
    s->count = calloc(l->size, l->count_words * sizeof(*s->count));
    s->recv_count = calloc(l->local, sizeof(*s->recv_count));
    s->recv_start = calloc(l->local, sizeof(*s->recv_start));
    if (l->dedup)
        s->entry = calloc(tokens * l->topk, sizeof(*s->entry));
    if (l->by_rank) {
        s->recv_row = calloc(l->entries, sizeof(*s->recv_row));
        s->recv_weight = calloc(l->entries, sizeof(*s->recv_weight));
    }
    return s->place != NULL && s->count != NULL && s->recv_count != NULL &&
           s->recv_start != NULL && (!l->dedup || s->entry != NULL) &&
           (!l->by_rank || (s->recv_row != NULL && s->recv_weight != NULL));
}

/* A transport may give less than its plugin says it can; the layout counts on what was said. */
static enum epa_status check_heap(const struct epa_algorithm_params *p,
                                  const struct ll_layout *l, struct epa_error *err)
{
    const struct epa_transport *t = p->transport;

    if (p->heap + l->heap_bytes > t->heap_bytes)
        return epa_fail(err, EPA_ERR_CONFIG, "ll_v2: the heap of %llu bytes is too small",
                        (unsigned long long)t->heap_bytes);
    for (uint32_t r = 0; r < t->size && !l->puts; r++) {
        if (t->peer_heap[r] == NULL)
            return epa_fail(err, EPA_ERR_UNSUPPORTED,
                            "ll_v2: loads and stores do not reach rank %u, though the "
                            "transport said that they reach all",
                            r);
    }
    return EPA_OK;
}

static void count_worker(void *arg, uint32_t worker, uint32_t workers)
{
    if (worker == 0)
        *(uint32_t *)arg = workers;
}

static bool host_alloc(struct ll_host *h)
{
    const struct ll_layout *l = &h->l;
    bool ok = true;

    for (uint32_t b = 0; b < l->buffers; b++)
        ok = set_alloc(l, &h->set[b]) && ok;
    h->rank_of = calloc(l->experts, sizeof(*h->rank_of));
    h->sum = calloc(l->experts, sizeof(*h->sum));
    h->next = calloc(l->experts, sizeof(*h->next));
    h->next_row = calloc(l->size, sizeof(*h->next_row));
    h->next_output = calloc(l->experts, sizeof(*h->next_output));
    h->block = calloc(l->experts, sizeof(*h->block));
    h->left = calloc(l->size, sizeof(*h->left));
    h->scratch = aligned_alloc(4096, (h->workers * l->message_bytes + 4095) / 4096 * 4096);
    if (h->scratch != NULL)
        memset(h->scratch, 0, h->workers * l->message_bytes);
    if (ll_sums(l) != 0)
        h->sums = calloc((size_t)h->workers * ll_sums(l), l->output_bytes);
    return ok && (ll_sums(l) == 0 || h->sums != NULL) && h->rank_of != NULL &&
           h->sum != NULL && h->next != NULL && h->next_row != NULL &&
           h->next_output != NULL && h->block != NULL && h->left != NULL &&
           h->scratch != NULL;
}

/* Few rows stay in the caches near by, where a streaming store only costs; rows that no last
 * level cache holds are streamed; between the two it is tried out. */
static void choose_store(struct ll_host *h, int stores)
{
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    double rows = (double)h->world.local_size * h->l.max_tokens * h->l.places;
    double share = rows * (double)(h->l.message_bytes + h->l.output_bytes) /
                   (double)(cache > 0 ? cache : 32 << 20);

    h->store = stores == LL_NONTEMPORAL_ON || (stores == LL_NONTEMPORAL_AUTO && share > 1)
                   ? EPA_STORE_NONTEMPORAL
                   : EPA_STORE_CACHED;
    if (stores == LL_NONTEMPORAL_AUTO && share <= 1 && share > 1.0 / 16)
        h->trial.left = 2 * LL_TRIALS;
}

static void name_notes(struct ll_host *h)
{
    for (uint32_t i = LL_DO_CREATE + 1; i < LL_PHASES; i++)
        h->notes.phase[i] = epa_trace_name(h->trace, phase_name[i]);
    h->notes.rows = epa_trace_name(h->trace, "rows");
    for (uint32_t i = 0; i < LL_SIGNALS; i++)
        h->notes.from[i] = epa_trace_name(h->trace, wait_name[i]);
}

enum epa_status ll_host_create(const struct epa_algorithm_params *p,
                               const struct ll_layout *l, struct epa_algorithm **out,
                               struct epa_error *err)
{
    struct ll_host *h = calloc(1, sizeof(*h));
    const struct ll_config *config = p->config;
    enum epa_status status;

    if (h == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "ll_v2: no memory");
    *h = (struct ll_host){
        .base = {.stages = ll_host_stages,
                 .n_stages = 2,
                 .wait_describe = wait_describe,
                 .explain = explain,
                 .destroy = destroy},
        .l = *l,
        .world = p->world,
        .t = p->transport,
        .backend = p->backend,
        .kernels = epa_kernels_get(l->dtype, NULL),
        .heap = p->heap,
        .signal = p->signal,
        .timeout_ns = p->timeout_ns,
        .trace = p->trace,
        .last = {.stage = "create", .phase = LL_DO_CREATE},
    };
    name_notes(h);
    choose_store(h, config->nontemporal);
    status = p->backend->ops->parallel(p->backend, count_worker, &h->workers);
    if (status == EPA_OK && !host_alloc(h))
        status = epa_fail(err, EPA_ERR_NOMEM,
                          "ll_v2: no memory for the places of %u tokens", l->max_tokens);
    if (status == EPA_OK)
        status = check_heap(p, l, err);
    if (status != EPA_OK) {
        destroy(&h->base);
        return status;
    }
    for (uint32_t e = 0; e < l->experts; e++)
        h->rank_of[e] = (uint8_t)(e / l->local);
    for (uint32_t r = 0; r < l->size; r++)
        h->far += !reachable(h, r);
    *out = &h->base;
    return EPA_OK;
}

const struct epa_stage ll_host_stages[2] = {
    {"dispatch", EPA_STAGE_DISPATCH, ll_dispatch},
    {"combine", EPA_STAGE_COMBINE, ll_combine},
};
