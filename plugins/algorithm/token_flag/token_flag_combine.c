/* combine_send sends the expert output of each received row to the slot of its flat token; with
 * fuse_expert it also computes the output. combine_recv adds up the slots of each token. */
#include "token_flag_combine.h"

#include "token_flag_pass.h"

/* ---- combine_send ---- */

/* Writes the expert output of entry i, of local expert e, to `to`. */
static void write_output(const struct tf_task *task, uint32_t e, uint64_t i, char *to)
{
    const struct tf_host *h = task->h;
    const struct tf_layout *l = &h->l;
    const char *msg = h->a.t->heap + grouped_offset(h, task->set) + i * l->message_bytes;
    const char *y = (const char *)task->m->y + i * l->output_bytes;
    float factor;

    if (!l->fused) {
        if (((uintptr_t)y | l->output_bytes) % TF_LINE == 0)
            h->a.kernels->spread(&(void *){to}, 1, y, l->output_bytes, h->a.store);
        else
            memcpy(to, y, l->output_bytes);
        return;
    }
    factor = task->m->expert_factor[h->a.world.rank * l->local + e];
    if (l->fp8)
        h->a.kernels->output_fp8((const uint8_t *)msg,
                                 (const float *)(const void *)(msg + l->scales_at), l->hidden,
                                 l->group, factor, (uint16_t *)(void *)to);
    else
        h->a.kernels->output((const uint16_t *)(const void *)msg, l->hidden, factor,
                             (uint16_t *)(void *)to);
}

/* Stores an expert output in its slot. For a rank out of reach, writes it to this rank's y, from
 * which put_outputs() puts it. */
static void send_output(const struct tf_task *task, uint32_t e, uint64_t i, uint32_t worker)
{
    const struct tf_host *h = task->h;
    char *received = h->a.t->heap + grouped_offset(h, task->set) + i * h->l.message_bytes;
    const struct tf_meta *meta = meta_of(h, received);
    char *y = h->a.t->heap + y_offset(h, task->set);
    char *slot;

    if (meta->origin.rank != h->a.world.rank)
        epa_trace_flow_begin(h->a.trace, worker, meta->origin.rank,
                             output_arrow(h, task->set, meta->origin.token, meta->k),
                             task->set->epoch);
    if (!algo_reachable(&h->a, meta->origin.rank)) {
        if (h->l.fused || task->m->y != y)
            write_output(task, e, i, y + i * h->l.output_bytes);
        return;
    }
    slot =
        algo_at(&h->a, meta->origin.rank, slot_offset(h, task->set, meta->origin.token, meta->k));
    write_output(task, e, i, slot);
    algo_drain(h->a.store);
    /* Release: pairs with the acquire of has_arrived(). The expert output is complete. */
    __atomic_store_n(flag_of_slot(h, slot), task->set->epoch, __ATOMIC_RELEASE);
}

/* Returns the part of expert e in the task's range of entries. */
static void clip_to_task(const struct tf_task *task, uint32_t e, uint64_t *begin, uint64_t *end)
{
    *begin = task->set->recv_start[e];
    *end = *begin + task->set->recv_count[e];
    if (*begin < task->begin)
        *begin = task->begin;
    if (*end > task->end)
        *end = task->end;
}

static void send_outputs(void *arg, uint32_t worker, uint32_t workers)
{
    const struct tf_task *task = arg;
    const struct tf_layout *l = &task->h->l;
    uint64_t mine = task->begin + worker, begin, end, began = epa_trace_now(task->h->a.trace);

    for (uint32_t e = 0; e < l->local && l->flat; e++) {
        clip_to_task(task, e, &begin, &end);
        for (; mine < end; mine += workers)
            send_output(task, e, mine, worker);
    }
    for (uint32_t e = worker; e < l->local && !l->flat; e += workers) {
        clip_to_task(task, e, &begin, &end);
        for (uint64_t i = begin; i < end; i++)
            send_output(task, e, i, worker);
    }
    algo_drain(task->h->a.store);
    algo_worked(&task->h->a, worker, workers, began, 0);
}

static enum epa_status put_outputs(const struct tf_task *task)
{
    struct tf_host *h = task->h;
    char *received = h->a.t->heap + grouped_offset(h, task->set);
    const char *y = h->a.t->heap + y_offset(h, task->set);
    uint32_t set = task->set->index;
    enum epa_status status;

    for (uint64_t i = task->begin; i < task->end; i++) {
        const struct tf_meta *meta = meta_of(h, received + i * h->l.message_bytes);
        uint32_t token = meta->origin.token;

        if (algo_reachable(&h->a, meta->origin.rank))
            continue;
        status = algo_put_signal(&h->a, slot_offset(h, task->set, token, meta->k),
                                 y + i * h->l.output_bytes, h->l.output_bytes,
                                 tf_output_signal(&h->l, set, token, meta->k), task->set->epoch,
                                 meta->origin.rank);
        if (status != EPA_OK)
            return status;
    }
    return h->a.t->ops->progress(h->a.t);
}

enum epa_status tf_combine_send(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct tf_host *h = (struct tf_host *)a;
    struct epa_moe *m = &problem->u.moe;
    struct algo_set *s;
    struct tf_task task;
    enum epa_status status = EPA_OK;
    uint64_t entries, slice;

    algo_begin(&h->a, "combine_send", "expert outputs");
    s = algo_set_of(&h->a, m->epoch, TF_RECEIVED, "received");
    if (s == NULL)
        return EPA_ERR_CONFIG;
    task = (struct tf_task){.h = h, .set = s, .m = m};
    entries = s->recv_start[h->l.local - 1] + s->recv_count[h->l.local - 1];
    slice = h->a.far != 0 ? 1 + ALGO_SLICE_BYTES / h->l.output_bytes : entries;
    for (; task.begin < entries && status == EPA_OK; task.begin = task.end) {
        task.end = entries - task.begin > slice ? task.begin + slice : entries;
        status = tf_run_pass(&task, send_outputs);
        if (status == EPA_OK && h->a.far != 0)
            status = put_outputs(&task);
    }
    status = tf_end_sends(h, status);
    if (status == EPA_OK)
        s->state = TF_RETURNED;
    return status;
}

/* ---- combine_recv ---- */

/* Waits for the slots of token t and adds them up. Returns false if the pass has to end. */
static bool reduce_token(struct tf_task *task, uint32_t t, uint32_t worker)
{
    struct tf_host *h = task->h;
    const struct tf_layout *l = &h->l;
    const int32_t *expert = task->m->expert + (size_t)t * l->topk;
    const float *weight = task->m->weight + (size_t)t * l->topk;
    const uint16_t *output[TF_TOPK];
    float by[TF_TOPK];
    uint32_t n = 0;

    for (uint32_t k = 0; k < l->topk; k++) {
        char *slot = h->a.t->heap + slot_offset(h, task->set, t, k);
        uint64_t begin = epa_trace_now(h->a.trace);
        uint32_t rank;

        if (expert[k] < 0)
            continue;
        rank = h->a.rank_of[expert[k]];
        if (!is_put(h, rank) &&
            !tf_await_flag(task, flag_of_slot(h, slot), worker, "expert output of token", rank, t))
            return false;
        if (!is_put(h, rank) && rank != h->a.world.rank)
            tf_noted(h, worker, TF_OUTPUT_FROM, begin, rank, output_arrow(h, task->set, t, k),
                     task->set->epoch);
        by[n] = weight[k];
        output[n++] = (const uint16_t *)(const void *)slot;
    }
    h->a.kernels->reduce(output, by, n, l->hidden, h->a.store,
                         (uint16_t *)task->m->out + (size_t)t * l->hidden);
    return true;
}

static void reduce_tokens(void *arg, uint32_t worker, uint32_t workers)
{
    struct tf_task *task = arg;
    uint64_t n = task->end - task->begin;
    uint64_t t = task->begin + n * worker / workers;
    uint64_t end = task->begin + n * (worker + 1) / workers;
    uint64_t began = epa_trace_now(task->h->a.trace);

    while (t < end && reduce_token(task, (uint32_t)t, worker))
        t++;
    algo_drain(task->h->a.store);
    algo_worked(&task->h->a, worker, workers, began, 0);
    tf_tend(task, worker, workers);
}

/* Waits for expert outputs that arrive by puts, for tokens `begin` to `end`. Only this thread may
 * wait for their signals. */
static enum epa_status wait_for_signals(const struct tf_task *task)
{
    struct tf_host *h = task->h;
    uint32_t set = task->set->index;
    enum epa_status status = EPA_OK;

    for (uint64_t i = task->begin * h->l.topk; i < task->end * h->l.topk; i++) {
        uint32_t t = (uint32_t)(i / h->l.topk), k = (uint32_t)(i % h->l.topk), rank;
        uint64_t begin = epa_trace_now(h->a.trace);

        if (task->m->expert[i] < 0)
            continue;
        rank = h->a.rank_of[task->m->expert[i]];
        if (!is_put(h, rank))
            continue;
        status = algo_wait(&h->a, tf_output_signal(&h->l, set, t, k), task->set->epoch,
                           "expert output of token", t, rank);
        if (status != EPA_OK)
            return status;
        tf_noted(h, 0, TF_OUTPUT_FROM, begin, rank, output_arrow(h, task->set, t, k),
                 task->set->epoch);
    }
    return EPA_OK;
}

enum epa_status tf_combine_recv(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct tf_host *h = (struct tf_host *)a;
    struct epa_moe *m = &problem->u.moe;
    struct algo_set *s;
    struct tf_task task;
    enum epa_status status = EPA_OK;
    bool puts = false;
    uint64_t batch;

    algo_begin(&h->a, "combine_recv", "expert outputs");
    s = algo_set_of(&h->a, m->epoch, TF_RETURNED, "returned");
    if (s == NULL)
        return EPA_ERR_CONFIG;
    task = (struct tf_task){.h = h, .set = s, .m = m};
    for (uint32_t r = 0; r < h->l.size; r++)
        puts = puts || is_put(h, r);
    batch = !puts ? m->tokens : h->a.workers > 1 ? 8 * (uint64_t)h->a.workers : 1;
    for (; task.begin < m->tokens && status == EPA_OK; task.begin = task.end) {
        task.end = m->tokens - task.begin > batch ? task.begin + batch : m->tokens;
        if (puts)
            status = wait_for_signals(&task);
        if (status == EPA_OK)
            status = tf_run_pass(&task, reduce_tokens);
    }
    algo_end(&h->a);
    if (status == EPA_OK)
        s->state = TF_FREE;
    return status;
}
