/* Dispatch on hosts: counts to everybody, then every row to the place where its expert
 * reads it, or to its rank. Phases by the source's names: count_put, quant_and_put, wait; then
 * postprocess (ll_v2_arrival.c). */
#include "ll_v2_host.h"

#include <stdlib.h>
#include <string.h>

/* ---- dispatch: counts ---- */

static uint32_t rank_of(const struct ll_host *h, int32_t expert)
{
    return h->rank_of[expert];
}

/* The ranks that token t goes to, a bit each. */
static uint64_t ranks_of(const struct ll_host *h, const struct epa_moe *m, uint32_t t)
{
    const int32_t *expert = m->expert + (size_t)t * h->l.topk;
    uint64_t ranks = 0;

    for (uint32_t k = 0; k < h->l.topk; k++) {
        if (expert[k] >= 0)
            ranks |= 1ull << rank_of(h, expert[k]);
    }
    return ranks;
}

static void count_routes(const struct ll_host *h, const struct epa_moe *m, uint32_t *count)
{
    uint32_t choices = m->tokens * h->l.topk;

    memset(count, 0, h->l.count_words * sizeof(*count));
    for (uint32_t i = 0; i < choices; i++) {
        if (m->expert[i] >= 0)
            count[m->expert[i]]++;
    }
    for (uint32_t t = 0; h->l.dedup && t < m->tokens; t++) {
        for (uint64_t ranks = ranks_of(h, m, t); ranks != 0; ranks &= ranks - 1)
            count[h->l.experts + (uint32_t)__builtin_ctzll(ranks)]++;
    }
}

/* Gives my counts to all and takes a copy of everybody's, which stands while peers go on.
 */
static enum epa_status exchange_counts(struct ll_host *h, struct ll_set *s,
                                       const struct epa_moe *m)
{
    uint64_t row = h->l.count_words * sizeof(uint32_t);
    uint64_t at = region(h, s, h->l.counts_at, h->l.counts_bytes);
    uint64_t mine = at + h->world.rank * row;
    enum epa_status status = EPA_OK;

    count_routes(h, m, (uint32_t *)(void *)(h->t->heap + mine));
    for (uint32_t i = 1; i < h->l.size && status == EPA_OK; i++) {
        uint32_t p = peer_at(h, i);
        uint64_t deadline = 0;

        h->last.peer = p;
        epa_trace_flow_begin(h->trace, 0, p, signal_of(h, LL_COUNT, h->world.rank), s->epoch);
        do {
            status = epa_put_signal(h->t, mine, h->t->heap + mine, row,
                                    signal_of(h, LL_COUNT, h->world.rank), s->epoch, p);
        } while (ll_again(h, &status, &deadline));
    }
    if (ll_phase(h, status, LL_DO_WAIT))
        status = ll_wait(h, LL_COUNT, s->epoch);
    if (status == EPA_OK)
        memcpy(s->count, h->t->heap + at, h->l.counts_bytes);
    return status;
}

/* ---- dispatch: places ---- */

static enum epa_status too_full(struct ll_host *h, uint32_t rank, uint64_t rows)
{
    return ll_fail(h, EPA_ERR_CONFIG,
                   "rank %u would receive %llu rows and has room for %llu: raise "
                   "algorithm.capacity, or set it to 0",
                   rank, (unsigned long long)rows, (unsigned long long)h->l.entries);
}

/* One expert's entries after the other's. */
static enum epa_status pack_entries(struct ll_host *h, struct ll_set *s)
{
    const struct ll_layout *l = &h->l;
    uint32_t *restrict all = h->sum, *restrict next = h->next;
    uint32_t experts = l->experts, local = l->local, mine = h->world.rank * local;

    for (uint32_t first = 0; first < experts; first += local) {
        uint64_t end = 0;

        for (uint32_t e = first; e < first + local; e++) {
            next[e] += (uint32_t)end;
            end += all[e];
        }
        if (end > l->entries)
            return too_full(h, first / local, end);
    }
    for (uint32_t i = 0; i < local; i++)
        s->recv_start[i] = i == 0 ? 0 : s->recv_start[i - 1] + all[mine + i - 1];
    return EPA_OK;
}

/* With room for all tokens there can be, so that none is too many. */
static void pad_entries(struct ll_host *h, struct ll_set *s)
{
    uint32_t local = h->l.local, room = h->l.size * h->l.max_tokens;

    for (uint32_t e = 0; e < h->l.experts; e++)
        h->next[e] += e % local * room;
    for (uint32_t i = 0; i < local; i++)
        s->recv_start[i] = (uint64_t)i * room;
}

/* Entries stand at a receiver by expert, within an expert by source: next[e] becomes the place
 * of my first for expert e, and the receiver's own starts and counts are filled in. */
static enum epa_status lay_out_entries(struct ll_host *h, struct ll_set *s)
{
    const struct ll_layout *l = &h->l;
    uint32_t *restrict all = h->sum, *restrict next = h->next;
    uint32_t experts = l->experts, local = l->local, mine = h->world.rank * local;

    memset(all, 0, experts * sizeof(*all));
    for (uint32_t source = 0; source < l->size; source++) {
        const uint32_t *restrict count = expert_counts(h, s, source);

        if (source == h->world.rank)
            memcpy(next, all, experts * sizeof(*next));
        for (uint32_t e = 0; e < experts; e++)
            all[e] += count[e];
    }
    for (uint32_t i = 0; i < local; i++)
        s->recv_count[i] = all[mine + i];
    if (!l->padded)
        return pack_entries(h, s);
    pad_entries(h, s);
    return EPA_OK;
}

/* Rows that are sent once stand by source. next_row[r] becomes the place of my first at rank
 * r. */
static enum epa_status lay_out_rows(struct ll_host *h, struct ll_set *s)
{
    for (uint32_t rank = 0; rank < h->l.size; rank++) {
        uint64_t end = 0;

        for (uint32_t source = 0; source < h->l.size; source++) {
            if (source == h->world.rank)
                h->next_row[rank] = (uint32_t)end;
            end += rank_counts(h, s, source)[rank];
        }
        if (end > h->l.rows)
            return too_full(h, rank, end);
    }
    return EPA_OK;
}

/* Expert outputs that are put stand at the source by expert (or rank), in the order of its rows.
 */
static void lay_out_outputs(const struct ll_host *h, const struct ll_set *s)
{
    uint32_t n = h->l.dedup ? h->l.size : h->l.experts, end = 0;
    uint32_t *restrict next = h->next_output;
    const uint32_t *restrict count =
        h->l.dedup ? rank_counts(h, s, h->world.rank) : expert_counts(h, s, h->world.rank);

    for (uint32_t i = 0; i < n; i++) {
        next[i] = end;
        end += count[i];
    }
}

static void place_by_expert(const struct ll_host *h, struct ll_set *s,
                            const struct epa_moe *m)
{
    uint32_t choices = m->tokens * h->l.topk;

    for (uint32_t i = 0; i < choices; i++) {
        int32_t e = m->expert[i];

        s->place[i] = (struct ll_slot){.rank = NOWHERE};
        if (e >= 0)
            s->place[i] =
                (struct ll_slot){rank_of(h, e), h->next[e]++, h->next_output[e]++};
    }
}

static void place_by_rank(const struct ll_host *h, struct ll_set *s,
                          const struct epa_moe *m)
{
    for (uint32_t t = 0; t < m->tokens; t++) {
        struct ll_slot *place = s->place + (size_t)t * h->l.places;
        uint32_t n = 0;

        for (uint64_t ranks = ranks_of(h, m, t); ranks != 0; ranks &= ranks - 1) {
            uint32_t r = (uint32_t)__builtin_ctzll(ranks);

            place[n++] = (struct ll_slot){r, h->next_row[r]++, h->next_output[r]++};
        }
        for (; n < h->l.places; n++)
            place[n] = (struct ll_slot){.rank = NOWHERE};
        for (size_t i = (size_t)t * h->l.topk; i < (size_t)(t + 1) * h->l.topk; i++) {
            if (m->expert[i] >= 0)
                s->entry[i] = h->next[m->expert[i]]++;
        }
    }
}

static enum epa_status give_places(struct ll_host *h, struct ll_set *s,
                                   const struct epa_moe *m)
{
    enum epa_status status = lay_out_entries(h, s);

    if (status == EPA_OK && h->l.dedup)
        status = lay_out_rows(h, s);
    if (status != EPA_OK)
        return status;
    if (h->l.puts)
        lay_out_outputs(h, s);
    if (h->far != 0)
        ll_begin_rows(h, s);
    if (h->l.dedup)
        place_by_rank(h, s, m);
    else
        place_by_expert(h, s, m);
    return EPA_OK;
}

/* ---- dispatch: rows ---- */

static void write_token(const struct ll_task *task, uint32_t t, const uint16_t *next,
                        char *msg)
{
    const struct ll_layout *l = &task->h->l;
    const struct epa_moe *m = task->m;
    float *scale = (float *)(void *)(msg + l->scales_at);
    uint32_t groups = l->fp8 ? l->hidden / l->group : 0; /* group may be 0 without */

    if (!l->fp8) {
        memcpy(msg + LL_META_BYTES, (const uint16_t *)m->x + (size_t)t * l->hidden,
               l->token_bytes);
    } else if (m->x_dtype == EPA_FP8_E4M3) {
        memcpy(msg + LL_META_BYTES, m->x_fp8 + (size_t)t * l->hidden, l->hidden);
        memcpy(scale, m->x_scale + (size_t)t * groups, groups * sizeof(*scale));
    } else {
        task->h->kernels->quantise((const uint16_t *)m->x + (size_t)t * l->hidden,
                                   l->hidden, l->group, next,
                                   (uint8_t *)msg + LL_META_BYTES, scale);
    }
}

static void write_meta(const struct ll_task *task, uint32_t t, uint32_t choices, char *msg)
{
    *(struct ll_meta *)(void *)msg = (struct ll_meta){
        .origin = {task->h->world.rank, t},
        .epoch = (uint32_t)task->set->epoch,
        .choices = choices,
    };
}

/* One message for all experts that want token t. */
static void send_to_experts(const struct ll_task *task, uint32_t t, const uint16_t *next,
                            uint32_t worker)
{
    const struct ll_host *h = task->h;
    const struct ll_slot *place = task->set->place + (size_t)t * h->l.places;
    uint64_t recv = recv_offset(h, task->set);
    char *msg = NULL;
    void *to[LL_TOPK], *copy[LL_TOPK];
    uint32_t n = 0, copies = 0;

    for (uint32_t j = 0; j < h->l.places; j++) {
        if (place[j].rank == NOWHERE)
            continue;
        if (reachable(h, place[j].rank))
            to[n++] = heap_at(h, place[j].rank, recv + place[j].row * h->l.message_bytes);
        else if (msg == NULL)
            msg = ll_staging_at(h, task->set, t, &place[j]);
        else if (h->l.blocks)
            copy[copies++] = ll_staging_at(h, task->set, t, &place[j]);
    }
    if (msg == NULL)
        msg = h->scratch + worker * h->l.message_bytes;
    write_token(task, t, next, msg);
    write_meta(task, t, 0, msg);
    h->kernels->spread(to, n, msg, h->l.message_bytes, h->store);
    h->kernels->spread(copy, copies, msg, h->l.message_bytes, EPA_STORE_CACHED);
}

/* Token t once for each rank, with the choices that this rank is to answer. */
static void send_to_ranks(const struct ll_task *task, uint32_t t, const uint16_t *next,
                          uint32_t worker)
{
    const struct ll_host *h = task->h;
    const struct ll_layout *l = &h->l;
    const struct ll_slot *place = task->set->place + (size_t)t * l->places;
    uint64_t recv = arrival_offset(h, task->set);
    char *scratch = h->scratch + worker * l->message_bytes, *first = NULL;
    bool again = false; /* the token stands in scratch */

    for (uint32_t j = 0; j < l->places && place[j].rank != NOWHERE; j++) {
        bool near = reachable(h, place[j].rank);
        char *msg = near ? scratch : ll_staging_at(h, task->set, t, &place[j]);
        struct ll_choice *choice = (struct ll_choice *)(void *)(msg + l->choices_at);
        uint32_t n = 0;

        if (first == NULL)
            write_token(task, t, next, first = msg);
        else if (!near || !again)
            memcpy(msg, first, l->choices_at);
        again = again || near;
        for (size_t i = (size_t)t * l->topk; i < (size_t)(t + 1) * l->topk; i++) {
            int32_t e = task->m->expert[i];

            if (e >= 0 && rank_of(h, e) == place[j].rank)
                choice[n++] = (struct ll_choice){task->set->entry[i], task->m->weight[i]};
        }
        write_meta(task, t, n, msg);
        if (near) {
            void *to = heap_at(h, place[j].rank, recv + place[j].row * l->message_bytes);

            h->kernels->spread(&to, 1, msg, l->message_bytes, h->store);
        }
    }
}

/* To all ranks, this one included. */
static uint64_t rows_sent(const struct ll_host *h, const struct ll_set *s)
{
    const uint32_t *count =
        h->l.dedup ? rank_counts(h, s, h->world.rank) : expert_counts(h, s, h->world.rank);
    uint32_t n = h->l.dedup ? h->l.size : h->l.experts;
    uint64_t rows = 0;

    for (uint32_t i = 0; i < n; i++)
        rows += count[i];
    return rows;
}

static void send_rows(void *arg, uint32_t worker, uint32_t workers)
{
    const struct ll_task *task = arg;
    uint32_t first = first_of(task, worker, workers);
    uint32_t end = first_of(task, worker + 1, workers);
    uint64_t begin = epa_trace_now(task->h->trace);

    for (uint32_t t = first; t < end; t++) {
        const uint16_t *next = NULL;

        if (task->m->x != NULL && t + 1 < end)
            next = (const uint16_t *)task->m->x + (size_t)(t + 1) * task->h->l.hidden;
        if (task->h->l.dedup)
            send_to_ranks(task, t, next, worker);
        else
            send_to_experts(task, t, next, worker);
    }
    if (task->h->store == EPA_STORE_NONTEMPORAL)
        epa_store_drain();
    ll_worked(task->h, worker, workers, begin, end - first);
}

/* ---- dispatch ---- */

/* Every rank makes the same calls in the same order, so all take the same set. The first that
 * is free: who combines before the next dispatch stays in one set, and in the cache. */
static struct ll_set *take_set(struct ll_host *h)
{
    for (uint32_t i = 0; i < h->l.buffers; i++) {
        if (h->set[i].open)
            continue;
        h->set[i].open = true;
        h->set[i].epoch = ++h->epoch;
        return &h->set[i];
    }
    (void)ll_fail(
        h, EPA_ERR_CONFIG,
        "%u dispatches are open, as many as there are buffer sets: combine one first",
        h->l.buffers);
    return NULL;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *value, uint32_t n)
{
    qsort(value, n, sizeof(*value), compare);
    return n > 0 ? value[n / 2] : 0;
}

static void end_trial(struct ll_trial *trial, enum epa_store now, double ns_per_row,
                      enum epa_store *out)
{
    trial->ns_per_row[now][trial->n[now]++] = ns_per_row;
    if (--trial->left == 0)
        *out =
            median(trial->ns_per_row[EPA_STORE_NONTEMPORAL],
                   trial->n[EPA_STORE_NONTEMPORAL]) <
                    median(trial->ns_per_row[EPA_STORE_CACHED], trial->n[EPA_STORE_CACHED])
                ? EPA_STORE_NONTEMPORAL
                : EPA_STORE_CACHED;
}

/* Makes messages and stores them; those that are put leave a slice at a time. Whether a store
 * that stays in the cache pays depends on what else is in that cache, which no size tells:
 * until that is settled dispatches take turns and are timed. */
static enum epa_status store_rows(struct ll_host *h, struct ll_task *task)
{
    uint32_t tokens = task->m->tokens, slice = tokens;
    bool tries = h->trial.left != 0 && tokens != 0;
    enum epa_status status = EPA_OK;
    uint64_t start, ns = 0;

    if (tries)
        h->store = h->trial.left % 2 == 0 ? EPA_STORE_CACHED : EPA_STORE_NONTEMPORAL;
    if (h->far != 0)
        slice = 1 + LL_SLICE_BYTES / (uint32_t)h->l.message_bytes;
    for (task->begin = 0; task->begin < tokens && status == EPA_OK;
         task->begin = task->end) {
        task->end = tokens - task->begin > slice ? task->begin + slice : tokens;
        start = tries ? ll_now_ns() : 0;
        status = h->backend->ops->parallel(h->backend, send_rows, task);
        ns += tries ? ll_now_ns() - start : 0;
        if (status == EPA_OK && h->far != 0)
            status = ll_put_rows(task);
    }
    if (tries)
        end_trial(&h->trial, h->store, (double)ns / tokens, &h->store);
    return status;
}

enum epa_status ll_dispatch(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct ll_host *h = host_of(a);
    struct epa_moe *m = &problem->u.moe;
    struct ll_set *s;
    struct ll_task task;
    enum epa_status status;

    ll_begin(h, "dispatch", LL_DO_COUNT_PUT);
    s = take_set(h);
    if (s == NULL)
        return EPA_ERR_CONFIG;
    task = (struct ll_task){.h = h, .set = s, .m = m};
    status = exchange_counts(h, s, m);
    if (ll_phase(h, status, LL_DO_QUANT_AND_PUT))
        status = give_places(h, s, m);
    h->notes.tokens = m->tokens;
    if (h->trace != NULL)
        h->notes.bytes = rows_sent(h, s) * h->l.message_bytes;
    if (status == EPA_OK)
        status = store_rows(h, &task);
    if (status == EPA_OK)
        status = ll_signal(h, LL_DATA, s->epoch);
    if (ll_phase(h, status, LL_DO_WAIT))
        status = ll_wait_and_leave(h, LL_DATA, s->epoch);
    if (ll_phase(h, status, LL_DO_POSTPROCESS))
        status = ll_publish_views(&task);
    ll_end(h);
    epa_trace_count(h->trace, 0, h->notes.rows, m->recv_rows);
    return status;
}
