/* Combine on hosts: expert outputs go back in blocks, or are pulled from where the experts wrote them,
 * and each rank adds up those to its tokens. Where the answer to a choice stands is its place
 * as sorted, counted from an address for each expert. */
#include "ll_v1_host.h"

#include <string.h>

/* Expert outputs that stand elsewhere, to where they are pulled or put from. */
static void take_outputs(void *arg, uint32_t worker, uint32_t workers)
{
    const struct v1_task *task = arg;
    const struct v1_host *h = task->h;
    uint64_t bytes = h->l.output_bytes;
    uint32_t begin = share_of(task->end, worker, workers);
    uint32_t n = share_of(task->end, worker + 1, workers) - begin;

    if (n != 0) /* y may be NULL then */
        memcpy(here(h, &h->l.y, index_of(task)) + begin * bytes,
               (const char *)task->m->y + begin * bytes, n * bytes);
}

/* Who pushes to all reads them where they stand. */
static enum epa_status find_outputs(struct v1_task *task)
{
    struct v1_host *h = task->h;
    uint32_t last = h->l.local - 1;
    bool apart = task->m->y != here(h, &h->l.y, index_of(task));

    task->y = here(h, &h->l.y, index_of(task));
    if (apart && !h->l.pull && !h->far)
        task->y = task->m->y;
    else if (apart && h->again == NULL) /* called again the same expert outputs are there */
        task->end = (uint32_t)task->set->recv_start[last] + task->set->recv_count[last];
    return task->end != 0 ? h->backend->ops->parallel(h->backend, take_outputs, task)
                          : EPA_OK;
}

/* For each expert of a rank, where the answer to my row 0, as sorted, would stand if it was for
 * that expert: modulo the size of an address, as there may be none. */
static void locate_outputs(const struct v1_task *task, uint32_t rank)
{
    const struct v1_host *h = task->h;
    uint32_t first = rank * h->l.local, local = h->l.local;
    const uint32_t *restrict cumsum = task->set->cumsum + first, *restrict start = cumsum;
    uintptr_t *restrict out = h->outputs + first, at, bytes = h->l.output_bytes;

    if (way_to(h, rank) == V1_PULL) {
        at = (uintptr_t)there(h, rank, &h->l.y, index_of(task));
        start =
            (const uint32_t *)(const void *)there(h, rank, &h->l.starts, index_of(task)) +
            (size_t)h->world.rank * local;
    } else {
        at = (uintptr_t)here(h, &h->l.outputs, position(task));
    }
    for (uint32_t j = 0; j < local; j++)
        out[j] = at + ((uintptr_t)start[j] - cumsum[j]) * bytes;
}

static void reduce_tokens(void *arg, uint32_t worker, uint32_t workers)
{
    const struct v1_task *task = arg;
    const struct v1_host *h = task->h;
    const struct epa_moe *m = task->m;
    uint32_t end = share_of(m->tokens, worker + 1, workers);

    for (uint32_t t = share_of(m->tokens, worker, workers); t < end; t++) {
        const uint16_t *row[V1_TOPK];
        float weight[V1_TOPK];
        uint32_t n = 0;

        for (size_t i = (size_t)t * h->l.topk; i < (size_t)(t + 1) * h->l.topk; i++) {
            if (m->expert[i] < 0)
                continue;
            weight[n] = m->weight[i];
            row[n++] = (const uint16_t *)(h->outputs[m->expert[i]] +
                                          task->set->at[i] * h->l.output_bytes);
        }
        h->kernels->reduce(row, weight, n, h->l.hidden, h->store,
                           (uint16_t *)m->out + (size_t)t * h->l.hidden);
    }
    if (h->store == EPA_STORE_NONTEMPORAL)
        epa_store_drain();
}

static enum epa_status add_up(struct v1_task *task)
{
    struct v1_host *h = task->h;

    for (uint32_t rank = 0; rank < h->l.size; rank++)
        locate_outputs(task, rank);
    return h->backend->ops->parallel(h->backend, reduce_tokens, task);
}

/* The set of the dispatch that this combine belongs to: the oldest that is open, or the one
 * combined last, if nothing was dispatched since; NULL: it is neither. */
static struct v1_set *set_of(struct v1_host *h, uint64_t epoch)
{
    struct v1_set *oldest = NULL;

    if (h->again != NULL && h->again->epoch == epoch)
        return h->again;
    h->again = NULL;
    for (uint32_t i = 0; i < h->l.buffers; i++) {
        if (h->set[i].open && (oldest == NULL || h->set[i].epoch < oldest->epoch))
            oldest = &h->set[i];
    }
    if (oldest != NULL && oldest->epoch == epoch)
        return oldest;
    if (oldest != NULL && epoch > oldest->epoch && epoch <= h->calls[V1_DISPATCH])
        (void)v1_fail(h, EPA_ERR_CONFIG,
                      "dispatch %llu is to be combined before %llu: they go in order",
                      (unsigned long long)epoch, (unsigned long long)oldest->epoch);
    else
        (void)v1_fail(h, EPA_ERR_CONFIG, "dispatch %llu is not open, or never was",
                      (unsigned long long)epoch);
    return NULL;
}

enum epa_status v1_combine(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct v1_host *h = v1_host_of(a);
    struct v1_task task = {.h = h, .m = &problem->u.moe, .mode = V1_COMBINE};
    enum epa_status status;

    v1_begin(h, "combine", "send");
    h->last.call = h->calls[V1_COMBINE] + 1;
    task.set = set_of(h, task.m->epoch);
    if (task.set == NULL)
        return EPA_ERR_CONFIG;
    task.call = ++h->calls[V1_COMBINE];
    status = find_outputs(&task);
    if (status == EPA_OK)
        status = v1_exchange(&task);
    if (v1_phase(h, status, "reduce"))
        status = add_up(&task);
    v1_end(h);
    task.set->open = false;
    h->again = task.set;
    return status;
}
