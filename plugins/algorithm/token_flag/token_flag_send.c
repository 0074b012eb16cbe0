/* dispatch_send: every flat token to the buffer that its expert's rank has for this one. With
 * flag_granularity: token counts go first, with flag_granularity: rank they come last and are the flag. */
#include "token_flag_host.h"

#include <string.h>

/* ---- counts ---- */

/* For every rank, how this one's rows come to it and how many there are for each expert. */
static void count_rows(const struct tf_host *h, const struct epa_moe *m)
{
    uint32_t choices = m->tokens * h->l.topk;

    memset(reported_to(h, 0), 0, (size_t)h->l.size * h->l.count_words * sizeof(uint32_t));
    for (uint32_t r = 0; r < h->l.size; r++)
        reported_to(h, r)[0] = reachable(h, r) ? TF_STORED : TF_PUT;
    for (uint32_t i = 0; i < choices; i++) {
        if (m->expert[i] >= 0) {
            uint32_t e = (uint32_t)m->expert[i], r = h->rank_of[e];

            reported_to(h, r)[1 + e - r * h->l.local]++;
        }
    }
}

static uint32_t rows_for(const struct tf_host *h, uint32_t rank)
{
    const uint32_t *reported = reported_to(h, rank);
    uint32_t rows = 0;

    for (uint32_t e = 0; e < h->l.local; e++)
        rows += reported[1 + e];
    return rows;
}

/* Counts, and the flag that says them. flag_granularity: rank: after all rows. */
static enum epa_status tell(struct tf_host *h, const struct tf_set *s, bool after_rows)
{
    uint64_t bytes = h->l.count_words * sizeof(uint32_t);
    uint32_t me = h->world.rank;
    enum epa_status status = EPA_OK;

    for (uint32_t i = 1; i < h->l.size && status == EPA_OK; i++) {
        uint32_t p = peer_at(h, i);

        if (after_rows)
            status = h->t->ops->fence(h->t, p);
        if (status == EPA_OK)
            status = tf_put_signal(h, counts_offset(h, s->epoch, me), reported_to(h, p), bytes,
                                   tf_count_signal(&h->l, s->epoch, me),
                                   tf_count_flag(s->epoch, rows_for(h, p)), p);
    }
    return status;
}

/* ---- rows ---- */

static void write_token(const struct tf_task *task, uint32_t t, const uint16_t *next,
                        char *msg)
{
    const struct tf_layout *l = &task->h->l;
    const struct epa_moe *m = task->m;
    float *scale = (float *)(void *)(msg + l->scales_at);
    uint32_t groups = l->fp8 ? l->hidden / l->group : 0; /* group may be 0 without */

    if (!l->fp8) {
        memcpy(msg, (const uint16_t *)m->x + (size_t)t * l->hidden, l->token_bytes);
    } else if (m->x_dtype == EPA_FP8_E4M3) {
        memcpy(msg, m->x_fp8 + (size_t)t * l->hidden, l->hidden);
        memcpy(scale, m->x_scale + (size_t)t * groups, groups * sizeof(*scale));
    } else {
        task->h->kernels->quantise((const uint16_t *)m->x + (size_t)t * l->hidden,
                                   l->hidden, l->group, next, (uint8_t *)msg, scale);
    }
}

static char *staging_at(const struct tf_host *h, uint32_t t, uint32_t k)
{
    return h->t->heap + h->heap + h->l.staging_at +
           ((uint64_t)t * h->l.topk + k) * h->l.message_bytes;
}

/* The last line of a message, whose token stands at `to` but for that: its end, and what it
 * is. */
static void end_message(const struct tf_host *h, char *to, const char *msg,
                        const struct tf_meta *meta)
{
    uint64_t at = h->l.message_bytes - TF_LINE;

    memcpy(to + at, msg + at, h->l.meta_at - at);
    memcpy(to + h->l.meta_at, meta, offsetof(struct tf_meta, flag));
}

/* Token t, quantised once, to all of its choices. */
static void send_token(const struct tf_task *task, uint32_t t, const uint16_t *next,
                       char *msg)
{
    const struct tf_host *h = task->h;
    const struct tf_layout *l = &h->l;
    const int32_t *expert = task->m->expert + (size_t)t * l->topk;
    uint32_t me = h->world.rank, n = 0;
    void *to[TF_TOPK], *stored[TF_TOPK];
    uint32_t n_stored = 0;

    write_token(task, t, next, msg);
    for (uint32_t k = 0; k < l->topk; k++) {
        struct tf_meta meta = {.origin = {me, t}, .k = (uint16_t)k};
        uint32_t rank;

        if (expert[k] < 0)
            continue;
        rank = h->rank_of[expert[k]];
        meta.expert = (uint16_t)((uint32_t)expert[k] - rank * l->local);
        /* Relaxed: only the number matters. */
        meta.row = __atomic_fetch_add(&h->sent[rank], 1, __ATOMIC_RELAXED);
        to[n] = staging_at(h, t, k);
        if (reachable(h, rank))
            stored[n_stored++] = to[n] =
                heap_at(h, rank, comm_offset(h, task->set, me, meta.row));
        end_message(h, to[n++], msg, &meta);
    }
    h->kernels->spread(to, n, msg, l->message_bytes - TF_LINE, h->store);
    if (!l->by_token)
        return;
    if (h->store == EPA_STORE_NONTEMPORAL)
        epa_store_drain();
    for (uint32_t i = 0; i < n_stored; i++) {
        /* Release: pairs with the acquire of has_arrived(); the row is in place. */
        __atomic_store_n(&meta_of(h, stored[i])->flag, task->set->epoch, __ATOMIC_RELEASE);
    }
}

static void send_tokens(void *arg, uint32_t worker, uint32_t workers)
{
    struct tf_task *task = arg;
    struct tf_host *h = task->h;
    uint64_t n = task->end - task->begin;
    uint32_t t = (uint32_t)(task->begin + n * worker / workers);
    uint32_t end = (uint32_t)(task->begin + n * (worker + 1) / workers);
    enum epa_status status = EPA_OK;

    if (worker == 0 && task->resets)
        memset(h->taken, 0, h->l.local * sizeof(*h->taken));
    if (worker == 0 && task->tells) {
        count_rows(h, task->m);
        status = tell(h, task->set, false);
    }
    if (status != EPA_OK)
        (void)tf_stop(task, status, h->last.what, h->last.peer, h->last.row);
    for (; t < end && status == EPA_OK; t++) {
        const uint16_t *next = NULL;

        if (task->m->x != NULL && t + 1 < end)
            next = (const uint16_t *)task->m->x + (size_t)(t + 1) * h->l.hidden;
        send_token(task, t, next, h->scratch + worker * h->l.message_bytes);
    }
    if (h->store == EPA_STORE_NONTEMPORAL)
        epa_store_drain();
}

/* What was just made in staging leaves. */
static enum epa_status put_rows(const struct tf_task *task)
{
    struct tf_host *h = task->h;
    uint32_t me = h->world.rank;
    enum epa_status status = EPA_OK;

    for (uint64_t i = task->begin * h->l.topk; i < task->end * h->l.topk; i++) {
        uint32_t t = (uint32_t)(i / h->l.topk), k = (uint32_t)(i % h->l.topk);
        char *msg = staging_at(h, t, k);
        uint32_t row = meta_of(h, msg)->row, rank;
        uint64_t dst = comm_offset(h, task->set, me, row);

        if (task->m->expert[i] < 0)
            continue;
        rank = h->rank_of[task->m->expert[i]];
        if (reachable(h, rank))
            continue;
        if (h->l.by_token)
            status = tf_put_signal(h, dst, msg, h->l.message_bytes,
                                   tf_row_signal(&h->l, set_number(h, task->set), me, row),
                                   task->set->epoch, rank);
        else
            status = tf_put(h, dst, msg, h->l.message_bytes, rank);
        if (status != EPA_OK)
            return status;
    }
    return h->t->ops->progress(h->t); /* peers may wait for room here while more are made */
}

/* The tokens from `begin` to `end`; those that are put leave a slice at a time. */
static enum epa_status send_chunk(struct tf_task *task, uint32_t begin, uint32_t end)
{
    const struct tf_host *h = task->h;
    uint32_t slice = end - begin, row = (uint32_t)h->l.message_bytes * h->l.topk;
    enum epa_status status = EPA_OK;

    if (h->far != 0)
        slice = 1 + TF_SLICE_BYTES / row;
    task->end = begin;
    do { /* once at least: somebody has to tell */
        task->begin = task->end;
        task->end = end - task->begin > slice ? task->begin + slice : end;
        status = tf_parallel(task, send_tokens);
        task->tells = task->resets = false;
        if (status == EPA_OK && h->far != 0)
            status = put_rows(task);
    } while (task->end < end && status == EPA_OK);
    return status;
}

/* ---- dispatch_send ---- */

static void clear_counters(void *arg, uint32_t worker, uint32_t workers)
{
    struct tf_task *task = arg;
    struct tf_host *h = task->h;
    size_t from = (size_t)h->l.size * worker / workers;
    size_t to = (size_t)h->l.size * (worker + 1) / workers;

    memset(h->sent + from, 0, (to - from) * sizeof(*h->sent));
    from = (size_t)h->l.local * worker / workers;
    to = (size_t)h->l.local * (worker + 1) / workers;
    memset(h->taken + from, 0, (to - from) * sizeof(*h->taken));
}

/* Every rank makes the same calls in the same order, so all take the same set. The first that
 * is free: who combines before the next dispatch stays in one set, and in the cache. */
static struct tf_set *take_set(struct tf_host *h)
{
    struct tf_set *free_one = NULL;

    for (uint32_t i = h->l.buffers; i-- > 0;) {
        if (h->set[i].state == TF_SENT) {
            (void)tf_fail(
                h, EPA_ERR_CONFIG,
                "dispatch %llu has been sent and not received: call dispatch_recv",
                (unsigned long long)h->set[i].epoch);
            return NULL;
        }
        if (h->set[i].state == TF_FREE)
            free_one = &h->set[i];
    }
    if (free_one == NULL) {
        (void)tf_fail(
            h, EPA_ERR_CONFIG,
            "%u dispatches are open, as many as there are buffer sets: combine one first",
            h->l.buffers);
        return NULL;
    }
    free_one->state = TF_SENT;
    free_one->epoch = ++h->epoch;
    return free_one;
}

static enum epa_status send_chunks(struct tf_task *task)
{
    struct tf_host *h = task->h;
    uint64_t tokens = task->m->tokens, chunks = h->l.chunks;
    enum epa_status status = EPA_OK;

    for (uint64_t i = 0; i < chunks && status == EPA_OK; i++) {
        uint32_t begin = (uint32_t)(tokens * i / chunks);
        uint32_t end = (uint32_t)(tokens * (i + 1) / chunks);

        if (begin == end && i != 0)
            continue;
        status = send_chunk(task, begin, end);
        if (status == EPA_OK && i + 1 < chunks)
            status = tf_take_some(h, task->set, task->m);
    }
    return status;
}

enum epa_status tf_dispatch_send(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct tf_host *h = host_of(a);
    struct epa_moe *m = &problem->u.moe;
    struct tf_task task;
    enum epa_status status = EPA_OK;

    h->last.stage = "dispatch_send";
    h->last.phase = "rows";
    task = (struct tf_task){.h = h, .set = take_set(h), .m = m};
    if (task.set == NULL)
        return EPA_ERR_CONFIG;
    m->epoch = task.set->epoch;
    h->counted = false;
    task.tells = h->l.by_token;
    task.resets = h->l.folded;
    if (!h->l.folded)
        status = tf_parallel(&task, clear_counters);
    if (status == EPA_OK)
        status = send_chunks(&task);
    if (tf_phase(h, status, "counts") && !h->l.by_token) {
        count_rows(h, m);
        status = tell(h, task.set, true);
    }
    return tf_phase(h, status, "quiet") ? h->t->ops->quiet(h->t) : status;
}
