/* ll_v2 on hosts: the protocol, set-up, and the calls that wait.
 *
 * Ranks tell each other how many rows they have for whom; from then on each knows where its
 * rows stand at every receiver and stores them there, quantised on the way. Combine pulls
 * the expert outputs from where the experts wrote them and adds them up. Peers that loads and
 * stores do not reach get the same messages by puts, from a staging copy, and send the
 * expert outputs back by puts; the last put to a peer brings the signal. With `dedup` in
 * layout expert rows arrive in `arrival`, and the receiver copies them to its experts; their
 * outputs are reduced into `outbox`, where outputs that are quantised are, too.
 *
 * Dispatch and combine end with quiet(): what a transport holds back of them would else reach
 * peers when this rank next calls it, and experts may take long. It takes no longer than the
 * wait before it and the way back, and what was put may be written again after it.
 *
 * Dispatches count as epochs 1, 2, 3... and signals carry the epoch. A dispatch takes the
 * first buffer set that no open one has; its combine gives it back. All ranks make the same
 * calls in the same order, so they agree on the set without a word. There is no barrier: let
 * epoch m take the set that epoch n had, n < m, combine n called before dispatch m. Then
 *   - rows of m are written at p after COUNT m of p is seen, so p has entered dispatch m, and
 *     has done its experts and combine of n before;
 *   - expert outputs of m are written at p after its dispatch m has ended, so every rank has
 *     entered that one, and has pulled or used the expert outputs of n before;
 *   - `arrival` is written as rows are, and p has read the choices in it for the last time in
 *     its combine n; rows copied out of it p writes itself, after that;
 *   - `outbox` p writes itself, in combine m: every rank has entered dispatch m by then, as
 *     p has its DATA, and so has pulled the expert outputs of n; where they were put, the quiet()
 *     at the end of combine n has seen them arrive, as that of dispatch n has what was staged;
 *   - counts of m are written at p by a rank that has ended dispatch m - 1, so p has sent
 *     DATA m - 1, and copied the counts of n long before.
 * With two sets one dispatch may run ahead: D1 D2 C1 D3 C2 ... Combines come in the order of
 * dispatches: each kind of signal is one word a source, and the expert outputs of a later epoch
 * would pass for those of an earlier one. */
#include "ll_v2_host.h"

#include "base/clock.h"

/* ---- puts and signals ---- */

/* Puts what there is and signals the peer with it, after all that was put to it before. */
static enum epa_status put_and_signal(struct ll_host *h, enum ll_signal kind, uint64_t epoch,
                                      uint64_t dst, const void *src, size_t bytes, uint32_t peer)
{
    enum epa_status status = h->a.t->ops->fence(h->a.t, peer);

    return status == EPA_OK ? algo_signal(&h->a, dst, src, bytes,
                                          (uint32_t)kind * h->l.size + h->a.world.rank, epoch, peer)
                            : status;
}

enum epa_status ll_put(struct ll_host *h, enum ll_signal kind, const struct ll_set *s, uint64_t row,
                       const void *src, uint32_t rows, uint32_t peer)
{
    uint64_t row_bytes = kind == LL_DATA ? h->l.message_bytes : h->l.sent_bytes;
    uint64_t dst =
        (kind == LL_DATA ? arrival_offset(h, s) : outputs_offset(h, s)) + row * row_bytes;
    size_t bytes = rows * row_bytes;

    h->a.last.peer = peer;
    h->left[peer] -= rows;
    if (h->left[peer] == 0) {
        h->signalled |= 1ull << peer;
        return put_and_signal(h, kind, s->s.epoch, dst, src, bytes, peer);
    }
    return algo_put(&h->a, dst, src, bytes, peer);
}

enum epa_status ll_signal_all(struct ll_host *h, enum ll_signal kind, uint64_t epoch)
{
    enum epa_status status = EPA_OK;

    for (uint32_t i = 1; i < h->l.size && status == EPA_OK; i++) {
        uint32_t peer = algo_peer(&h->a, i);

        h->a.last.peer = peer;
        if ((h->signalled >> peer & 1) == 0)
            status = put_and_signal(h, kind, epoch, 0, NULL, 0, peer);
    }
    h->signalled = 0;
    return status;
}

/* Until every other rank has signalled at least `epoch`. */
static enum epa_status wait_for_all(struct ll_host *h, enum ll_signal kind, uint64_t epoch)
{
    static const char *const what[LL_SIGNALS] = {
        [LL_COUNT] = "counts", [LL_DATA] = "rows", [LL_OUTPUT] = "outputs"};

    return algo_wait_for_all(&h->a, (uint32_t)kind * h->l.size, epoch, what[kind]);
}

enum epa_status ll_wait_and_leave(struct ll_host *h, enum ll_signal kind, uint64_t epoch)
{
    enum epa_status status = wait_for_all(h, kind, epoch);

    return algo_phase(&h->a, status, "quiet") ? h->a.t->ops->quiet(h->a.t) : status;
}

/* ---- dispatch: counts ---- */

/* The ranks that token t goes to, a bit each. */
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

/* Gives my counts to all and takes a copy of everybody's, which stays while peers go on. */
static enum epa_status exchange_counts(struct ll_host *h, struct ll_set *s, const struct epa_moe *m)
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
        status = wait_for_all(h, LL_COUNT, s->s.epoch);
    if (status == EPA_OK)
        memcpy(s->count, h->a.t->heap + at, h->l.counts_bytes);
    return status;
}

/* ---- dispatch: places ---- */

static enum epa_status too_full(struct ll_host *h, uint32_t rank, uint64_t rows)
{
    return algo_fail(&h->a, EPA_ERR_CONFIG,
                     "rank %u would receive %llu rows and has room for %llu: raise "
                     "algorithm.capacity, or set it to 0",
                     rank, (unsigned long long)rows, (unsigned long long)h->l.entries);
}

/* One expert's entries after the other's. */
static enum epa_status pack_entries(struct ll_host *h, struct ll_set *s)
{
    const struct ll_layout *l = &h->l;
    uint32_t *restrict all = h->sum, *restrict next = h->next;
    uint32_t experts = l->experts, local = l->local, mine = h->a.world.rank * local;

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
        s->s.recv_start[i] = i == 0 ? 0 : s->s.recv_start[i - 1] + all[mine + i - 1];
    return EPA_OK;
}

/* With room for all tokens there can be, so that none is too many. */
static void pad_entries(struct ll_host *h, struct ll_set *s)
{
    uint32_t local = h->l.local, room = h->l.size * h->l.max_tokens;

    for (uint32_t e = 0; e < h->l.experts; e++)
        h->next[e] += e % local * room;
    for (uint32_t i = 0; i < local; i++)
        s->s.recv_start[i] = (uint64_t)i * room;
}

/* A receiver has entries by expert, within an expert by source; rows that are sent once, by source.
 * next[e] becomes my first entry of expert e, next_row[r] my first row at rank r, and this rank's
 * own starts and counts are filled in. */
static enum epa_status lay_out_receivers(struct ll_host *h, struct ll_set *s)
{
    const struct ll_layout *l = &h->l;
    uint32_t *restrict all = h->sum, *restrict next = h->next;
    uint32_t words = l->experts + (l->dedup ? l->size : 0), mine = h->a.world.rank * l->local;

    memset(all, 0, words * sizeof(*all));
    for (uint32_t source = 0; source < l->size; source++) {
        const uint32_t *restrict count = expert_counts(h, s, source);

        if (source == h->a.world.rank)
            memcpy(next, all, words * sizeof(*next));
        for (uint32_t i = 0; i < words; i++)
            all[i] += count[i];
    }
    for (uint32_t i = 0; i < l->local; i++)
        s->s.recv_count[i] = all[mine + i];
    for (uint32_t rank = 0; l->dedup && rank < l->size; rank++)
        if (all[l->experts + rank] > l->rows)
            return too_full(h, rank, all[l->experts + rank]);
    if (!l->padded)
        return pack_entries(h, s);
    pad_entries(h, s);
    return EPA_OK;
}

/* Outputs that are put arrive here by expert (or rank), in the order of rows. Returns how many. */
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

/* Notes what is to be put to whom and where blocks begin, before places are given out. */
static void begin_rows(struct ll_host *h, const struct ll_set *s)
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

static enum epa_status give_places(struct ll_host *h, struct ll_set *s, const struct epa_moe *m)
{
    enum epa_status status = lay_out_receivers(h, s);

    if (status != EPA_OK)
        return status;
    h->a.note.tokens = m->tokens;
    if (h->l.puts || h->a.trace != NULL)
        h->a.note.bytes = lay_out_outputs(h, s) * h->l.message_bytes;
    if (h->a.far != 0)
        begin_rows(h, s);
    if (h->l.dedup)
        place_by_rank(h, s, m);
    else
        place_by_expert(h, s, m);
    return EPA_OK;
}

static char *staging_at(const struct ll_host *h, const struct ll_set *s, uint32_t t,
                        const struct ll_slot *place)
{
    uint64_t slot = h->l.dedup ? place->output : t;

    return h->a.t->heap + algo_region(&h->a, &s->s, h->l.staging_at, h->l.staging_bytes) +
           slot * h->l.message_bytes;
}

static enum epa_status put_rows(const struct ll_task *task)
{
    struct ll_host *h = task->h;
    enum epa_status status = EPA_OK;

    for (uint32_t t = task->begin; t < task->end; t++) {
        const struct ll_slot *place = task->set->place + (size_t)t * h->l.places;

        for (uint32_t j = 0; j < h->l.places && status == EPA_OK; j++) {
            if (place[j].rank != ALGO_NONE && !algo_reachable(&h->a, place[j].rank))
                status = ll_put(h, LL_DATA, task->set, place[j].row,
                                staging_at(h, task->set, t, &place[j]), 1, place[j].rank);
        }
    }
    return status;
}

/* Moves the ends of blocks on, past the tokens that were just made. */
static void extend_blocks(const struct ll_task *task)
{
    struct ll_host *h = task->h;
    size_t end = (size_t)task->end * h->l.places;

    for (size_t i = (size_t)task->begin * h->l.places; i < end; i++) {
        const struct ll_slot *place = &task->set->place[i];

        if (place->rank != ALGO_NONE && !algo_reachable(&h->a, place->rank))
            h->block[place->rank].made = place->output + 1;
    }
}

/* Blocks, beginning with those of the next rank; the last time, whatever there is of them. */
static enum epa_status put_blocks(const struct ll_task *task)
{
    bool last = task->end == task->m->tokens;
    struct ll_host *h = task->h;
    enum epa_status status = EPA_OK;

    extend_blocks(task);
    for (uint32_t i = 1; i < h->l.size && status == EPA_OK; i++) {
        uint32_t peer = algo_peer(&h->a, i);
        struct ll_block *b = &h->block[peer];
        const struct ll_slot from = {.output = b->output};
        uint32_t rows = b->made - b->output;

        if (algo_reachable(&h->a, peer) || rows == 0 ||
            (!last && rows * h->l.message_bytes < LL_BLOCK_BYTES))
            continue;
        status =
            ll_put(h, LL_DATA, task->set, b->row, staging_at(h, task->set, 0, &from), rows, peer);
        b->row += rows;
        b->output += rows;
    }
    return status;
}

static enum epa_status put_made(const struct ll_task *task)
{
    struct ll_host *h = task->h;
    enum epa_status status = h->l.dedup ? put_blocks(task) : put_rows(task);

    /* Peers may wait for room here while the next are made. */
    return status == EPA_OK ? h->a.t->ops->progress(h->a.t) : status;
}

/* ---- dispatch: rows ---- */

/* Writes token t; `end` as in epa_write_token(). */
static void write_token(const struct ll_task *task, uint32_t t, uint32_t end, char *msg)
{
    const struct ll_layout *l = &task->h->l;

    epa_write_token(task->h->a.kernels, task->m, l->fp8, t, end, msg + LL_META_BYTES,
                    msg + l->scales_at);
}

static void write_meta(const struct ll_task *task, uint32_t t, uint32_t choices, char *msg)
{
    *(struct ll_meta *)(void *)msg = (struct ll_meta){
        .origin = {task->h->a.world.rank, t},
        .epoch = (uint32_t)task->set->s.epoch,
        .choices = choices,
    };
}

/* One message for all experts that want token t. */
static void send_to_experts(const struct ll_task *task, uint32_t t, uint32_t end, uint32_t worker)
{
    const struct ll_host *h = task->h;
    const struct ll_slot *place = task->set->place + (size_t)t * h->l.places;
    uint64_t recv = recv_offset(h, task->set);
    char *msg = NULL;
    void *to[LL_TOPK];
    uint32_t n = 0;

    for (uint32_t j = 0; j < h->l.places; j++) {
        if (place[j].rank == ALGO_NONE)
            continue;
        if (algo_reachable(&h->a, place[j].rank))
            to[n++] = algo_at(&h->a, place[j].rank, recv + place[j].row * h->l.message_bytes);
        else if (msg == NULL)
            msg = staging_at(h, task->set, t, &place[j]);
    }
    if (msg == NULL)
        msg = h->scratch + worker * h->l.message_bytes;
    write_token(task, t, end, msg);
    write_meta(task, t, 0, msg);
    h->a.kernels->spread(to, n, msg, h->l.message_bytes, h->a.store);
}

/* Token t once for each rank, with the choices of experts at that rank. */
static void send_to_ranks(const struct ll_task *task, uint32_t t, uint32_t end, uint32_t worker)
{
    const struct ll_host *h = task->h;
    const struct ll_layout *l = &h->l;
    const struct ll_slot *place = task->set->place + (size_t)t * l->places;
    uint64_t recv = arrival_offset(h, task->set);
    char *scratch = h->scratch + worker * l->message_bytes, *first = NULL;
    bool again = false; /* the token is in scratch */

    for (uint32_t j = 0; j < l->places && place[j].rank != ALGO_NONE; j++) {
        bool near = algo_reachable(&h->a, place[j].rank);
        char *msg = near ? scratch : staging_at(h, task->set, t, &place[j]);
        struct ll_choice *choice = (struct ll_choice *)(void *)(msg + l->choices_at);
        uint32_t n = 0;

        if (first == NULL)
            write_token(task, t, end, first = msg);
        else if (!near || !again)
            memcpy(msg, first, l->choices_at);
        again = again || near;
        for (size_t i = (size_t)t * l->topk; i < (size_t)(t + 1) * l->topk; i++) {
            int32_t e = task->m->expert[i];

            if (e >= 0 && h->a.rank_of[e] == place[j].rank)
                choice[n++] = (struct ll_choice){task->set->entry[i], task->m->weight[i]};
        }
        write_meta(task, t, n, msg);
        if (near) {
            void *to = algo_at(&h->a, place[j].rank, recv + place[j].row * l->message_bytes);

            h->a.kernels->spread(&to, 1, msg, l->message_bytes, h->a.store);
        }
    }
}

static void send_rows(void *arg, uint32_t worker, uint32_t workers)
{
    const struct ll_task *task = arg;
    uint32_t first = first_of(task, worker, workers);
    uint32_t end = first_of(task, worker + 1, workers);
    uint64_t begin = epa_trace_now(task->h->a.trace);

    for (uint32_t t = first; t < end; t++) {
        if (task->h->l.dedup)
            send_to_ranks(task, t, end, worker);
        else
            send_to_experts(task, t, end, worker);
    }
    algo_drain(task->h->a.store);
    algo_worked(&task->h->a, worker, workers, begin, end - first);
}

/* Says what is wrong with the choices of a row. */
static enum epa_status blame(struct ll_host *h, uint64_t row, const char *msg)
{
    uint32_t n = meta_of(msg)->choices, c = 0;
    const struct ll_choice *choice = choices_of(h, msg);

    while (n <= h->l.topk && c + 1 < n && choice[c].entry < h->l.entries)
        c++;
    return algo_fail(&h->a, EPA_ERR_MISMATCH, "row %llu says it has %u choices, entry %u",
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
    h->a.kernels->spread(to, n, msg, bytes, h->a.store);
    return true;
}

static void copy_rows(void *arg, uint32_t worker, uint32_t workers)
{
    struct ll_task *task = arg;
    const struct ll_host *h = task->h;
    const char *received = h->a.t->heap + arrival_offset(h, task->set);
    char *recv = h->a.t->heap + recv_offset(h, task->set);
    uint64_t rows = rows_that_came(h, task->set), end = rows * (worker + 1) / workers;

    for (uint64_t row = rows * worker / workers; row < end; row++) {
        /* Relaxed: read once the workers have been waited for. */
        if (!copy_row(h, received + row * h->l.message_bytes, recv))
            __atomic_store_n(&task->wrong, row + 1, __ATOMIC_RELAXED);
    }
    algo_drain(h->a.store);
}

static enum epa_status copy_to_experts(struct ll_task *task)
{
    struct ll_host *h = task->h;
    const char *received = h->a.t->heap + arrival_offset(h, task->set);
    enum epa_status status = algo_parallel(&h->a, copy_rows, task);

    if (status == EPA_OK && task->wrong != 0)
        status = blame(h, task->wrong - 1, received + (task->wrong - 1) * h->l.message_bytes);
    return status;
}

/* What the received rows are for the experts, and the views of them. */
static enum epa_status publish(struct ll_task *task)
{
    struct ll_host *h = task->h;
    struct ll_set *s = task->set;
    struct epa_moe *m = task->m;
    const char *recv = h->a.t->heap + recv_offset(h, s);

    epa_publish_counts(m, s->s.epoch, h->l.local, s->s.recv_count, s->s.recv_start);
    epa_publish_messages(m, recv, LL_META_BYTES, h->l.fp8, h->l.scales_at, 0, h->l.message_bytes);
    m->y_space = h->a.t->heap + y_offset(h, s);
    if (h->l.by_rank) {
        m->recv_rows = rows_that_came(h, s);
        m->recv_row = s->recv_row;
        m->recv_weight = s->recv_weight;
        return index_rows(h, s, m->recv_rows, recv);
    }
    return h->l.dedup ? copy_to_experts(task) : EPA_OK;
}

/* ---- dispatch ---- */

/* Makes messages and stores them; those that are put leave a slice at a time. */
static enum epa_status store_rows(struct ll_host *h, struct ll_task *task)
{
    uint32_t tokens = task->m->tokens, slice = tokens;
    bool tries = algo_try(&h->a, tokens);
    enum epa_status status = EPA_OK;
    uint64_t start, ns = 0;

    if (h->a.far != 0)
        slice = 1 + ALGO_SLICE_BYTES / (uint32_t)h->l.message_bytes;
    for (task->begin = 0; task->begin < tokens && status == EPA_OK; task->begin = task->end) {
        task->end = tokens - task->begin > slice ? task->begin + slice : tokens;
        start = tries ? clock_ns() : 0;
        status = algo_parallel(&h->a, send_rows, task);
        ns += tries ? clock_ns() - start : 0;
        if (status == EPA_OK && h->a.far != 0)
            status = put_made(task);
    }
    if (tries)
        algo_tried(&h->a, (double)ns / tokens);
    return status;
}

static enum epa_status dispatch(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct ll_host *h = (struct ll_host *)a;
    struct epa_moe *m = &problem->u.moe;
    struct ll_set *s;
    struct ll_task task;
    enum epa_status status;

    algo_begin(&h->a, "dispatch", "count_put");
    s = (struct ll_set *)algo_take_set(&h->a);
    if (s == NULL)
        return EPA_ERR_CONFIG;
    task = (struct ll_task){.h = h, .set = s, .m = m};
    status = exchange_counts(h, s, m);
    if (algo_phase(&h->a, status, "quant_and_put"))
        status = give_places(h, s, m);
    if (status == EPA_OK)
        status = store_rows(h, &task);
    if (status == EPA_OK)
        status = ll_signal_all(h, LL_DATA, s->s.epoch);
    if (algo_phase(&h->a, status, "wait"))
        status = ll_wait_and_leave(h, LL_DATA, s->s.epoch);
    if (algo_phase(&h->a, status, "postprocess"))
        status = publish(&task);
    algo_end(&h->a);
    epa_trace_count(h->a.trace, 0, epa_trace_name(h->a.trace, "rows"), m->recv_rows);
    return status;
}

/* ---- set-up ---- */

static const struct epa_stage stages[] = {
    {"dispatch", EPA_STAGE_DISPATCH, dispatch},
    {"combine", EPA_STAGE_COMBINE, ll_combine},
};

enum epa_status ll_host_create(const struct epa_algorithm_params *p, const struct ll_layout *l,
                               struct epa_algorithm **out, struct epa_error *err)
{
    const struct algo_setup setup = {
        .name = "ll_v2",
        .stages = stages,
        .n_stages = sizeof(stages) / sizeof(stages[0]),
        .state_bytes = sizeof(struct ll_host),
        .set_bytes = sizeof(struct ll_set),
        .buffers = l->buffers,
        .signals = l->signals,
        .heap_bytes = l->heap_bytes,
        .puts = l->puts,
    };
    struct algo_host *a;
    struct ll_host *h;
    enum epa_status status = algo_create(&setup, p, &a, err);

    if (status != EPA_OK)
        return status;
    h = (struct ll_host *)a;
    h->l = *l;
    algo_choose_store(a, ((const struct ll_config *)p->config)->nontemporal,
                      (double)p->world.local_size * l->max_tokens * l->places *
                          (double)(l->message_bytes + l->output_bytes));
    for (uint32_t b = 0; b < l->buffers; b++) {
        struct ll_set *s = (struct ll_set *)a->set[b];
        size_t tokens = l->max_tokens;

        s->place = algo_alloc(a, tokens * l->places, sizeof(*s->place));
        s->count = algo_alloc(a, l->size, l->count_words * sizeof(*s->count));
        if (l->dedup)
            s->entry = algo_alloc(a, tokens * l->topk, sizeof(*s->entry));
        if (l->by_rank) {
            s->recv_row = algo_alloc(a, l->entries, sizeof(*s->recv_row));
            s->recv_weight = algo_alloc(a, l->entries, sizeof(*s->recv_weight));
        }
    }
    h->sum = algo_alloc(a, l->experts + l->size, sizeof(*h->sum));
    h->next = algo_alloc(a, l->experts + l->size, sizeof(*h->next));
    h->next_row = h->next == NULL ? NULL : h->next + l->experts;
    h->next_output = algo_alloc(a, l->experts, sizeof(*h->next_output));
    h->block = algo_alloc(a, l->size, sizeof(*h->block));
    h->left = algo_alloc(a, l->size, sizeof(*h->left));
    h->scratch = algo_alloc_scratch(a, l->message_bytes);
    if (l->outbox_bytes != 0)
        h->sums = algo_alloc(a, a->workers, l->output_bytes);
    return algo_created(a, out, err);
}
