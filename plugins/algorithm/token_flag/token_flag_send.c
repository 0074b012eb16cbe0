/* token_flag on hosts: dispatch_send. Writes a message for each flat token and sends counts. */
#include "token_flag_send.h"

#include "token_flag_pass.h"
#include "token_flag_recv.h"

/* ---- counts ---- */

/* Counts, for every rank, the rows for each of its experts, and notes how rows reach the rank. */
static void count_rows(const struct tf_host *h, const struct epa_moe *m)
{
    uint32_t choices = m->tokens * h->l.topk;

    memset(reported_to(h, 0), 0, (size_t)h->l.size * h->l.count_words * sizeof(uint32_t));
    for (uint32_t r = 0; r < h->l.size; r++)
        reported_to(h, r)[0] = algo_reachable(&h->a, r) ? TF_STORED : TF_PUT;
    for (uint32_t i = 0; i < choices; i++) {
        if (m->expert[i] >= 0) {
            uint32_t e = (uint32_t)m->expert[i], r = h->a.rank_of[e];

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

/* Sends counts with their flag. With flag_granularity: rank, they follow all rows. */
static enum epa_status send_counts(struct tf_host *h, const struct algo_set *s, bool after_rows)
{
    uint64_t bytes = h->l.count_words * sizeof(uint32_t);
    uint32_t me = h->a.world.rank;
    enum epa_status status = EPA_OK;

    for (uint32_t i = 1; i < h->l.size && status == EPA_OK; i++) {
        uint32_t p = algo_peer(&h->a, i);

        if (after_rows)
            status = h->a.t->ops->fence(h->a.t, p);
        epa_trace_flow_begin(h->a.trace, 0, p, h->a.signal + tf_count_signal(&h->l, s->epoch, me),
                             tf_count_flag(s->epoch, 0));
        if (status == EPA_OK)
            status = algo_put_signal(&h->a, counts_offset(h, s->epoch, me), reported_to(h, p),
                                     bytes, tf_count_signal(&h->l, s->epoch, me),
                                     tf_count_flag(s->epoch, rows_for(h, p)), p);
    }
    return status;
}

/* ---- rows ---- */

static char *staging_at(const struct tf_host *h, uint32_t t, uint32_t k)
{
    return h->a.t->heap + h->a.heap + h->l.staging_at +
           ((uint64_t)t * h->l.topk + k) * h->l.message_bytes;
}

/* Completes a message at `to`, which has all lines but the last: copies the rest of the payload and
 * writes the META. */
static void end_message(const struct tf_host *h, char *to, const char *msg,
                        const struct tf_meta *meta)
{
    uint64_t at = h->l.message_bytes - TF_LINE;

    memcpy(to + at, msg + at, h->l.meta_at - at);
    memcpy(to + h->l.meta_at, meta, offsetof(struct tf_meta, flag));
}

/* Quantises token t once and writes a message for each of its choices. */
static void send_token(const struct tf_task *task, uint32_t t, uint32_t end, uint32_t worker)
{
    const struct tf_host *h = task->h;
    const struct tf_layout *l = &h->l;
    const int32_t *expert = task->m->expert + (size_t)t * l->topk;
    uint32_t me = h->a.world.rank, n = 0;
    char *msg = h->scratch + worker * l->message_bytes;
    void *to[TF_TOPK], *stored[TF_TOPK];
    uint32_t n_stored = 0;

    epa_write_token(h->a.kernels, task->m, l->fp8, t, end, msg, msg + l->scales_at);
    for (uint32_t k = 0; k < l->topk; k++) {
        struct tf_meta meta = {.origin = {me, t}, .k = (uint16_t)k};
        uint32_t rank;

        if (expert[k] < 0)
            continue;
        rank = h->a.rank_of[expert[k]];
        meta.expert = (uint16_t)((uint32_t)expert[k] - rank * l->local);
        /* Relaxed: only the value is used. */
        meta.row = __atomic_fetch_add(&h->sent[rank], 1, __ATOMIC_RELAXED);
        to[n] = staging_at(h, t, k);
        if (algo_reachable(&h->a, rank))
            stored[n_stored++] = to[n] =
                algo_at(&h->a, rank, comm_offset(h, task->set, me, meta.row));
        end_message(h, to[n++], msg, &meta);
        if (l->by_token && rank != me)
            epa_trace_flow_begin(h->a.trace, worker, rank, row_arrow(h, task->set, meta.row),
                                 task->set->epoch);
    }
    h->a.kernels->spread(to, n, msg, l->message_bytes - TF_LINE, h->a.store);
    if (!l->by_token)
        return;
    algo_drain(h->a.store);
    for (uint32_t i = 0; i < n_stored; i++) {
        /* Release: pairs with the acquire of has_arrived(). The row is complete. */
        __atomic_store_n(&meta_of(h, stored[i])->flag, task->set->epoch, __ATOMIC_RELEASE);
    }
}

static void send_tokens(void *arg, uint32_t worker, uint32_t workers)
{
    struct tf_task *task = arg;
    struct tf_host *h = task->h;
    uint64_t n = task->end - task->begin;
    uint32_t first = (uint32_t)(task->begin + n * worker / workers), t = first;
    uint32_t end = (uint32_t)(task->begin + n * (worker + 1) / workers);
    uint64_t began = epa_trace_now(h->a.trace);
    enum epa_status status = EPA_OK;

    if (worker == 0 && task->resets)
        memset(h->taken, 0, (size_t)h->l.size * h->l.local * sizeof(*h->taken));
    if (worker == 0 && task->counts) {
        count_rows(h, task->m);
        status = send_counts(h, task->set, false);
    }
    if (status != EPA_OK)
        (void)tf_stop_pass(task, status, h->a.last.what, h->a.last.peer, h->a.last.row);
    for (uint64_t begin = began; t < end && status == EPA_OK; t++) {
        send_token(task, t, end, worker);
        begin = epa_trace_slice(h->a.trace, worker, h->name[TF_SEND_TOKEN], begin, EPA_TRACE_NOBODY,
                                0, 1);
    }
    algo_drain(h->a.store);
    algo_worked(&h->a, worker, workers, began, end - first);
}

/* Puts the messages of tokens `begin` to `end` from staging. */
static enum epa_status put_rows(const struct tf_task *task)
{
    struct tf_host *h = task->h;
    uint32_t me = h->a.world.rank;
    enum epa_status status = EPA_OK;

    for (uint64_t i = task->begin * h->l.topk; i < task->end * h->l.topk; i++) {
        uint32_t t = (uint32_t)(i / h->l.topk), k = (uint32_t)(i % h->l.topk);
        char *msg = staging_at(h, t, k);
        uint32_t row = meta_of(h, msg)->row, rank;
        uint64_t dst = comm_offset(h, task->set, me, row);

        if (task->m->expert[i] < 0)
            continue;
        rank = h->a.rank_of[task->m->expert[i]];
        if (algo_reachable(&h->a, rank))
            continue;
        if (h->l.by_token)
            status = algo_put_signal(&h->a, dst, msg, h->l.message_bytes,
                                     tf_row_signal(&h->l, task->set->index, me, row),
                                     task->set->epoch, rank);
        else
            status = algo_put(&h->a, dst, msg, h->l.message_bytes, rank);
        if (status != EPA_OK)
            return status;
    }
    return h->a.t->ops->progress(h->a.t); /* frees room for which peers may wait */
}

/* Sends the tokens from `begin` to `end`. Messages for puts are written and put in slices. */
static enum epa_status send_chunk(struct tf_task *task, uint32_t begin, uint32_t end)
{
    const struct tf_host *h = task->h;
    uint32_t slice = end - begin, row = (uint32_t)h->l.message_bytes * h->l.topk;
    enum epa_status status = EPA_OK;

    if (h->a.far != 0)
        slice = 1 + ALGO_SLICE_BYTES / row;
    task->end = begin;
    do { /* at least once, since send_tokens() also sends counts */
        task->begin = task->end;
        task->end = end - task->begin > slice ? task->begin + slice : end;
        status = tf_run_pass(task, send_tokens);
        task->counts = task->resets = false;
        if (status == EPA_OK && h->a.far != 0)
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
    from *= h->l.local;
    to *= h->l.local;
    memset(h->taken + from, 0, (to - from) * sizeof(*h->taken));
}

/* Returns the set for the next dispatch, or NULL with an error message. */
static struct algo_set *take_set(struct tf_host *h)
{
    for (uint32_t i = 0; i < h->l.buffers; i++) {
        if (h->a.set[i]->state != TF_SENT)
            continue;
        (void)algo_fail(&h->a, EPA_ERR_CONFIG,
                        "dispatch %llu has been sent and not received: call dispatch_recv",
                        (unsigned long long)h->a.set[i]->epoch);
        return NULL;
    }
    return algo_take_set(&h->a);
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
    struct tf_host *h = (struct tf_host *)a;
    struct epa_moe *m = &problem->u.moe;
    struct tf_task task;
    enum epa_status status = EPA_OK;

    algo_begin(&h->a, "dispatch_send", "rows");
    task = (struct tf_task){.h = h, .set = take_set(h), .m = m};
    if (task.set == NULL)
        return EPA_ERR_CONFIG;
    m->epoch = task.set->epoch;
    h->counted = false;
    task.counts = h->l.by_token;
    task.resets = h->l.folded;
    if (!h->l.folded)
        status = tf_run_pass(&task, clear_counters);
    if (status == EPA_OK)
        status = send_chunks(&task);
    if (algo_phase(&h->a, status, "counts") && !h->l.by_token) {
        count_rows(h, m);
        status = send_counts(h, task.set, true);
    }
    return tf_end_sends(h, status);
}
