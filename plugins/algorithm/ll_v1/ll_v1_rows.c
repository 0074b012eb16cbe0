/* The work of ll_v1 inside a rank: the rank sorts its choices by expert, quantises its tokens,
 * regroups received rows by expert, and adds up the expert outputs of its tokens. */
#include "ll_v1_rows.h"

#include "../../common/algo_store.h"

#include <string.h>

/* ---- sort and quantise ----
 *
 * A counting sort, which is stable: the rows of an expert follow the order of tokens. Each worker
 * counts and then places the choices of its own tokens. */

static void count_choices(void *arg, uint32_t worker, uint32_t workers)
{
    const struct v1_task *task = arg;
    const struct v1_host *h = task->h;
    const struct epa_moe *m = task->m;
    size_t end = (size_t)algo_share(m->tokens, worker + 1, workers) * h->l.topk;
    uint32_t *count = h->next + (size_t)worker * h->l.experts;

    memset(count, 0, h->l.experts * sizeof(*count));
    for (size_t i = (size_t)algo_share(m->tokens, worker, workers) * h->l.topk; i < end; i++) {
        if (m->expert[i] >= 0)
            count[m->expert[i]]++;
    }
}

/* Turns the counts of each worker into the index of its first choice of each expert. */
static void assign_first_places(const struct v1_task *task)
{
    const struct v1_host *h = task->h;
    uint32_t *restrict cumsum = task->set->cumsum;
    uint32_t experts = h->l.experts, total = 0;

    memset(cumsum, 0, experts * sizeof(*cumsum));
    for (uint32_t w = 0; w < h->a.workers; w++) {
        uint32_t *restrict next = h->next + (size_t)w * experts;

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
    for (uint32_t w = 0; w < h->a.workers; w++) {
        uint32_t *restrict next = h->next + (size_t)w * experts;

        for (uint32_t e = 0; e < experts; e++)
            next[e] += cumsum[e];
    }
}

/* Writes the counts and the start of each slice to the splits; tokens follow later. */
static enum epa_status write_split_counts(const struct v1_task *task)
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
            return algo_fail_key(&h->a, EPA_ERR_CONFIG, "algorithm.capacity",
                                 "rank %u has %u rows for rank %u, which has room for %u from "
                                 "each: raise algorithm.capacity, or set it to 0",
                                 h->a.world.rank, rows, r, h->l.max_m);
    }
    return EPA_OK;
}

static void place_and_quantise(void *arg, uint32_t worker, uint32_t workers)
{
    const struct v1_task *task = arg;
    const struct v1_host *h = task->h;
    uint32_t begin = algo_share(task->m->tokens, worker, workers);
    uint32_t end = algo_share(task->m->tokens, worker + 1, workers);
    uint32_t *restrict next = h->next + (size_t)worker * h->l.experts;
    uint32_t *restrict out = (uint32_t *)(void *)here(h, &h->l.out_splits, 0);
    uint32_t *restrict at = task->set->at;
    char *token = here(h, &h->l.token, position(task));
    char *scales = here(h, &h->l.token_scales, position(task));

    for (uint32_t t = begin; t < end; t++) {
        for (size_t i = (size_t)t * h->l.topk; i < (size_t)(t + 1) * h->l.topk; i++) {
            int32_t e = task->m->expert[i];

            if (e < 0)
                continue;
            at[i] = next[e]++;
            out[h->tokens_of[e] + at[i]] = t;
        }
    }
    for (uint32_t t = begin; t < end; t++)
        epa_write_token(h->a.kernels, task->m, h->l.fp8, t, end, token + t * h->l.row_bytes,
                        scales + t * h->l.scales_bytes);
}

enum epa_status v1_sort_and_quantise(struct v1_task *task)
{
    enum epa_status status = in_parallel(task, count_choices);

    if (status != EPA_OK)
        return status;
    assign_first_places(task);
    status = write_split_counts(task);
    return status == EPA_OK ? in_parallel(task, place_and_quantise) : status;
}

/* ---- rows received by source, regrouped by expert ----
 *
 * A worker copies a row once, to all local experts of its token if rows are pulled, else from the
 * slot of the row to one entry. One worker indexes the rows of a source; then all workers copy. */

/* Copies the counts, which combine needs, and validates the splits. */
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
            return algo_fail(&h->a, EPA_ERR_MISMATCH,
                             "invalid splits from rank %u: %llu rows from index %u; it has at "
                             "most %u choices and sends at most %u rows",
                             source, (unsigned long long)rows, start, most, h->l.max_m);
        task->set->offset[source] = start;
    }
    return EPA_OK;
}

/* Lays out rows by expert, then by source. */
static void lay_out_entries(const struct v1_task *task)
{
    const struct v1_host *h = task->h;
    uint32_t *restrict all = task->set->s.recv_count, local = h->l.local, entry = 0;
    uint64_t *restrict first = task->set->s.recv_start;

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

static struct epa_origin *origins(const struct v1_task *task)
{
    return (struct epa_origin *)(void *)here(task->h, &task->h->l.origin, index_of(task));
}

/* Records a move for each choice, from its slot to its entry. Returns false if a token is
 * invalid. */
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

/* Records a move for each token, to all of its entries, by a counting sort by token. Returns false
 * if a token is invalid. */
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

        /* Relaxed: the wait for the workers orders this store before its load. */
        if (!good)
            __atomic_store_n(&task->wrong, source + 1, __ATOMIC_RELAXED);
    }
}

/* Bytes of the next row to prefetch during a copy. More would delay the current copy. */
enum { FETCH_BYTES = 1024 };

static void copy_from(const struct v1_task *task, uint32_t source, uint32_t begin, uint32_t end)
{
    const struct v1_host *h = task->h;
    const struct v1_layout *l = &h->l;
    bool pull = way_to(h, source) == V1_PULL;
    const char *rows =
        pull ? there(h, source, &l->token, position(task))
             : here(h, &l->slot, position(task)) + (uint64_t)source * l->max_m * l->row_bytes;
    const char *scales = pull ? there(h, source, &l->token_scales, position(task))
                              : here(h, &l->slot_scales, position(task)) +
                                    (uint64_t)source * l->max_m * l->scales_bytes;
    char *recv = here(h, &l->recv, index_of(task));
    char *recv_scales = here(h, &l->recv_scales, index_of(task));
    const struct v1_move *move = h->move + (size_t)source * l->max_m;
    void *to[V1_TOPK];

    for (uint32_t i = begin; i < end; i++) {
        const uint32_t *dest = h->dest + move[i].dest;

        if (i + 1 < end) {
            const char *next = rows + move[i + 1].row * l->row_bytes;

            for (uint64_t at = 0; at < l->row_bytes && at < FETCH_BYTES; at += V1_LINE)
                __builtin_prefetch(next + at);
        }
        for (uint32_t c = 0; c < move[i].n; c++)
            to[c] = recv + dest[c] * l->row_bytes;
        h->a.kernels->spread(to, move[i].n, rows + move[i].row * l->row_bytes, l->row_bytes,
                             h->a.store);
        if (!l->fp8)
            continue;
        for (uint32_t c = 0; c < move[i].n; c++)
            to[c] = recv_scales + dest[c] * l->scales_bytes;
        h->a.kernels->spread(to, move[i].n, scales + move[i].row * l->scales_bytes, l->scales_bytes,
                             h->a.store);
    }
}

static void copy_rows(void *arg, uint32_t worker, uint32_t workers)
{
    const struct v1_task *task = arg;
    const struct v1_host *h = task->h;

    for (uint32_t i = 1; i <= h->l.size; i++) {
        uint32_t source = algo_peer(&h->a, i), n = h->moves[source];

        copy_from(task, source, algo_share(n, worker, workers), algo_share(n, worker + 1, workers));
    }
    algo_drain(h->a.store);
}

enum epa_status v1_regroup(struct v1_task *task)
{
    struct v1_host *h = task->h;
    const struct algo_set *s = &task->set->s;
    struct epa_moe *m = task->m;
    enum epa_status status = read_splits(task);

    if (status != EPA_OK)
        return status;
    lay_out_entries(task);
    epa_publish_counts(m, s->epoch, h->l.local, s->recv_count, s->recv_start);
    m->recv_source = task->set->count;
    m->recv = here(h, &h->l.recv, index_of(task));
    m->recv_scale = NULL;
    if (h->l.fp8)
        m->recv_scale = (const float *)(const void *)here(h, &h->l.recv_scales, index_of(task));
    m->origin = origins(task);
    m->recv_stride = h->l.row_bytes;
    m->scale_stride = h->l.scales_bytes;
    m->origin_stride = sizeof(struct epa_origin);
    m->y_space = here(h, &h->l.y, index_of(task));
    status = in_parallel(task, index_sources);
    if (status == EPA_OK && task->wrong != 0)
        return algo_fail(&h->a, EPA_ERR_MISMATCH,
                         "invalid splits from rank %u: a token index is out of range, or a "
                         "token has more rows than choices",
                         task->wrong - 1);
    if (status != EPA_OK)
        return status;
    algo_begin_work(&h->a);
    status = in_parallel(task, copy_rows);
    algo_end_work(&h->a, s->epoch, ALGO_DISPATCH, m->tokens);
    return status;
}

/* ---- sums of expert outputs ----
 *
 * The address of a choice's output is a base address of its expert plus the choice's index in the
 * sorted order times the bytes of an output. */

/* Computes, for each expert of a rank, the address that the output of sorted row 0 would have at
 * this expert. Addresses are computed modulo 2^64: row 0 may belong to another expert. */
static void locate_outputs(const struct v1_task *task, uint32_t rank)
{
    const struct v1_host *h = task->h;
    uint32_t first = rank * h->l.local, local = h->l.local;
    const uint32_t *restrict cumsum = task->set->cumsum + first, *restrict start = cumsum;
    uintptr_t *restrict out = h->output + first, at, bytes = h->l.output_bytes;

    if (way_to(h, rank) == V1_PULL) {
        at = (uintptr_t)there(h, rank, &h->l.y, index_of(task));
        start = (const uint32_t *)(const void *)there(h, rank, &h->l.starts, index_of(task)) +
                (size_t)h->a.world.rank * local;
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
    uint32_t end = algo_share(m->tokens, worker + 1, workers);

    for (uint32_t t = algo_share(m->tokens, worker, workers); t < end; t++) {
        const uint16_t *row[V1_TOPK];
        float weight[V1_TOPK];
        uint32_t n = 0;

        for (size_t i = (size_t)t * h->l.topk; i < (size_t)(t + 1) * h->l.topk; i++) {
            if (m->expert[i] < 0)
                continue;
            weight[n] = m->weight[i];
            row[n++] =
                (const uint16_t *)(h->output[m->expert[i]] + task->set->at[i] * h->l.output_bytes);
        }
        h->a.kernels->reduce(row, weight, n, h->l.hidden, h->a.store,
                             (uint16_t *)m->out + (size_t)t * h->l.hidden);
    }
    algo_drain(h->a.store);
}

enum epa_status v1_reduce(struct v1_task *task)
{
    struct v1_host *h = task->h;
    enum epa_status status;

    for (uint32_t rank = 0; rank < h->l.size; rank++)
        locate_outputs(task, rank);
    algo_begin_work(&h->a);
    status = in_parallel(task, reduce_tokens);
    if (h->again == NULL) /* a repeated combine is not part of the measured pair */
        algo_end_work(&h->a, task->m->epoch, ALGO_COMBINE, task->m->tokens);
    return status;
}
