/* Dispatch on hosts, its end: what came becomes the views that experts read. Layout rank: an
 * index over the rows. Layout expert with `once`: a row for each expert, copied from the one
 * that came. Phase by the source's name: postprocess. */
#include "ll_v2_host.h"

/* Says what is wrong with the choices of a row. */
static enum epa_status blame(struct ll_host *h, uint64_t row, const char *msg)
{
    uint32_t n = meta_of(msg)->choices, c = 0;
    const struct ll_choice *choice = choices_of(h, msg);

    while (n <= h->l.topk && c + 1 < n && choice[c].entry < h->l.entries)
        c++;
    return ll_fail(h, EPA_ERR_MISMATCH, "row %llu says it has %u choices, entry %u",
                   (unsigned long long)row, n, choice[c].entry);
}

/* Each message says which entries want its row. */
static enum epa_status index_rows(struct ll_host *h, struct ll_set *s, uint64_t rows,
                                  const char *recv)
{
    enum { AHEAD = 8 };

    for (uint64_t row = 0; row < rows; row++) {
        const char *msg = recv + row * h->l.message_bytes;
        const struct ll_meta *meta = meta_of(msg);
        const struct ll_choice *choice = choices_of(h, msg);

        __builtin_prefetch(msg + AHEAD * h->l.message_bytes);
        __builtin_prefetch(msg + AHEAD * h->l.message_bytes + h->l.choices_at);
        for (uint32_t c = 0; c < meta->choices; c++) {
            if (meta->choices > h->l.topk || choice[c].entry >= h->l.entries)
                return blame(h, row, msg);
            s->recv_row[choice[c].entry] = (uint32_t)row;
            s->recv_weight[choice[c].entry] = choice[c].weight;
        }
    }
    return EPA_OK;
}

/* A row that came, to each of its experts; false if it says what cannot be. */
static bool copy_row(const struct ll_host *h, const char *msg, char *recv)
{
    uint32_t n = meta_of(msg)->choices;
    const struct ll_choice *choice = choices_of(h, msg);
    /* Of the choices, what shares a line with the rest. */
    uint64_t bytes = (h->l.choices_at + LL_LINE - 1) / LL_LINE * LL_LINE;
    void *to[LL_TOPK];

    if (n > h->l.topk)
        return false;
    for (uint32_t c = 0; c < n; c++) {
        if (choice[c].entry >= h->l.entries)
            return false;
        to[c] = recv + choice[c].entry * h->l.message_bytes;
    }
    h->kernels->spread(to, n, msg, bytes, h->store);
    return true;
}

static void copy_rows(void *arg, uint32_t worker, uint32_t workers)
{
    struct ll_task *task = arg;
    const struct ll_host *h = task->h;
    const char *received = h->t->heap + arrival_offset(h, task->set);
    char *recv = h->t->heap + recv_offset(h, task->set);
    uint64_t rows = rows_that_came(h, task->set), end = rows * (worker + 1) / workers;

    for (uint64_t row = rows * worker / workers; row < end; row++) {
        /* Relaxed: read once the workers have been waited for. */
        if (!copy_row(h, received + row * h->l.message_bytes, recv))
            __atomic_store_n(&task->wrong, row + 1, __ATOMIC_RELAXED);
    }
    if (h->store == EPA_STORE_NONTEMPORAL)
        epa_store_drain();
}

static enum epa_status copy_to_experts(struct ll_task *task)
{
    struct ll_host *h = task->h;
    const char *received = h->t->heap + arrival_offset(h, task->set);
    enum epa_status status = h->backend->ops->parallel(h->backend, copy_rows, task);

    if (status == EPA_OK && task->wrong != 0)
        status = blame(h, task->wrong - 1, received + (task->wrong - 1) * h->l.message_bytes);
    return status;
}

enum epa_status ll_publish_views(struct ll_task *task)
{
    struct ll_host *h = task->h;
    struct ll_set *s = task->set;
    struct epa_moe *m = task->m;
    const char *recv = h->t->heap + recv_offset(h, s);
    uint32_t last = h->l.local - 1;

    m->epoch = s->epoch;
    m->recv_rows = m->recv_entries = s->recv_start[last] + s->recv_count[last];
    m->recv_count = s->recv_count;
    m->recv_start = s->recv_start;
    m->recv = recv + LL_META_BYTES;
    m->recv_scale = h->l.fp8 ? (const float *)(const void *)(recv + h->l.scales_at) : NULL;
    m->origin = (const struct epa_origin *)(const void *)recv;
    m->recv_stride = m->scale_stride = m->origin_stride = h->l.message_bytes;
    m->y_space = h->l.fused ? NULL : h->t->heap + y_offset(h, s);
    m->recv_row = NULL;
    m->recv_weight = NULL;
    if (h->l.by_rank) {
        m->recv_rows = rows_that_came(h, s);
        m->recv_row = s->recv_row;
        m->recv_weight = s->recv_weight;
        return index_rows(h, s, m->recv_rows, recv);
    }
    return h->l.dedup ? copy_to_experts(task) : EPA_OK;
}
