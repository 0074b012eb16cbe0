/* Counting, packing and adding up. A row is known by its place: `place` says which one it is
 * at the rank of its expert, or in what goes there, and expert outputs come back to the same. */
#include "alltoallv.h"

#include <string.h>

struct task {
    struct av *a;
    const struct epa_moe *m;
};

static uint32_t first_token(const struct task *task, uint32_t worker, uint32_t workers)
{
    return (uint32_t)((uint64_t)task->m->tokens * worker / workers);
}

enum epa_status av_count(struct av *a, const struct epa_moe *m)
{
    uint32_t choices = m->tokens * a->s.topk;

    memset(a->count, 0, a->s.experts * sizeof(*a->count));
    for (uint32_t i = 0; i < choices; i++) {
        if (m->expert[i] >= (int32_t)a->s.experts)
            return av_fail(a, EPA_ERR_CONFIG, "token %u chooses expert %d of %u",
                           i / a->s.topk, m->expert[i], a->s.experts);
        if (m->expert[i] >= 0)
            a->count[m->expert[i]]++;
    }
    return EPA_OK;
}

void av_give_places(struct av *a, const struct epa_moe *m)
{
    uint32_t choices = m->tokens * a->s.topk;

    for (uint32_t i = 0; i < choices; i++) {
        if (m->expert[i] >= 0)
            a->place[i] = a->next[m->expert[i]]++;
    }
}

uint64_t av_lay_out(struct av *a)
{
    uint64_t rows = 0;

    for (uint32_t e = 0; e < a->s.local; e++) {
        a->recv_start[e] = rows;
        a->recv_count[e] = 0;
        for (uint32_t source = 0; source < a->s.size; source++)
            a->recv_count[e] += (uint32_t)av_counts_of(a, source)[e];
        rows += a->recv_count[e];
    }
    return rows;
}

enum epa_status av_too_full(struct av *a, uint32_t rank, uint64_t rows)
{
    return av_fail(a, EPA_ERR_CONFIG,
                   "rank %u would receive %llu rows and has room for %llu: raise "
                   "algorithm.capacity, or set it to 0",
                   rank, (unsigned long long)rows, (unsigned long long)a->s.entries);
}

static void write_message(const struct task *task, uint32_t t, const uint16_t *next,
                          char *msg)
{
    const struct av_shape *s = &task->a->s;
    const struct epa_moe *m = task->m;
    float *scale = (float *)(void *)(msg + s->scales_at);
    size_t groups = s->fp8 ? s->hidden / s->group : 0;
    struct epa_origin origin = {task->a->world.rank, t};

    if (!s->fp8) {
        memcpy(msg, (const uint16_t *)m->x + (size_t)t * s->hidden, s->output_bytes);
    } else if (m->x_dtype == EPA_FP8_E4M3) {
        memcpy(msg, m->x_fp8 + (size_t)t * s->hidden, s->hidden);
        memcpy(scale, m->x_scale + t * groups, groups * sizeof(*scale));
    } else {
        task->a->kernels->quantise((const uint16_t *)m->x + (size_t)t * s->hidden,
                                   s->hidden, s->group, next, (uint8_t *)msg, scale);
    }
    memcpy(msg + s->origin_at, &origin, sizeof(origin));
}

static void pack(void *arg, uint32_t worker, uint32_t workers)
{
    const struct task *task = arg;
    const struct av *a = task->a;
    const struct av_shape *s = &a->s;
    char *msg = a->scratch + worker * s->message_bytes;
    uint32_t end = first_token(task, worker + 1, workers);

    for (uint32_t t = first_token(task, worker, workers); t < end; t++) {
        size_t choice = (size_t)t * s->topk;
        const uint16_t *next = NULL;
        void *to[AV_TOPK];
        uint32_t n = 0;

        if (task->m->x != NULL && t + 1 < end)
            next = (const uint16_t *)task->m->x + (size_t)(t + 1) * s->hidden;
        for (size_t i = choice; i < choice + s->topk; i++) {
            int32_t e = task->m->expert[i];

            if (e >= 0)
                to[n++] = a->into[(uint32_t)e / s->local] + a->place[i] * s->message_bytes;
        }
        if (n == 0)
            continue;
        write_message(task, t, next, msg);
        a->kernels->spread(to, n, msg, s->message_bytes, a->store);
    }
    if (a->store == EPA_STORE_NONTEMPORAL)
        epa_store_drain();
}

enum epa_status av_pack(struct av *a, const struct epa_moe *m)
{
    struct task task = {a, m};

    return av_parallel(a, "pack", pack, &task);
}

static void add_up(void *arg, uint32_t worker, uint32_t workers)
{
    const struct task *task = arg;
    const struct av *a = task->a;
    const struct av_shape *s = &a->s;
    uint32_t end = first_token(task, worker + 1, workers);

    for (uint32_t t = first_token(task, worker, workers); t < end; t++) {
        size_t choice = (size_t)t * s->topk;
        const uint16_t *row[AV_TOPK];
        float by[AV_TOPK];
        uint32_t n = 0;

        for (size_t i = choice; i < choice + s->topk; i++) {
            int32_t e = task->m->expert[i];

            if (e < 0)
                continue;
            by[n] = task->m->weight[i];
            row[n++] = (const uint16_t *)(const void *)(a->from[(uint32_t)e / s->local] +
                                                        a->place[i] * s->output_bytes);
        }
        a->kernels->reduce(row, by, n, s->hidden, a->store,
                           (uint16_t *)task->m->out + (size_t)t * s->hidden);
    }
    if (a->store == EPA_STORE_NONTEMPORAL)
        epa_store_drain();
}

enum epa_status av_add_up(struct av *a, const struct epa_moe *m)
{
    struct task task = {a, m};

    return av_parallel(a, "add_up", add_up, &task);
}

void av_publish_views(struct av *a, struct epa_moe *m, char *recv, uint64_t rows, char *y)
{
    m->epoch = a->epoch;
    m->recv_rows = m->recv_entries = rows;
    m->recv_count = a->recv_count;
    m->recv_start = a->recv_start;
    m->recv_row = NULL;
    m->recv_weight = NULL;
    m->recv = recv;
    m->recv_scale = a->s.fp8 ? (const float *)(const void *)(recv + a->s.scales_at) : NULL;
    m->origin = (const struct epa_origin *)(const void *)(recv + a->s.origin_at);
    m->recv_stride = m->scale_stride = m->origin_stride = a->s.message_bytes;
    m->y_space = y;
}

enum epa_status av_begin_dispatch(struct av *a)
{
    if (a->open)
        return av_fail(a, EPA_ERR_CONFIG,
                       "dispatch %llu is open, and there is room for one: combine it first",
                       (unsigned long long)a->epoch);
    a->open = true;
    a->epoch++;
    return EPA_OK;
}

enum epa_status av_begin_combine(struct av *a, const struct epa_moe *m)
{
    if (!a->open || m->epoch != a->epoch)
        return av_fail(a, EPA_ERR_CONFIG, "dispatch %llu is not open, or never was",
                       (unsigned long long)m->epoch);
    a->open = false;
    return EPA_OK;
}
