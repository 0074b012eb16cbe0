/* Combine on hosts: each rank pulls the answers to its tokens from where the experts wrote
 * them, or from the outbox (or has them put here), and adds them up. The outbox is for answers
 * that are not sent as experts gave them: quantised, or added up beforehand. Phases by the source's names: copy_and_put,
 * recv_wait, topk_reduce. */
#include "ll_v2_host.h"

#include <string.h>

static void quantise_answer(const struct ll_host *h, const uint16_t *y,
                            const uint16_t *next, char *to)
{
    h->kernels->quantise(y, h->l.hidden, h->l.group, next, (uint8_t *)to,
                         (float *)(void *)(to + h->l.sent_scales_at));
}

/* n answers from `row` on, from where experts left them to where peers get them. */
static void take_answers(const struct ll_task *task, uint64_t row, uint64_t n)
{
    const struct ll_host *h = task->h;
    const uint16_t *y = (const uint16_t *)task->m->y + row * h->l.hidden;
    char *to = h->t->heap + leave_offset(h, task->set) + row * h->l.sent_bytes;

    if (n == 0) /* y may be NULL then */
        return;
    if (!h->l.answer_fp8) {
        memcpy(to, y, n * h->l.answer_bytes);
        return;
    }
    for (; n > 0; n--, y += h->l.hidden, to += h->l.sent_bytes)
        quantise_answer(h, y, n > 1 ? y + h->l.hidden : NULL, to);
}

/* An expert's answers stand together, in layout rank all do. */
static void send_answers(void *arg, uint32_t worker, uint32_t workers)
{
    const struct ll_task *task = arg;
    const struct ll_set *s = task->set;
    uint32_t runs = task->h->l.by_rank ? 1 : task->h->l.local;

    for (uint32_t i = 0; i < runs; i++) {
        uint64_t start = task->h->l.by_rank ? 0 : s->recv_start[i];
        uint64_t n = task->h->l.by_rank ? task->m->recv_rows : s->recv_count[i];
        uint64_t from = n * worker / workers, to = n * (worker + 1) / workers;

        take_answers(task, start + from, to - from);
    }
}

/* Once in layout expert: one answer for each row that came, of all its experts here. */
static void add_up_answers(void *arg, uint32_t worker, uint32_t workers)
{
    const struct ll_task *task = arg;
    const struct ll_host *h = task->h;
    const char *came = h->t->heap + arrival_offset(h, task->set);
    char *leave = h->t->heap + leave_offset(h, task->set);
    uint16_t *sum = (uint16_t *)(void *)(h->sums + worker * h->l.answer_bytes);
    uint64_t rows = rows_that_came(h, task->set), end = rows * (worker + 1) / workers;

    for (uint64_t i = rows * worker / workers; i < end; i++) {
        const char *msg = came + i * h->l.message_bytes;
        const struct ll_choice *choice = choices_of(h, msg);
        char *to = leave + i * h->l.sent_bytes;
        uint32_t n = meta_of(msg)->choices;
        const uint16_t *row[LL_TOPK];
        float by[LL_TOPK];

        for (uint32_t c = 0; c < n; c++) {
            row[c] = (const uint16_t *)task->m->y + (uint64_t)choice[c].entry * h->l.hidden;
            by[c] = choice[c].weight;
        }
        h->kernels->reduce(row, by, n, h->l.hidden,
                           h->l.answer_fp8 ? KERNELS_STORE_CACHED : h->store,
                           h->l.answer_fp8 ? sum : (uint16_t *)(void *)to);
        if (h->l.answer_fp8)
            quantise_answer(h, sum, NULL, to);
    }
    if (h->store == KERNELS_STORE_STREAM)
        kernels_drain();
}

/* The answers to `source`'s rows, of one expert or of this rank: they stand side by side
 * here and there, so each is one put. `row` is the first of them here, `answer` there. */
static enum epa_status put_block(struct ll_host *h, const struct ll_set *s, uint32_t source,
                                 uint64_t row, uint64_t answer, uint32_t n)
{
    uint64_t bytes = h->l.sent_bytes;

    if (n == 0)
        return EPA_OK;
    return ll_put(h, answers_offset(h, s) + answer * bytes,
                  h->t->heap + leave_offset(h, s) + row * bytes, n * bytes, source);
}

static enum epa_status put_answers_of_experts(struct ll_host *h, const struct ll_set *s,
                                              uint32_t source)
{
    const uint32_t *count = expert_counts(h, s, source);
    uint32_t first = h->world.rank * h->l.local;
    enum epa_status status = EPA_OK;
    uint64_t answer = 0;

    for (uint32_t e = 0; e < first; e++)
        answer += count[e];
    for (uint32_t i = 0; i < h->l.local && status == EPA_OK; i++) {
        uint64_t row = s->recv_start[i];

        for (uint32_t before = 0; before < source; before++)
            row += expert_counts(h, s, before)[first + i];
        status = put_block(h, s, source, row, answer, count[first + i]);
        answer += count[first + i];
    }
    return status;
}

static enum epa_status put_answers_of_rank(struct ll_host *h, const struct ll_set *s,
                                           uint32_t source)
{
    const uint32_t *count = rank_counts(h, s, source);
    uint64_t row = 0, answer = 0;

    for (uint32_t before = 0; before < source; before++)
        row += rank_counts(h, s, before)[h->world.rank];
    for (uint32_t r = 0; r < h->world.rank; r++)
        answer += count[r];
    return put_block(h, s, source, row, answer, count[h->world.rank]);
}

static enum epa_status put_answers(struct ll_host *h, const struct ll_set *s)
{
    enum epa_status status = EPA_OK;

    for (uint32_t i = 1; i < h->l.size && status == EPA_OK; i++) {
        uint32_t source = peer_at(h, i);

        if (reachable(h, source))
            continue;
        status = h->l.once ? put_answers_of_rank(h, s, source)
                           : put_answers_of_experts(h, s, source);
    }
    return status;
}

/* The answers to token t and what they count; returns how many. */
static inline uint32_t answers_to(const struct ll_task *task, uint32_t t, uint64_t leave,
                                  uint64_t put, const uint16_t **row, float *by)
{
    const struct ll_host *h = task->h;
    const struct ll_place *place = task->set->place + (size_t)t * h->l.places;
    const float *weight = task->m->weight + (size_t)t * h->l.topk;
    uint64_t bytes = h->l.sent_bytes;
    uint32_t n = 0;

    for (uint32_t j = 0; j < h->l.places; j++) {
        const char *at;

        if (place[j].rank == NOWHERE)
            continue;
        by[n] = h->l.once ? 1.0f : weight[j];
        at = reachable(h, place[j].rank)
                 ? heap_at(h, place[j].rank, leave + place[j].row * bytes)
                 : h->t->heap + put + place[j].answer * bytes;
        row[n++] = (const uint16_t *)(const void *)at;
    }
    return n;
}

static void reduce_tokens(void *arg, uint32_t worker, uint32_t workers)
{
    const struct ll_task *task = arg;
    const struct ll_host *h = task->h;
    uint64_t leave = leave_offset(h, task->set), put = answers_offset(h, task->set);
    uint32_t end = first_token(task, worker + 1, workers);

    for (uint32_t t = first_token(task, worker, workers); t < end; t++) {
        const uint16_t *row[LL_TOPK];
        float by[LL_TOPK];
        uint32_t n = answers_to(task, t, leave, put, row, by);

        h->kernels->reduce(row, by, n, h->l.hidden, h->store,
                           (uint16_t *)task->m->out + (size_t)t * h->l.hidden);
    }
    if (h->store == KERNELS_STORE_STREAM)
        kernels_drain();
}

static void reduce_tokens_fp8(void *arg, uint32_t worker, uint32_t workers)
{
    const struct ll_task *task = arg;
    const struct ll_host *h = task->h;
    uint64_t leave = leave_offset(h, task->set), put = answers_offset(h, task->set);
    uint32_t end = first_token(task, worker + 1, workers);

    for (uint32_t t = first_token(task, worker, workers); t < end; t++) {
        const uint16_t *row[LL_TOPK];
        const uint8_t *code[LL_TOPK];
        const float *scale[LL_TOPK];
        float by[LL_TOPK];
        uint32_t n = answers_to(task, t, leave, put, row, by);

        for (uint32_t i = 0; i < n; i++) {
            code[i] = (const uint8_t *)row[i];
            scale[i] = (const float *)(const void *)(code[i] + h->l.sent_scales_at);
        }
        h->kernels->reduce_fp8(code, scale, by, n, h->l.hidden, h->l.group, h->store,
                               (uint16_t *)task->m->out + (size_t)t * h->l.hidden);
    }
    if (h->store == KERNELS_STORE_STREAM)
        kernels_drain();
}

/* The set of the dispatch that this combine belongs to, which is the oldest; NULL: it is not
 * that. */
static struct ll_set *set_of(struct ll_host *h, uint64_t epoch)
{
    struct ll_set *oldest = NULL;

    for (uint32_t i = 0; i < h->l.buffers; i++) {
        if (h->set[i].open && (oldest == NULL || h->set[i].epoch < oldest->epoch))
            oldest = &h->set[i];
    }
    if (oldest != NULL && oldest->epoch == epoch)
        return oldest;
    if (oldest != NULL && epoch > oldest->epoch && epoch <= h->epoch)
        (void)ll_fail(h, EPA_ERR_CONFIG,
                      "dispatch %llu is to be combined before %llu: they go in order",
                      (unsigned long long)epoch, (unsigned long long)oldest->epoch);
    else
        (void)ll_fail(h, EPA_ERR_CONFIG, "dispatch %llu is not open, or never was",
                      (unsigned long long)epoch);
    return NULL;
}

enum epa_status ll_combine(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct ll_host *h = host_of(a);
    struct epa_moe *m = &problem->u.moe;
    struct ll_set *s;
    struct ll_task task;
    enum epa_status status = EPA_OK;

    h->last.stage = "combine";
    h->last.doing = "copy_and_put";
    s = set_of(h, m->epoch);
    if (s == NULL)
        return EPA_ERR_CONFIG;
    task = (struct ll_task){.h = h, .set = s, .m = m};
    if (h->l.once && !h->l.by_rank)
        status = h->backend->ops->parallel(h->backend, add_up_answers, &task);
    else if (h->l.answer_fp8 || m->y != h->t->heap + y_offset(h, s))
        status = h->backend->ops->parallel(h->backend, send_answers, &task);
    if (status == EPA_OK && h->l.puts)
        status = put_answers(h, s);
    if (status == EPA_OK)
        status = ll_tell(h, LL_ANSWER, s->epoch);
    if (ll_phase(h, status, "recv_wait"))
        status = ll_wait(h, LL_ANSWER, s->epoch);
    if (ll_phase(h, status, "topk_reduce"))
        status = h->backend->ops->parallel(
            h->backend, h->l.answer_fp8 ? reduce_tokens_fp8 : reduce_tokens, &task);
    s->open = false;
    return status;
}
