/* Counting, packing and adding up. A row is known by its place: `place` says which one it is
 * at the rank of its expert, or in what goes there, and expert outputs come back to the same. */
#include "alltoallv.h"

#include <string.h>

struct task {
    struct av *a;
    const struct epa_moe *m;
};

enum epa_status av_count(struct av *a, const struct epa_moe *m)
{
    uint32_t choices = m->tokens * a->s.topk;

    memset(a->count, 0, a->s.experts * sizeof(*a->count));
    for (uint32_t i = 0; i < choices; i++) {
        if (m->expert[i] >= (int32_t)a->s.experts)
            return av_fail(a, EPA_ERR_CONFIG, "token %u chooses expert %d of %u", i / a->s.topk,
                           m->expert[i], a->s.experts);
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
        a->h.set[0]->recv_start[e] = rows;
        a->h.set[0]->recv_count[e] = 0;
        for (uint32_t source = 0; source < a->s.size; source++)
            a->h.set[0]->recv_count[e] += (uint32_t)av_counts_of(a, source)[e];
        rows += a->h.set[0]->recv_count[e];
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

static void pack(void *arg, uint32_t worker, uint32_t workers)
{
    const struct task *task = arg;
    const struct av *a = task->a;
    const struct av_shape *s = &a->s;
    char *msg = a->scratch + worker * s->message_bytes;
    uint32_t end = algo_share(task->m->tokens, worker + 1, workers);

    for (uint32_t t = algo_share(task->m->tokens, worker, workers); t < end; t++) {
        size_t choice = (size_t)t * s->topk;
        void *to[AV_TOPK];
        uint32_t n = 0;

        for (size_t i = choice; i < choice + s->topk; i++) {
            int32_t e = task->m->expert[i];

            if (e >= 0)
                to[n++] = a->into[a->h.rank_of[e]] + a->place[i] * s->message_bytes;
        }
        if (n == 0)
            continue;
        epa_write_token(a->h.kernels, task->m, s->fp8, t, end, msg, msg + s->scales_at);
        memcpy(msg + s->origin_at, &(struct epa_origin){a->h.world.rank, t},
               sizeof(struct epa_origin));
        a->h.kernels->spread(to, n, msg, s->message_bytes, a->h.store);
    }
    algo_drain(a->h.store);
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
    uint32_t end = algo_share(task->m->tokens, worker + 1, workers);

    for (uint32_t t = algo_share(task->m->tokens, worker, workers); t < end; t++) {
        size_t choice = (size_t)t * s->topk;
        const uint16_t *row[AV_TOPK];
        float by[AV_TOPK];
        uint32_t n = 0;

        for (size_t i = choice; i < choice + s->topk; i++) {
            int32_t e = task->m->expert[i];

            if (e < 0)
                continue;
            by[n] = task->m->weight[i];
            row[n++] = (const uint16_t *)(const void *)(a->from[a->h.rank_of[e]] +
                                                        a->place[i] * s->output_bytes);
        }
        a->h.kernels->reduce(row, by, n, s->hidden, a->h.store,
                             (uint16_t *)task->m->out + (size_t)t * s->hidden);
    }
    algo_drain(a->h.store);
}

enum epa_status av_add_up(struct av *a, const struct epa_moe *m)
{
    struct task task = {a, m};

    return av_parallel(a, "add_up", add_up, &task);
}

void av_publish(struct av *a, struct epa_moe *m, const char *recv, char *y)
{
    const struct algo_set *set = a->h.set[0];

    epa_publish_counts(m, set->epoch, a->s.local, set->recv_count, set->recv_start);
    epa_publish_messages(m, recv, 0, a->s.fp8, a->s.scales_at, a->s.origin_at, a->s.message_bytes);
    m->y_space = y;
}

enum epa_status av_begin_dispatch(struct av *a)
{
    algo_begin(&a->h, "dispatch", "count");
    if (algo_take_set(&a->h) != NULL)
        return EPA_OK;
    return av_fail(a, EPA_ERR_CONFIG,
                   "dispatch %llu is open, and there is room for one: combine it first",
                   (unsigned long long)a->h.epoch);
}

enum epa_status av_begin_combine(struct av *a, const struct epa_moe *m)
{
    struct algo_set *set;

    algo_begin(&a->h, "combine", "expert outputs");
    set = algo_set_of(&a->h, m->epoch, ALGO_OPEN, "open");
    if (set == NULL) {
        a->failed = true;
        return EPA_ERR_CONFIG;
    }
    set->state = ALGO_FREE;
    return EPA_OK;
}
