/* Combine on hosts: each rank pulls the expert outputs of its tokens from y or from the outbox
 * (outbox_at) of the experts' ranks, or receives puts, and reduces them. The outbox contains
 * outputs that are quantised, and sums of the outputs of a row's experts. Phases have the names of
 * the source: copy_and_put, recv_wait, topk_reduce. */
#include "ll_v2_combine.h"

#include "ll_v2_signals.h"
#include "../../common/algo_store.h"

static void quantise_output(const struct ll_host *h, const uint16_t *y, const uint16_t *next,
                            char *to)
{
    h->a.kernels->quantise(y, h->l.hidden, h->l.group, next, (uint8_t *)to,
                           (float *)(void *)(to + h->l.sent_scales_at));
}

/* Copies n expert outputs from `row` on to the place from which peers get them. */
static void copy_outputs(const struct ll_task *task, uint64_t row, uint64_t n)
{
    const struct ll_host *h = task->h;
    const uint16_t *y = (const uint16_t *)task->m->y + row * h->l.hidden;
    char *to = h->a.t->heap + leave_offset(h, task->set) + row * h->l.sent_bytes;

    if (n == 0) /* y may be NULL if n is 0 */
        return;
    if (!h->l.output_fp8) {
        memcpy(to, y, n * h->l.output_bytes);
        return;
    }
    for (; n > 0; n--, y += h->l.hidden, to += h->l.sent_bytes)
        quantise_output(h, y, n > 1 ? y + h->l.hidden : NULL, to);
}

/* Layout expert: copies the outputs of experts `begin` to `end`. */
static void copy_outputs_of_experts(void *arg, uint32_t worker, uint32_t workers)
{
    const struct ll_task *task = arg;
    const struct ll_set *s = task->set;

    for (uint32_t i = task->begin; i < task->end; i++) {
        uint64_t n = s->s.recv_count[i], from = n * worker / workers;

        copy_outputs(task, s->s.recv_start[i] + from, n * (worker + 1) / workers - from);
    }
}

/* Layout rank: copies the outputs of rows. */
static void copy_outputs_of_rows(void *arg, uint32_t worker, uint32_t workers)
{
    const struct ll_task *task = arg;
    uint32_t from = first_of(task, worker, workers);

    copy_outputs(task, from, first_of(task, worker + 1, workers) - from);
}

/* dedup in layout expert: reduces the outputs of each received row over its local experts. */
static void reduce_received_rows(void *arg, uint32_t worker, uint32_t workers)
{
    const struct ll_task *task = arg;
    const struct ll_host *h = task->h;
    const char *received = h->a.t->heap + arrival_offset(h, task->set);
    char *leave = h->a.t->heap + leave_offset(h, task->set);
    uint16_t *sum = (uint16_t *)(void *)(h->sums + worker * h->l.output_bytes);
    uint64_t end = first_of(task, worker + 1, workers);

    for (uint64_t i = first_of(task, worker, workers); i < end; i++) {
        const char *msg = received + i * h->l.message_bytes;
        const struct ll_choice *choice = choices_of(h, msg);
        char *to = leave + i * h->l.sent_bytes;
        uint32_t n = meta_of(msg)->choices;
        const uint16_t *row[LL_TOPK];
        float by[LL_TOPK];

        for (uint32_t c = 0; c < n; c++) {
            row[c] = (const uint16_t *)task->m->y + (uint64_t)choice[c].entry * h->l.hidden;
            by[c] = choice[c].weight;
        }
        h->a.kernels->reduce(row, by, n, h->l.hidden,
                             h->l.output_fp8 ? EPA_STORE_CACHED : h->a.own_store,
                             h->l.output_fp8 ? sum : (uint16_t *)(void *)to);
        if (h->l.output_fp8)
            quantise_output(h, sum, NULL, to);
    }
    algo_drain(h->a.own_store);
}

/* Writes expert outputs `begin` to `end`: of rows, or of all rows of these experts. */
static enum epa_status write_outputs(struct ll_task *task, uint64_t begin, uint64_t end)
{
    task->begin = (uint32_t)begin;
    task->end = (uint32_t)end;
    return task->make != NULL && end > begin ? algo_parallel(&task->h->a, task->make, task)
                                             : EPA_OK;
}

static enum epa_status put_outputs(struct ll_host *h, const struct ll_set *s, uint32_t source,
                                   uint64_t row, uint64_t output, uint32_t n)
{
    const char *src = h->a.t->heap + leave_offset(h, s) + row * h->l.sent_bytes;

    return n == 0 ? EPA_OK : ll_put(h, LL_OUTPUT, s, output, src, n, source);
}

/* Computes the number of outputs for each source, and their start at the source and, with dedup,
 * here. */
static void begin_output_puts(struct ll_host *h, const struct ll_set *s)
{
    uint32_t each = h->l.dedup ? 1 : h->l.local, mine = h->a.world.rank * each, row = 0;

    for (uint32_t source = 0; source < h->l.size; source++) {
        const uint32_t *count = row_counts(h, s, source);
        uint32_t output = 0, n = 0;

        for (uint32_t i = 0; i < mine; i++)
            output += count[i];
        for (uint32_t i = mine; i < mine + each; i++)
            n += count[i];
        h->block[source] = (struct ll_block){.row = row, .output = output};
        h->left[source] = n;
        row += n;
    }
}

/* Puts the outputs of local expert i for ranks out of reach. */
static enum epa_status put_expert_outputs(struct ll_host *h, const struct ll_set *s, uint32_t i)
{
    uint32_t e = h->a.world.rank * h->l.local + i;
    enum epa_status status = EPA_OK;
    uint64_t row = s->s.recv_start[i];

    for (uint32_t source = 0; source < h->l.size && status == EPA_OK; source++) {
        uint32_t n = expert_counts(h, s, source)[e];

        if (!algo_reachable(&h->a, source)) {
            status = put_outputs(h, s, source, row, h->block[source].output, n);
            h->block[source].output += n;
        }
        row += n;
    }
    return status;
}

/* Layout expert without dedup: writes and puts the outputs of some experts at a time. */
static enum epa_status write_outputs_by_expert(struct ll_task *task)
{
    struct ll_host *h = task->h;
    const struct ll_set *s = task->set;
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0, end = 0; i < h->l.local && status == EPA_OK;) {
        uint64_t bytes = 0;

        do
            bytes += s->s.recv_count[end++] * h->l.output_bytes;
        while (end < h->l.local && bytes < ALGO_SLICE_BYTES);
        status = write_outputs(task, i, end);
        for (; i < end && status == EPA_OK; i++) {
            if (s->s.recv_count[i] != 0)
                status = put_expert_outputs(h, s, i);
        }
        if (status == EPA_OK) /* frees room for which peers may wait */
            status = h->a.t->ops->progress(h->a.t);
    }
    return status;
}

/* dedup: writes and puts the outputs for a source out of reach, in slices. */
static enum epa_status write_far_outputs(struct ll_task *task, uint32_t source)
{
    struct ll_host *h = task->h;
    struct ll_block *b = &h->block[source];
    uint32_t slice = 1 + ALGO_SLICE_BYTES / (uint32_t)h->l.output_bytes;
    enum epa_status status = EPA_OK;

    while (h->left[source] != 0 && status == EPA_OK) {
        uint32_t n = h->left[source];

        if (n > slice && task->make != NULL)
            n = slice;
        status = write_outputs(task, b->row, b->row + n);
        if (status == EPA_OK)
            status = put_outputs(h, task->set, source, b->row, b->output, n);
        if (status == EPA_OK)
            status = h->a.t->ops->progress(h->a.t);
        b->row += n;
        b->output += n;
    }
    return status;
}

/* dedup: writes outputs in the order of sources, first for sources out of reach. */
static enum epa_status write_outputs_by_source(struct ll_task *task)
{
    struct ll_host *h = task->h;
    enum epa_status status = EPA_OK;

    for (uint32_t i = 1; i < h->l.size && status == EPA_OK; i++) {
        if (!algo_reachable(&h->a, algo_peer(&h->a, i)))
            status = write_far_outputs(task, algo_peer(&h->a, i));
    }
    for (uint32_t source = 0; source < h->l.size && status == EPA_OK; source++) {
        uint32_t begin = h->block[source].row, end = begin;

        for (; source < h->l.size && algo_reachable(&h->a, source); source++)
            end += h->left[source];
        status = write_outputs(task, begin, end);
    }
    return status;
}

/* Writes the expert outputs that peers do not get from y directly, and puts those for ranks out of
 * reach. */
static enum epa_status send_outputs(struct ll_task *task)
{
    struct ll_host *h = task->h;
    const struct ll_set *s = task->set;
    bool apart = h->l.output_fp8 || task->m->y != h->a.t->heap + y_offset(h, s);

    if (h->l.dedup && !h->l.by_rank)
        task->make = reduce_received_rows;
    else if (apart)
        task->make = h->l.by_rank ? copy_outputs_of_rows : copy_outputs_of_experts;
    if (h->a.far != 0)
        begin_output_puts(h, s);
    if (h->a.far == 0)
        return write_outputs(task, 0, h->l.dedup ? s->rows : h->l.local);
    return h->l.dedup ? write_outputs_by_source(task) : write_outputs_by_expert(task);
}

/* Finds the expert outputs of token t and their weights. Returns their number. */
static uint32_t find_outputs(const struct ll_task *task, uint32_t t, uint64_t leave, uint64_t put,
                             const uint16_t **row, float *by)
{
    const struct ll_host *h = task->h;
    const struct ll_slot *place = task->set->place + (size_t)t * h->l.places;
    const float *weight = task->m->weight + (size_t)t * h->l.topk;
    uint64_t bytes = h->l.sent_bytes;
    uint32_t n = 0;

    for (uint32_t j = 0; j < h->l.places; j++) {
        const char *at;

        if (place[j].rank == ALGO_NONE)
            continue;
        by[n] = h->l.dedup ? 1.0f : weight[j];
        at = algo_reachable(&h->a, place[j].rank)
                 ? algo_at(&h->a, place[j].rank, leave + place[j].row * bytes)
                 : h->a.t->heap + put + place[j].output * bytes;
        row[n++] = (const uint16_t *)(const void *)at;
    }
    return n;
}

static void reduce_tokens(void *arg, uint32_t worker, uint32_t workers)
{
    const struct ll_task *task = arg;
    const struct ll_host *h = task->h;
    uint64_t leave = leave_offset(h, task->set), put = outputs_offset(h, task->set);
    uint32_t first = first_of(task, worker, workers);
    uint32_t end = first_of(task, worker + 1, workers);
    uint64_t begin = epa_trace_now(h->a.trace);

    for (uint32_t t = first; t < end; t++) {
        const uint16_t *row[LL_TOPK];
        const uint8_t *code[LL_TOPK];
        const float *scale[LL_TOPK];
        float by[LL_TOPK];
        uint16_t *out = (uint16_t *)task->m->out + (size_t)t * h->l.hidden;
        uint32_t n = find_outputs(task, t, leave, put, row, by);

        if (!h->l.output_fp8) {
            h->a.kernels->reduce(row, by, n, h->l.hidden, h->a.own_store, out);
            continue;
        }
        for (uint32_t i = 0; i < n; i++) {
            code[i] = (const uint8_t *)row[i];
            scale[i] = (const float *)(const void *)(code[i] + h->l.sent_scales_at);
        }
        h->a.kernels->reduce_fp8(code, scale, by, n, h->l.hidden, h->l.group, h->a.own_store, out);
    }
    algo_drain(h->a.own_store);
    algo_worked(&h->a, worker, workers, begin, end - first);
}

enum epa_status ll_combine(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct ll_host *h = (struct ll_host *)a;
    struct epa_moe *m = &problem->u.moe;
    struct ll_set *s;
    struct ll_task task;
    enum epa_status status;

    algo_begin(&h->a, "combine", "copy_and_put");
    s = (struct ll_set *)algo_set_of(&h->a, m->epoch, ALGO_OPEN, "open");
    if (s == NULL)
        return EPA_ERR_CONFIG;
    task = (struct ll_task){.h = h, .set = s, .m = m};
    status = algo_set_store(&h->a, s->s.epoch);
    algo_begin_work(&h->a);
    if (status == EPA_OK)
        status = send_outputs(&task);
    algo_end_work(&h->a, s->s.epoch, ALGO_COMBINE, m->tokens);
    if (status == EPA_OK)
        status = ll_signal(h, LL_OUTPUT, s->s.epoch, s->from);
    if (algo_phase(&h->a, status, "recv_wait"))
        status = ll_wait_and_leave(h, LL_OUTPUT, s->s.epoch, s->to);
    if (algo_phase(&h->a, status, "topk_reduce")) {
        h->a.note.tokens = m->tokens;
        task.begin = 0;
        task.end = m->tokens;
        algo_begin_work(&h->a);
        status = algo_parallel(&h->a, reduce_tokens, &task);
        algo_end_work(&h->a, s->s.epoch, ALGO_COMBINE, m->tokens);
    }
    algo_end(&h->a);
    s->s.state = ALGO_FREE;
    return status;
}
