/* The first part of dispatch on hosts: the numbers of rows between ranks, and the place of each
 * row.
 *
 * If loads and stores reach all ranks, each rank publishes the experts of its tokens in its own
 * heap (or counts, for many tokens), with the epoch in the same cache line, and loads the routes of
 * all other ranks in the order of their arrival. For 1 to 3 tokens of 8 choices, a rank thus writes
 * one cache line, independent of the number of ranks, and the loads of the others' lines overlap. A
 * rank also learns which ranks have rows for it; it neither waits for nor signals other ranks.
 * Otherwise each rank puts counts to every rank. All ranks compute the same layout, so each knows
 * the start of the rows of all ranks at every receiver. */
#include "ll_v2_routes.h"

#include "ll_v2_message.h"
#include "ll_v2_signals.h"

/* ---- counts ---- */

/* Returns the bit mask of the ranks that get token t. */
static uint64_t ranks_of(const struct ll_host *h, const struct epa_moe *m, uint32_t t)
{
    const int32_t *expert = m->expert + (size_t)t * h->l.topk;
    uint64_t ranks = 0;

    for (uint32_t k = 0; k < h->l.topk; k++) {
        if (expert[k] >= 0)
            ranks |= 1ull << h->a.rank_of[expert[k]];
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

/* Adds the counts of a source to h->sum and, for ranks before this one, to h->next: per expert,
 * then per rank. */
static void add_counts(struct ll_host *h, uint32_t source, const uint32_t *restrict count)
{
    uint32_t words = h->l.experts + (h->l.dedup ? h->l.size : 0);
    uint32_t *restrict all = h->sum, *restrict next = h->next;

    for (uint32_t i = 0; i < words; i++)
        all[i] += count[i];
    for (uint32_t i = 0; source < h->a.world.rank && i < words; i++)
        next[i] += count[i];
}

/* Stores the number of rows that the last source added to the sums of this rank. Until the places are
 * computed, recv_count and rows have the sums of the sources before. */
static void keep_source(struct ll_host *h, struct ll_set *s, uint32_t source)
{
    uint32_t local = h->l.local, *restrict before = s->s.recv_count;
    uint32_t *restrict out = s->s.recv_source + (size_t)source * local;
    const uint32_t *restrict sum = h->sum + (size_t)h->a.world.rank * local;

    if (h->l.by_rank) {
        uint32_t rows = h->sum[h->l.experts + h->a.world.rank];

        s->s.recv_source[source] = rows - s->rows;
        s->rows = rows;
        return;
    }
    for (uint32_t i = 0; i < local; i++) {
        out[i] = sum[i] - before[i];
        before[i] = sum[i];
    }
}

/* ---- counts by puts ---- */

/* Puts this rank's counts to all ranks and copies the counts of all ranks, since peers may
 * overwrite them. */
static enum epa_status put_counts(struct ll_host *h, struct ll_set *s, const struct epa_moe *m)
{
    uint64_t row = h->l.count_words * sizeof(uint32_t);
    uint64_t at = algo_region(&h->a, &s->s, h->l.counts_at, h->l.counts_bytes);
    uint32_t me = h->a.world.rank;
    uint64_t mine = at + me * row;
    enum epa_status status = EPA_OK;

    count_routes(h, m, (uint32_t *)(void *)(h->a.t->heap + mine));
    for (uint32_t i = 1; i < h->l.size && status == EPA_OK; i++)
        status = algo_signal(&h->a, mine, h->a.t->heap + mine, row, LL_COUNT * h->l.size + me,
                             s->s.epoch, algo_peer(&h->a, i));
    if (algo_phase(&h->a, status, "wait"))
        status = ll_wait(h, LL_COUNT, s->s.epoch, UINT64_MAX);
    if (status != EPA_OK)
        return status;
    memcpy(s->count, h->a.t->heap + at, h->l.counts_bytes);
    for (uint32_t source = 0; source < h->l.size; source++) {
        add_counts(h, source, expert_counts(h, s, source));
        keep_source(h, s, source);
    }
    s->to = s->from = UINT64_MAX;
    return EPA_OK;
}

/* ---- published routes ---- */

/* Returns the routes of a rank and an epoch. Routes of epoch m + 2 overwrite routes of m. This is
 * safe: the rank has loaded the routes m + 1 of all ranks, which published them after they had
 * loaded all routes of m. */
static struct ll_routes *routes_of(const struct ll_host *h, uint32_t rank, uint64_t epoch)
{
    return (struct ll_routes *)(void *)algo_at(
        &h->a, rank, h->a.heap + h->l.routes_at + h->l.routes_bytes * (epoch % 2));
}

static uint32_t *published_counts(struct ll_routes *r)
{
    return (uint32_t *)(void *)((char *)r + LL_LINE);
}

static void publish_routes(struct ll_host *h, uint64_t epoch, const struct epa_moe *m)
{
    uint32_t choices = m->tokens * h->l.topk, me = h->a.world.rank;
    struct ll_routes *r = routes_of(h, me, epoch);

    r->tokens = m->tokens;
    r->counted = ll_publishes_counts(&h->l, m->tokens);
    if (r->counted != 0)
        count_routes(h, m, published_counts(r));
    for (uint32_t i = 0; r->counted == 0 && i < choices; i++)
        r->expert[i] = m->expert[i] < 0 ? LL_NO_EXPERT : (uint16_t)m->expert[i];
    for (uint32_t i = 1; h->a.trace != NULL && i < h->l.size; i++)
        epa_trace_flow_begin(h->a.trace, 0, algo_peer(&h->a, i),
                             h->a.signal + LL_COUNT * h->l.size + me, epoch);
    /* Release: pairs with the acquire in load_routes(). The routes are complete before their
     * epoch. */
    __atomic_store_n(&r->epoch, epoch, __ATOMIC_RELEASE);
}

/* Adds the rows of `source`, token by token. Returns false if the routes are invalid. */
static bool add_experts(struct ll_host *h, struct ll_set *s, uint32_t source,
                        const struct ll_routes *r)
{
    uint32_t experts = h->l.experts, topk = h->l.topk, me = h->a.world.rank, tokens = r->tokens;
    uint32_t *restrict all = h->sum, *restrict next = h->next;
    uint64_t to = 0;

    if (tokens > h->l.max_tokens)
        return false;
    for (uint32_t t = 0; t < tokens; t++) {
        uint64_t ranks = 0;

        for (uint32_t i = t * topk; i < (t + 1) * topk; i++) {
            uint32_t e = r->expert[i];

            if (e == LL_NO_EXPERT)
                continue;
            if (e >= experts)
                return false;
            all[e]++;
            next[e] += source < me;
            ranks |= 1ull << h->a.rank_of[e];
        }
        to |= ranks;
        for (; h->l.dedup && ranks != 0; ranks &= ranks - 1) {
            uint32_t at = experts + (uint32_t)__builtin_ctzll(ranks);

            all[at]++;
            next[at] += source < me;
        }
    }
    s->from |= (to >> me & 1) << source;
    if (source == me)
        s->to = to;
    return true;
}

/* Adds the rows of `source` from published counts. */
static void add_published_counts(struct ll_host *h, struct ll_set *s, uint32_t source,
                                 const uint32_t *count)
{
    uint32_t me = h->a.world.rank;

    add_counts(h, source, count);
    for (uint32_t e = 0; e < h->l.experts; e++) {
        uint64_t some = count[e] != 0;

        if (source == me)
            s->to |= some << h->a.rank_of[e];
        if (h->a.rank_of[e] == me)
            s->from |= some << source;
    }
}

static enum epa_status add_routes(struct ll_host *h, struct ll_set *s, uint32_t source,
                                  struct ll_routes *r)
{
    if (r->counted != 0)
        add_published_counts(h, s, source, published_counts(r));
    else if (!add_experts(h, s, source, r))
        return algo_fail(&h->a, EPA_ERR_MISMATCH,
                         "invalid routes from rank %u: %u tokens, or an expert out of range",
                         source, r->tokens);
    keep_source(h, s, source);
    return EPA_OK;
}

/* Loads the routes of all other ranks, in the order of arrival. */
static enum epa_status load_routes(struct ll_host *h, struct ll_set *s)
{
    struct algo_look look = {.what = "counts", .number = EPA_WAIT_NOBODY, .wanted = s->s.epoch};
    uint64_t left = UINT64_MAX >> (LL_RANKS - h->l.size) & ~(1ull << h->a.world.rank);
    uint16_t name = epa_trace_name(h->a.trace, "counts_from");
    uint64_t begin = epa_trace_now(h->a.trace), end;
    enum epa_status status = EPA_OK;

    for (uint32_t i = 1; i < h->l.size; i++) /* the cache misses of prefetches overlap */
        __builtin_prefetch(routes_of(h, algo_peer(&h->a, i), s->s.epoch));
    while (left != 0 && status == EPA_OK) {
        for (uint32_t i = 1; i < h->l.size && status == EPA_OK; i++) {
            uint32_t peer = algo_peer(&h->a, i);
            struct ll_routes *r = routes_of(h, peer, s->s.epoch);
            uint64_t seen;

            if ((left >> peer & 1) == 0)
                continue;
            /* Acquire: pairs with the release in publish_routes(). */
            seen = __atomic_load_n(&r->epoch, __ATOMIC_ACQUIRE);
            if (seen < s->s.epoch) {
                look.peer = peer;
                look.seen = seen;
                continue;
            }
            left &= ~(1ull << peer);
            status = add_routes(h, s, peer, r);
            end = epa_trace_slice(h->a.trace, 0, name, begin, peer, 0, 0);
            epa_trace_flow_end(h->a.trace, 0, begin, end, peer,
                               h->a.signal + LL_COUNT * h->l.size + peer, s->s.epoch);
            begin = end;
        }
        if (left != 0 && status == EPA_OK)
            status = algo_look_again(&h->a, &look);
    }
    algo_look_done(&h->a, &look, status);
    return status;
}

enum epa_status ll_exchange(struct ll_task *task)
{
    struct ll_host *h = task->h;
    struct ll_set *s = task->set;
    const struct epa_moe *m = task->m;
    uint32_t words = h->l.experts + (h->l.dedup ? h->l.size : 0), me = h->a.world.rank;
    enum epa_status status;

    s->to = s->from = 0;
    s->rows = 0;
    memset(s->s.recv_count, 0, h->l.local * sizeof(*s->s.recv_count));
    memset(h->sum, 0, words * sizeof(*h->sum));
    memset(h->next, 0, words * sizeof(*h->next));
    if (!h->l.published)
        return put_counts(h, s, m);
    publish_routes(h, s->s.epoch, m);
    status = add_routes(h, s, me, routes_of(h, me, s->s.epoch));
    ll_write_ahead(task); /* overlaps the wait for the others' routes */
    return algo_phase(&h->a, status, "wait") ? load_routes(h, s) : status;
}

/* ---- places ---- */

/* Lays out the entries of experts without gaps. */
static enum epa_status pack_entries(struct ll_host *h, struct ll_set *s)
{
    const struct ll_layout *l = &h->l;
    uint32_t *restrict all = h->sum, *restrict next = h->next, me = h->a.world.rank;
    uint64_t *restrict start = s->s.recv_start;

    for (uint32_t rank = 0; rank < l->size; rank++, all += l->local, next += l->local) {
        uint64_t end = 0;

        for (uint32_t i = 0; i < l->local; i++) {
            if (rank == me)
                start[i] = end;
            next[i] += (uint32_t)end;
            end += all[i];
        }
        if (end > l->entries)
            return algo_too_full(&h->a, rank, end, l->entries);
    }
    return EPA_OK;
}

/* Lays out the entries of experts at a stride for all tokens, so that any number fits. */
static void pad_entries(struct ll_host *h, struct ll_set *s)
{
    uint32_t local = h->l.local, room = h->l.size * h->l.max_tokens;

    for (uint32_t e = 0; e < h->l.experts; e++)
        h->next[e] += e % local * room;
    for (uint32_t i = 0; i < local; i++)
        s->s.recv_start[i] = (uint64_t)i * room;
}

/* Lays out the rows of all receivers: entries by expert, then by source; with dedup, messages by
 * source. next[e] becomes this rank's first entry of expert e, and next_row[r] its first row at
 * rank r. Fills in recv_start and recv_count of this rank. */
static enum epa_status lay_out_receivers(struct ll_host *h, struct ll_set *s)
{
    const struct ll_layout *l = &h->l;
    const uint32_t *all = h->sum;
    uint32_t mine = h->a.world.rank * l->local;

    s->rows = l->dedup ? all[l->experts + h->a.world.rank] : 0;
    for (uint32_t i = 0; i < l->local; i++)
        s->s.recv_count[i] = all[mine + i];
    for (uint32_t rank = 0; l->dedup && rank < l->size; rank++)
        if (all[l->experts + rank] > l->rows)
            return algo_too_full(&h->a, rank, all[l->experts + rank], l->rows);
    if (!l->padded)
        return pack_entries(h, s);
    pad_entries(h, s);
    return EPA_OK;
}

/* Lays out the outputs that arrive by puts: by expert (or rank), then in the order of rows. Returns
 * their number. */
static uint32_t lay_out_outputs(const struct ll_host *h, const struct ll_set *s)
{
    uint32_t n = h->l.dedup ? h->l.size : h->l.experts, end = 0;
    uint32_t *restrict next = h->next_output;
    const uint32_t *restrict count = row_counts(h, s, h->a.world.rank);

    for (uint32_t i = 0; i < n; i++) {
        next[i] = end;
        end += count[i];
    }
    return end;
}

static void place_by_expert(const struct ll_host *h, struct ll_set *s, const struct epa_moe *m)
{
    uint32_t choices = m->tokens * h->l.topk;

    for (uint32_t i = 0; i < choices; i++) {
        int32_t e = m->expert[i];

        s->place[i] = (struct ll_slot){.rank = ALGO_NONE};
        if (e >= 0)
            s->place[i] = (struct ll_slot){h->a.rank_of[e], h->next[e]++, h->next_output[e]++};
    }
}

static void place_by_rank(const struct ll_host *h, struct ll_set *s, const struct epa_moe *m)
{
    for (uint32_t t = 0; t < m->tokens; t++) {
        struct ll_slot *place = s->place + (size_t)t * h->l.places;
        uint32_t n = 0;

        for (uint64_t ranks = ranks_of(h, m, t); ranks != 0; ranks &= ranks - 1) {
            uint32_t r = (uint32_t)__builtin_ctzll(ranks);

            place[n++] = (struct ll_slot){r, h->next_row[r]++, h->next_output[r]++};
        }
        for (; n < h->l.places; n++)
            place[n] = (struct ll_slot){.rank = ALGO_NONE};
        for (size_t i = (size_t)t * h->l.topk; i < (size_t)(t + 1) * h->l.topk; i++) {
            if (m->expert[i] >= 0)
                s->entry[i] = h->next[m->expert[i]]++;
        }
    }
}

/* Initialises the blocks and the numbers of rows for puts, before places are assigned. */
static void begin_row_puts(struct ll_host *h, const struct ll_set *s)
{
    uint32_t each = h->l.dedup ? 1 : h->l.local;
    const uint32_t *count = row_counts(h, s, h->a.world.rank);

    for (uint32_t i = 1; i < h->l.size; i++) {
        uint32_t peer = algo_peer(&h->a, i), rows = 0;

        if (algo_reachable(&h->a, peer))
            continue;
        for (uint32_t at = peer * each; at < (peer + 1) * each; at++)
            rows += count[at];
        h->left[peer] = rows;
        h->block[peer] = (struct ll_block){
            .row = h->next_row[peer],
            .output = h->next_output[peer],
            .made = h->next_output[peer],
        };
    }
}

/* Returns the number of rows that this rank sends. */
static uint64_t count_rows(const struct ll_host *h, const struct epa_moe *m)
{
    uint64_t rows = 0;

    for (uint32_t i = 0; !h->l.dedup && i < m->tokens * h->l.topk; i++)
        rows += m->expert[i] >= 0;
    for (uint32_t t = 0; h->l.dedup && t < m->tokens; t++)
        rows += (uint64_t)__builtin_popcountll(ranks_of(h, m, t));
    return rows;
}

enum epa_status ll_give_places(struct ll_host *h, struct ll_set *s, const struct epa_moe *m)
{
    enum epa_status status = lay_out_receivers(h, s);

    if (status != EPA_OK)
        return status;
    h->a.note.tokens = m->tokens;
    if (h->l.puts)
        h->a.note.bytes = lay_out_outputs(h, s) * h->l.message_bytes;
    else if (h->a.trace != NULL)
        h->a.note.bytes = count_rows(h, m) * h->l.message_bytes;
    if (h->a.far != 0)
        begin_row_puts(h, s);
    if (h->l.dedup)
        place_by_rank(h, s, m);
    else
        place_by_expert(h, s, m);
    return EPA_OK;
}
