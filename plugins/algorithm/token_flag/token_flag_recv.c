/* dispatch_recv, and the receiving part of dispatch_send between two chunks. Both wait for the
 * counts of all ranks and copy arrived rows to their experts. */
#include "token_flag_recv.h"

#include "token_flag_pass.h"

#include <string.h>

#include <epa2a/wait.h>

/* ---- copy received rows to rows by expert ----
 *
 * The counts of all ranks determine the start of an expert's rows and of the rows of each source among
 * them. A counter per source and expert assigns places to rows, since workers copy rows concurrently.
 * The rows of an expert are in the order of sources, as libepa2a returns them: the library copies
 * rows of another order. */

/* Returns the count words of `source`, which have arrived. */
static const uint32_t *counts_of(const struct tf_host *h, const struct algo_set *s, uint32_t source)
{
    return source == h->a.world.rank
               ? reported_to(h, source)
               : (const uint32_t *)(const void *)(h->a.t->heap +
                                                  counts_offset(h, s->epoch, source));
}

/* Computes the start of each expert's rows, the first place of each source among them, and the rows
 * of each source. Validates the counts with the number of rows in the flag. */
static enum epa_status read_counts(struct tf_host *h, struct algo_set *s)
{
    uint64_t start = 0;

    memset(s->recv_count, 0, h->l.local * sizeof(*s->recv_count));
    for (uint32_t source = 0; source < h->l.size; source++) {
        const uint32_t *count = counts_of(h, s, source);
        uint32_t *first = h->first + (size_t)source * h->l.local;
        struct tf_source *from = &h->source[source];
        uint32_t signal = h->a.signal + tf_count_signal(&h->l, s->epoch, source);
        uint64_t rows = 0, said;

        for (uint32_t e = 0; e < h->l.local; e++) {
            first[e] = s->recv_count[e];
            s->recv_source[(size_t)source * h->l.local + e] = count[1 + e];
            s->recv_count[e] += count[1 + e];
            rows += count[1 + e];
        }
        said = source == h->a.world.rank ? tf_count_flag(s->epoch, (uint32_t)rows)
                                         : h->a.t->ops->read(h->a.t, signal);
        if (rows > h->l.source_rows || said != tf_count_flag(s->epoch, (uint32_t)rows))
            return algo_fail(&h->a, EPA_ERR_MISMATCH,
                             "invalid counts from rank %u: the sum is %llu (at most %u), but the "
                             "flag has %u rows of epoch %llu",
                             source, (unsigned long long)rows, h->l.source_rows,
                             tf_rows_of_flag(said), (unsigned long long)(said >> TF_ROW_BITS));
        *from = (struct tf_source){.way = (enum tf_way)count[0], .rows = (uint32_t)rows};
    }
    for (uint32_t e = 0; e < h->l.local; e++) {
        h->first[(size_t)h->l.size * h->l.local + e] = s->recv_count[e];
        s->recv_start[e] = start;
        start += s->recv_count[e];
    }
    h->counted = true;
    return EPA_OK;
}

/* Waits for the counts of `peer`. The flag also contains the number of rows; the arrow of the trace
 * has the value with 0 rows, as at the sender. */
static enum epa_status wait_for_counts_of(struct tf_host *h, const struct algo_set *s,
                                          uint32_t peer)
{
    uint64_t begin = epa_trace_now(h->a.trace), wanted = tf_count_flag(s->epoch, 0);
    uint32_t signal = tf_count_signal(&h->l, s->epoch, peer);
    enum epa_status status = algo_wait(&h->a, signal, wanted, "counts", ALGO_NONE, peer);

    if (status == EPA_OK)
        tf_noted(h, 0, TF_COUNTS_FROM, begin, peer, h->a.signal + signal, wanted);
    return status;
}

static enum epa_status wait_for_counts(struct tf_host *h, struct algo_set *s)
{
    enum epa_status status = EPA_OK;

    for (uint32_t i = 1; i < h->l.size && status == EPA_OK; i++)
        status = wait_for_counts_of(h, s, algo_peer(&h->a, i));
    return status == EPA_OK ? read_counts(h, s) : status;
}

/* Polls a signal. If it has reached the value, epa_wait() acquires the data that the signal
 * covers. */
static bool poll_signal(struct tf_host *h, uint32_t signal, uint64_t value)
{
    return h->a.t->ops->read(h->a.t, h->a.signal + signal) >= value &&
           epa_wait(h->a.t, h->a.signal + signal, value, h->a.timeout_ns) == EPA_OK;
}

/* Copies a row to the next place of its expert. Returns false if the pass has to end. */
static bool copy_row(struct tf_task *task, uint32_t source, uint32_t row, uint32_t worker)
{
    struct tf_host *h = task->h;
    const struct algo_set *s = task->set;
    char *msg = h->a.t->heap + comm_offset(h, s, source, row);
    const struct tf_meta *meta = meta_of(h, msg);
    uint64_t begin = epa_trace_now(h->a.trace);
    uint32_t place;
    size_t counter;
    void *to;

    if (task->waits && !tf_await_flag(task, &meta->flag, worker, "row", source, row))
        return false;
    if (task->arrows && source != h->a.world.rank)
        tf_noted(h, worker, TF_ROW_FROM, begin, source, row_arrow(h, s, row), s->epoch);
    counter = (size_t)source * h->l.local + meta->expert;
    /* Relaxed: only the value is used. */
    place = meta->expert < h->l.local
                ? h->first[counter] + __atomic_fetch_add(&h->taken[counter], 1, __ATOMIC_RELAXED)
                : UINT32_MAX;
    if (place == UINT32_MAX || place >= h->first[counter + h->l.local] ||
        meta->origin.rank != source || meta->origin.token >= h->l.max_tokens ||
        meta->k >= h->l.topk) {
        (void)tf_stop_pass(task, EPA_ERR_MISMATCH, "row", source, row);
        return false;
    }
    to = h->a.t->heap + grouped_offset(h, s) +
         (s->recv_start[meta->expert] + place) * h->l.message_bytes;
    h->a.kernels->spread(&to, 1, msg, h->l.message_bytes, h->a.store);
    return true;
}

/* Copies the rows of all sources; the worker takes every `workers`-th row. */
static bool copy_flat(struct tf_task *task, uint32_t worker, uint32_t workers)
{
    struct tf_host *h = task->h;
    uint64_t mine = worker, begin = 0;

    for (uint32_t i = 0; i < h->l.size; i++) {
        const struct tf_source *from = &h->source[algo_peer(&h->a, i)];
        uint64_t end = begin + (from->end - from->taken);

        for (; mine < end; mine += workers) {
            if (!copy_row(task, algo_peer(&h->a, i), from->taken + (uint32_t)(mine - begin),
                          worker))
                return false;
        }
        begin = end;
    }
    return true;
}

static bool copy_sources(struct tf_task *task, uint32_t worker, uint32_t workers)
{
    struct tf_host *h = task->h;

    for (uint32_t i = worker; i < h->l.size; i += workers) {
        const struct tf_source *from = &h->source[algo_peer(&h->a, i)];

        for (uint32_t row = from->taken; row < from->end; row++) {
            if (!copy_row(task, algo_peer(&h->a, i), row, worker))
                return false;
        }
    }
    return true;
}

static void copy_rows(void *arg, uint32_t worker, uint32_t workers)
{
    struct tf_task *task = arg;
    struct tf_host *h = task->h;
    uint64_t began = epa_trace_now(h->a.trace);

    if (worker == 0 && task->resets)
        memset(h->sent, 0, h->l.size * sizeof(*h->sent));
    if (h->l.flat)
        (void)copy_flat(task, worker, workers); /* the task contains the error */
    else
        (void)copy_sources(task, worker, workers);
    algo_drain(h->a.store);
    algo_worked(&h->a, worker, workers, began, 0);
    if (task->waits)
        tf_tend(task, worker, workers);
}

/* Copies the rows from `taken` to `end` of each source. */
static enum epa_status copy_pending_rows(struct tf_task *task, bool waits)
{
    struct tf_host *h = task->h;
    enum epa_status status;

    task->waits = waits;
    status = tf_run_pass(task, copy_rows);
    task->resets = false;
    for (uint32_t i = 0; i < h->l.size; i++)
        h->source[i].taken = h->source[i].end;
    if (status == EPA_ERR_MISMATCH) {
        const char *msg = h->a.t->heap + comm_offset(h, task->set, h->a.last.peer, h->a.last.row);
        const struct tf_meta *meta = (const struct tf_meta *)(const void *)(msg + h->l.meta_at);

        (void)algo_fail(&h->a, status,
                        "invalid row %u from rank %u: choice %u of token %u of rank %u for "
                        "local expert %u, which has %u rows",
                        h->a.last.row, h->a.last.peer, meta->k, meta->origin.token,
                        meta->origin.rank, meta->expert,
                        meta->expert < h->l.local ? task->set->recv_count[meta->expert] : 0);
    }
    return status;
}

/* Copies rows that arrive by puts. Only this thread may wait for their signals; it waits for
 * batches that keep all workers busy. */
static enum epa_status copy_put_rows(struct tf_task *task, uint32_t source)
{
    struct tf_host *h = task->h;
    struct tf_source *from = &h->source[source];
    uint32_t batch = h->a.workers > 1 ? 8 * h->a.workers : 1;
    enum epa_status status = EPA_OK;

    if (!h->l.by_token) /* the flag of the source covers all rows */
        batch = from->rows;
    while (from->taken < from->rows && status == EPA_OK) {
        while (from->end < from->rows && from->end - from->taken < batch && status == EPA_OK) {
            uint64_t begin = epa_trace_now(h->a.trace);

            if (h->l.by_token)
                status = algo_wait(&h->a, tf_row_signal(&h->l, task->set->index, source, from->end),
                                   task->set->epoch, "row", from->end, source);
            if (h->l.by_token && status == EPA_OK)
                tf_noted(h, 0, TF_ROW_FROM, begin, source, row_arrow(h, task->set, from->end),
                         task->set->epoch);
            from->end++;
        }
        if (status == EPA_OK)
            status = copy_pending_rows(task, false);
    }
    return status;
}

/* Copies all remaining rows. Stored rows come first, since workers can wait for their flags. */
static enum epa_status copy_remaining_rows(struct tf_task *task)
{
    struct tf_host *h = task->h;
    enum epa_status status;

    for (uint32_t i = 0; i < h->l.size; i++)
        h->source[i].end = is_put(h, i) ? h->source[i].taken : h->source[i].rows;
    task->arrows = h->l.by_token;
    status = copy_pending_rows(task, h->l.by_token);
    task->arrows = false;
    for (uint32_t i = 1; i < h->l.size && status == EPA_OK; i++) {
        if (is_put(h, algo_peer(&h->a, i)))
            status = copy_put_rows(task, algo_peer(&h->a, i));
    }
    return status;
}

/* ---- between the chunks of dispatch_send ---- */

static bool counts_arrived(struct tf_host *h, const struct algo_set *s)
{
    for (uint32_t i = 1; i < h->l.size; i++) {
        if (!poll_signal(h, tf_count_signal(&h->l, s->epoch, algo_peer(&h->a, i)),
                         tf_count_flag(s->epoch, 0)))
            return false;
    }
    return true;
}

static bool row_arrived(struct tf_host *h, struct algo_set *s, uint32_t source, uint32_t row)
{
    char *msg = h->a.t->heap + comm_offset(h, s, source, row);

    if (is_put(h, source))
        return poll_signal(h, tf_row_signal(&h->l, s->index, source, row), s->epoch);
    /* Acquire: as in tf_await_flag(). */
    return __atomic_load_n(&meta_of(h, msg)->flag, __ATOMIC_ACQUIRE) >= s->epoch;
}

enum epa_status tf_take_some(struct tf_host *h, struct algo_set *s, struct epa_moe *m)
{
    struct tf_task task = {.h = h, .set = s, .m = m, .arrows = h->l.by_token};
    enum epa_status status = EPA_OK;

    if (!h->counted && !counts_arrived(h, s))
        return h->a.t->ops->progress(h->a.t);
    if (!h->counted)
        status = read_counts(h, s);
    if (status != EPA_OK)
        return status;
    for (uint32_t i = 0; i < h->l.size; i++) {
        struct tf_source *from = &h->source[i];

        for (from->end = from->taken; from->end < from->rows; from->end++) {
            if (!row_arrived(h, s, i, from->end))
                break;
        }
    }
    return copy_pending_rows(&task, false);
}

/* ---- dispatch_recv ---- */

enum epa_status tf_dispatch_recv(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct tf_host *h = (struct tf_host *)a;
    struct epa_moe *m = &problem->u.moe;
    struct tf_task task;
    const char *recv;
    enum epa_status status = EPA_OK;

    algo_begin(&h->a, "dispatch_recv", "counts");
    task = (struct tf_task){.h = h, .set = algo_set_of(&h->a, m->epoch, TF_SENT, "sent"), .m = m};
    if (task.set == NULL)
        return EPA_ERR_CONFIG;
    task.resets = h->l.folded;
    if (!h->counted)
        status = wait_for_counts(h, task.set);
    if (algo_phase(&h->a, status, "rows"))
        status = copy_remaining_rows(&task);
    if (status != EPA_OK)
        return status;
    recv = h->a.t->heap + grouped_offset(h, task.set);
    epa_publish_counts(m, task.set->epoch, h->l.local, task.set->recv_count, task.set->recv_start);
    epa_publish_messages(m, recv, 0, h->l.fp8, h->l.scales_at, h->l.meta_at, h->l.message_bytes);
    /* Several workers copy the rows of a source in any order. */
    m->recv_source = h->a.workers == 1 ? task.set->recv_source : NULL;
    m->y_space = h->l.fused ? NULL : h->a.t->heap + y_offset(h, task.set);
    algo_end(&h->a);
    task.set->state = TF_RECEIVED;
    return EPA_OK;
}
