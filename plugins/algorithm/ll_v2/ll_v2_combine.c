/* Combine on hosts: each rank pulls the answers to its tokens from where the experts wrote
 * them (or has them put here) and adds them up. Phases by the source's names: copy_and_put,
 * recv_wait, topk_reduce. */
#include "ll_v2_host.h"

#include <string.h>

static void copy_answers(void *arg, uint32_t worker, uint32_t workers)
{
    const struct ll_task *task = arg;
    const struct ll_host *h = task->h;
    uint64_t rows = h->l.by_rank ? task->m->recv_rows : task->m->recv_entries;
    uint64_t from = rows * worker / workers * h->l.answer_bytes;
    uint64_t to = rows * (worker + 1) / workers * h->l.answer_bytes;

    if (to != from) /* y may be NULL then */
        memcpy(h->t->heap + y_offset(h, task->set) + from, (const char *)task->m->y + from,
               to - from);
}

/* The answers to `source`'s rows, of one expert or of this rank: they stand side by side
 * here and there, so each is one put. `row` is the first of them here, `answer` there. */
static enum epa_status put_block(struct ll_host *h, const struct ll_set *s, uint32_t source,
                                 uint64_t row, uint64_t answer, uint32_t n)
{
    uint64_t bytes = h->l.answer_bytes;

    if (n == 0)
        return EPA_OK;
    return ll_put(h, answers_offset(h, s) + answer * bytes,
                  h->t->heap + y_offset(h, s) + row * bytes, n * bytes, source);
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
        status = h->l.by_rank ? put_answers_of_rank(h, s, source)
                              : put_answers_of_experts(h, s, source);
    }
    return status;
}

static const uint16_t *answer_at(const struct ll_host *h, const struct ll_set *s,
                                 const struct ll_place *p)
{
    uint64_t bytes = h->l.answer_bytes;

    if (reachable(h, p->rank))
        return (const uint16_t *)(const void *)heap_at(h, p->rank,
                                                       y_offset(h, s) + p->row * bytes);
    return (const uint16_t *)(const void *)(h->t->heap + answers_offset(h, s) +
                                            p->answer * bytes);
}

static void reduce_tokens(void *arg, uint32_t worker, uint32_t workers)
{
    const struct ll_task *task = arg;
    const struct ll_host *h = task->h;
    uint32_t end = first_token(task, worker + 1, workers);

    for (uint32_t t = first_token(task, worker, workers); t < end; t++) {
        const struct ll_place *place = task->set->place + (size_t)t * h->l.places;
        const float *weight = task->m->weight + (size_t)t * h->l.topk;
        const uint16_t *row[LL_TOPK];
        float by[LL_TOPK];
        uint32_t n = 0;

        for (uint32_t j = 0; j < h->l.places; j++) {
            if (place[j].rank == NOWHERE)
                continue;
            by[n] = h->l.by_rank ? 1.0f : weight[j];
            row[n++] = answer_at(h, task->set, &place[j]);
        }
        h->kernels->reduce(row, by, n, h->l.hidden, h->store,
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
    task = (struct ll_task){h, s, m};
    if (m->y != h->t->heap + y_offset(h, s))
        status = h->backend->ops->parallel(h->backend, copy_answers, &task);
    if (status == EPA_OK && h->l.puts)
        status = put_answers(h, s);
    if (status == EPA_OK)
        status = ll_tell(h, LL_ANSWER, s->epoch);
    if (ll_phase(h, status, "recv_wait"))
        status = ll_wait(h, LL_ANSWER, s->epoch);
    if (ll_phase(h, status, "topk_reduce"))
        status = h->backend->ops->parallel(h->backend, reduce_tokens, &task);
    s->open = false;
    return status;
}
