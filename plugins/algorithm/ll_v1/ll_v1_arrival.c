/* Dispatch on hosts, its end: what came by source is regrouped by expert, as the views of
 * dispatch must have it. A row is copied once, to all experts here that want its token if it is
 * pulled, else from its slot. Each source is looked through by one worker; then all copy. */
#include "ll_v1_host.h"

#include <stdlib.h>
#include <string.h>

/* ---- splits ---- */

/* Takes a copy of the counts, which must stay for combine, and says what cannot be. */
static enum epa_status read_splits(const struct v1_task *task)
{
    struct v1_host *h = task->h;
    uint32_t most = h->l.max_tokens * h->l.topk;

    for (uint32_t source = 0; source < h->l.size; source++) {
        const uint32_t *restrict splits = splits_of(task, source);
        uint32_t *restrict count = task->set->count + (size_t)source * h->l.local;
        uint32_t start = splits[h->l.local];
        uint64_t rows = 0;

        for (uint32_t j = 0; j < h->l.local; j++) {
            count[j] = splits[j];
            rows += count[j];
        }
        if (rows > h->l.max_m || start > most || rows > most - start)
            return v1_fail(h, EPA_ERR_MISMATCH,
                           "rank %u says it sent %llu rows from place %u on, of %u it can "
                           "have and %u it may send",
                           source, (unsigned long long)rows, start, most, h->l.max_m);
        task->set->offset[source] = start;
    }
    return EPA_OK;
}

/* One expert's rows after the other's, in each by source. */
static void lay_out(const struct v1_task *task)
{
    const struct v1_host *h = task->h;
    uint32_t *restrict all = task->set->recv_count, local = h->l.local, entry = 0;
    uint64_t *restrict first = task->set->recv_start;

    memset(all, 0, local * sizeof(*all));
    for (uint32_t source = 0; source < h->l.size; source++) {
        uint32_t *restrict start = starts_of(task, source);
        const uint32_t *restrict count = counts_of(task, source);

        for (uint32_t j = 0; j < local; j++) {
            start[j] = all[j];
            all[j] += count[j];
        }
    }
    for (uint32_t j = 0; j < local; j++) {
        first[j] = entry;
        entry += all[j];
    }
    for (uint32_t source = 0; source < h->l.size; source++) {
        uint32_t *restrict start = starts_of(task, source);

        for (uint32_t j = 0; j < local; j++)
            start[j] += (uint32_t)first[j];
    }
}

/* ---- what is copied where ---- */

static struct epa_origin *origins(const struct v1_task *task)
{
    return (struct epa_origin *)(void *)here(task->h, &task->h->l.origin, index_of(task));
}

/* A row for each choice: from its slot to its place. False if a token cannot be. */
static bool index_slots(const struct v1_task *task, uint32_t source)
{
    const struct v1_host *h = task->h;
    const uint32_t *count = counts_of(task, source), *start = starts_of(task, source);
    const uint32_t *token = splits_of(task, source) + h->l.local + 1;
    struct epa_origin *origin = origins(task);
    uint32_t at = source * h->l.max_m, row = 0;

    for (uint32_t j = 0; j < h->l.local; j++) {
        for (uint32_t i = 0; i < count[j]; i++, row++) {
            if (token[row] >= h->l.max_tokens)
                return false;
            h->move[at + row] = (struct v1_move){.row = row, .dest = at + row, .n = 1};
            h->dest[at + row] = start[j] + i;
            origin[start[j] + i] = (struct epa_origin){source, token[row]};
        }
    }
    h->moves[source] = row;
    return true;
}

/* A row for each token, to all of its places: sorted by token again, by counting. False if a
 * token cannot be. */
static bool index_tokens(const struct v1_task *task, uint32_t source, uint32_t *seen)
{
    const struct v1_host *h = task->h;
    const uint32_t *count = counts_of(task, source), *start = starts_of(task, source);
    const uint32_t *token = splits_of(task, source) + h->l.local + 1;
    struct epa_origin *origin = origins(task);
    uint32_t at = source * h->l.max_m, moves = at, rows = 0;

    for (uint32_t j = 0; j < h->l.local; j++)
        rows += count[j];
    memset(seen, 0, h->l.max_tokens * sizeof(*seen));
    for (uint32_t i = 0; i < rows; i++) {
        if (token[i] >= h->l.max_tokens || ++seen[token[i]] > h->l.topk)
            return false;
    }
    for (uint32_t t = 0; t < h->l.max_tokens; t++) {
        uint32_t n = seen[t];

        seen[t] = at;
        if (n != 0)
            h->move[moves++] = (struct v1_move){.row = t, .dest = at, .n = n};
        at += n;
    }
    h->moves[source] = moves - source * h->l.max_m;
    for (uint32_t j = 0; j < h->l.local; j++) {
        for (uint32_t i = 0; i < count[j]; i++, token++) {
            h->dest[seen[*token]++] = start[j] + i;
            origin[start[j] + i] = (struct epa_origin){source, *token};
        }
    }
    return true;
}

static void index_sources(void *arg, uint32_t worker, uint32_t workers)
{
    struct v1_task *task = arg;
    const struct v1_host *h = task->h;
    uint32_t *seen = h->seen + (size_t)worker * h->l.max_tokens;

    for (uint32_t source = worker; source < h->l.size; source += workers) {
        bool good = way_to(h, source) == V1_PULL ? index_tokens(task, source, seen)
                                                 : index_slots(task, source);

        /* Relaxed: read once the workers have been waited for. */
        if (!good)
            __atomic_store_n(&task->wrong, source + 1, __ATOMIC_RELAXED);
    }
}

/* ---- rows ---- */

/* Of the next row, while one is copied: more would keep what this one needs waiting. */
enum { FETCH_BYTES = 1024 };

static void fetch(const char *row, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes && at < FETCH_BYTES; at += V1_LINE)
        __builtin_prefetch(row + at);
}

static void copy_from(const struct v1_task *task, uint32_t source, uint32_t begin,
                      uint32_t end)
{
    const struct v1_host *h = task->h;
    const struct v1_layout *l = &h->l;
    bool pull = way_to(h, source) == V1_PULL;
    const char *rows = pull ? there(h, source, &l->token, position(task))
                            : here(h, &l->slot, position(task)) +
                                  (uint64_t)source * l->max_m * l->row_bytes;
    const char *scales = pull ? there(h, source, &l->token_scales, position(task))
                              : here(h, &l->slot_scales, position(task)) +
                                    (uint64_t)source * l->max_m * l->scales_bytes;
    char *recv = here(h, &l->recv, index_of(task));
    char *recv_scales = here(h, &l->recv_scales, index_of(task));
    const struct v1_move *move = h->move + (size_t)source * l->max_m;
    void *to[V1_TOPK];

    for (uint32_t i = begin; i < end; i++) {
        const uint32_t *dest = h->dest + move[i].dest;

        if (i + 1 < end)
            fetch(rows + move[i + 1].row * l->row_bytes, l->row_bytes);
        for (uint32_t c = 0; c < move[i].n; c++)
            to[c] = recv + dest[c] * l->row_bytes;
        h->kernels->spread(to, move[i].n, rows + move[i].row * l->row_bytes, l->row_bytes,
                           h->store);
        if (!l->fp8)
            continue;
        for (uint32_t c = 0; c < move[i].n; c++)
            to[c] = recv_scales + dest[c] * l->scales_bytes;
        h->kernels->spread(to, move[i].n, scales + move[i].row * l->scales_bytes,
                           l->scales_bytes, h->store);
    }
}

static void copy_rows(void *arg, uint32_t worker, uint32_t workers)
{
    const struct v1_task *task = arg;
    const struct v1_host *h = task->h;

    for (uint32_t i = 1; i <= h->l.size; i++) {
        uint32_t source = peer_at(h, i), n = h->moves[source];

        copy_from(task, source, share_of(n, worker, workers),
                  share_of(n, worker + 1, workers));
    }
    if (h->store == EPA_STORE_NONTEMPORAL)
        epa_store_drain();
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

static void end_trial(struct v1_host *h, double ns_per_row)
{
    struct v1_trial *trial = &h->trial;

    trial->ns_per_row[h->store][trial->n[h->store]++] = ns_per_row;
    if (--trial->left == 0)
        h->store =
            median(trial->ns_per_row[EPA_STORE_NONTEMPORAL],
                   trial->n[EPA_STORE_NONTEMPORAL]) <
                    median(trial->ns_per_row[EPA_STORE_CACHED], trial->n[EPA_STORE_CACHED])
                ? EPA_STORE_NONTEMPORAL
                : EPA_STORE_CACHED;
}

/* Whether a store that stays in the cache pays depends on what else is in that cache, which no
 * size tells: until that is settled dispatches take turns and are timed. */
static enum epa_status regroup(struct v1_task *task, uint64_t rows)
{
    struct v1_host *h = task->h;
    bool tries = h->trial.left != 0 && rows != 0;
    uint64_t start;
    enum epa_status status;

    if (tries)
        h->store = h->trial.left % 2 == 0 ? EPA_STORE_CACHED : EPA_STORE_NONTEMPORAL;
    start = tries ? v1_now_ns() : 0;
    status = h->backend->ops->parallel(h->backend, copy_rows, task);
    if (tries)
        end_trial(h, (double)(v1_now_ns() - start) / (double)rows);
    return status;
}

enum epa_status v1_publish_views(struct v1_task *task)
{
    struct v1_host *h = task->h;
    struct v1_set *s = task->set;
    struct epa_moe *m = task->m;
    enum epa_status status = read_splits(task);
    uint32_t last = h->l.local - 1;

    if (status != EPA_OK)
        return status;
    lay_out(task);
    m->epoch = s->epoch;
    m->recv_rows = m->recv_entries = s->recv_start[last] + s->recv_count[last];
    m->recv_count = s->recv_count;
    m->recv_start = s->recv_start;
    m->recv_row = NULL;
    m->recv_weight = NULL;
    m->recv = here(h, &h->l.recv, index_of(task));
    m->recv_scale = NULL;
    if (h->l.fp8)
        m->recv_scale =
            (const float *)(const void *)here(h, &h->l.recv_scales, index_of(task));
    m->origin = origins(task);
    m->recv_stride = h->l.row_bytes;
    m->scale_stride = h->l.scales_bytes;
    m->origin_stride = sizeof(struct epa_origin);
    m->y_space = here(h, &h->l.y, index_of(task));
    status = h->backend->ops->parallel(h->backend, index_sources, task);
    if (status == EPA_OK && task->wrong != 0)
        return v1_fail(h, EPA_ERR_MISMATCH,
                       "rank %u says that a row is of a token it cannot have, or that one "
                       "token has more rows than choices",
                       task->wrong - 1);
    return status == EPA_OK ? regroup(task, m->recv_rows) : status;
}
