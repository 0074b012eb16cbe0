/* Dispatch on hosts: choices sorted by expert, each token quantised once, blocks exchanged,
 * and what came handed out. The sort counts, so it is stable: within an expert rows stand in
 * the order of tokens. Each worker counts and then places the choices of its own tokens. */
#include "ll_v1_host.h"

#include <string.h>

static uint32_t *next_of(const struct v1_host *h, uint32_t worker)
{
    return h->next + (size_t)worker * h->l.experts;
}

static void count_choices(void *arg, uint32_t worker, uint32_t workers)
{
    const struct v1_task *task = arg;
    const struct v1_host *h = task->h;
    const struct epa_moe *m = task->m;
    size_t end = (size_t)share_of(m->tokens, worker + 1, workers) * h->l.topk;
    uint32_t *count = next_of(h, worker);

    memset(count, 0, h->l.experts * sizeof(*count));
    for (size_t i = (size_t)share_of(m->tokens, worker, workers) * h->l.topk; i < end;
         i++) {
        if (m->expert[i] >= 0)
            count[m->expert[i]]++;
    }
}

/* What each worker has counted becomes where it places its first choice of each expert. */
static void add_up(const struct v1_task *task)
{
    const struct v1_host *h = task->h;
    uint32_t *restrict cumsum = task->set->cumsum;
    uint32_t experts = h->l.experts, total = 0;

    memset(cumsum, 0, experts * sizeof(*cumsum));
    for (uint32_t w = 0; w < h->workers; w++) {
        uint32_t *restrict next = next_of(h, w);

        for (uint32_t e = 0; e < experts; e++) {
            uint32_t count = next[e];

            next[e] = cumsum[e];
            cumsum[e] += count;
        }
    }
    for (uint32_t e = 0; e < experts; e++) {
        uint32_t count = cumsum[e];

        cumsum[e] = total;
        total += count;
    }
    cumsum[experts] = total;
    for (uint32_t w = 0; w < h->workers; w++) {
        uint32_t *restrict next = next_of(h, w);

        for (uint32_t e = 0; e < experts; e++)
            next[e] += cumsum[e];
    }
}

/* Splits, but for the tokens: counts of each slice, and where it begins. */
static enum epa_status split(const struct v1_task *task)
{
    struct v1_host *h = task->h;

    for (uint32_t r = 0; r < h->l.size; r++) {
        const uint32_t *restrict cumsum = task->set->cumsum + (size_t)r * h->l.local;
        uint32_t *restrict out = splits_to(task, r);
        uint32_t rows = cumsum[h->l.local] - cumsum[0];

        for (uint32_t j = 0; j < h->l.local; j++)
            out[j] = cumsum[j + 1] - cumsum[j];
        out[h->l.local] = cumsum[0];
        if (rows > h->l.max_m)
            return v1_fail(h, EPA_ERR_CONFIG,
                           "rank %u has %u rows for rank %u, which has room for %u from "
                           "each: raise algorithm.capacity, or set it to 0",
                           h->world.rank, rows, r, h->l.max_m);
    }
    return EPA_OK;
}

static void place_choices(const struct v1_task *task, uint32_t begin, uint32_t end,
                          uint32_t *restrict next)
{
    const struct v1_host *h = task->h;
    uint32_t *restrict out = (uint32_t *)(void *)here(h, &h->l.out_splits, 0);
    uint32_t *restrict at = task->set->at;

    for (uint32_t t = begin; t < end; t++) {
        for (size_t i = (size_t)t * h->l.topk; i < (size_t)(t + 1) * h->l.topk; i++) {
            int32_t e = task->m->expert[i];

            at[i] = NOWHERE;
            if (e < 0)
                continue;
            at[i] = next[e]++;
            out[h->tokens_of[e] + at[i]] = t;
        }
    }
}

static void write_token(const struct v1_task *task, uint32_t t, uint32_t end)
{
    const struct v1_host *h = task->h;
    const struct epa_moe *m = task->m;
    const uint16_t *x =
        (const uint16_t *)m->x + (m->x != NULL ? (size_t)t * h->l.hidden : 0);
    char *to = here(h, &h->l.token, position(task)) + t * h->l.row_bytes;
    float *scale = (float *)(void *)(here(h, &h->l.token_scales, position(task)) +
                                     t * h->l.scales_bytes);
    uint32_t groups = h->l.fp8 ? h->l.hidden / h->l.group : 0;

    if (!h->l.fp8) {
        memcpy(to, x, h->l.token_bytes);
    } else if (m->x_dtype == EPA_FP8_E4M3) {
        memcpy(to, m->x_fp8 + (size_t)t * h->l.hidden, h->l.hidden);
        memcpy(scale, m->x_scale + (size_t)t * groups, groups * sizeof(*scale));
    } else {
        h->kernels->quantise(x, h->l.hidden, h->l.group,
                             t + 1 < end ? x + h->l.hidden : NULL, (uint8_t *)to, scale);
    }
}

static void place_and_quantise(void *arg, uint32_t worker, uint32_t workers)
{
    const struct v1_task *task = arg;
    uint32_t begin = share_of(task->m->tokens, worker, workers);
    uint32_t end = share_of(task->m->tokens, worker + 1, workers);

    place_choices(task, begin, end, next_of(task->h, worker));
    for (uint32_t t = begin; t < end; t++)
        write_token(task, t, end);
}

static enum epa_status sort_and_quantise(struct v1_task *task)
{
    const struct epa_backend_ops *ops = task->h->backend->ops;
    enum epa_status status = ops->parallel(task->h->backend, count_choices, task);

    if (status != EPA_OK)
        return status;
    add_up(task);
    status = split(task);
    if (status == EPA_OK)
        status = ops->parallel(task->h->backend, place_and_quantise, task);
    return status;
}

/* Every rank makes the same calls in the same order, so all take the same set: the first that
 * is free. Who combines before the next dispatch stays in one set, and in the cache. */
static struct v1_set *take_set(struct v1_host *h)
{
    for (uint32_t i = 0; i < h->l.buffers; i++) {
        if (h->set[i].open)
            continue;
        h->set[i].open = true;
        h->set[i].epoch = ++h->calls[V1_DISPATCH];
        return &h->set[i];
    }
    (void)v1_fail(
        h, EPA_ERR_CONFIG,
        "%u dispatches are open, as many as algorithm.buffers allows: combine one "
        "first",
        h->l.buffers);
    return NULL;
}

enum epa_status v1_dispatch(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct v1_host *h = v1_host_of(a);
    struct v1_task task = {.h = h, .m = &problem->u.moe, .mode = V1_DISPATCH};
    enum epa_status status;

    v1_begin(h, "dispatch", "sort_and_quantise");
    h->last.call = h->calls[V1_DISPATCH] + 1;
    task.set = take_set(h);
    if (task.set == NULL)
        return EPA_ERR_CONFIG;
    task.call = task.set->epoch;
    h->again = NULL;
    status = sort_and_quantise(&task);
    if (v1_phase(h, status, "send"))
        status = v1_exchange(&task);
    if (v1_phase(h, status, "postprocess"))
        status = v1_publish_views(&task);
    v1_end(h);
    return status;
}
