/* ll_v2 on hosts: the protocol, set-up, and blocking calls.
 *
 * Ranks exchange the numbers of rows for each expert or rank (ll_v2_routes.c). Each rank then knows
 * the position of its rows at every receiver, and stores the rows there, quantised during the copy.
 * Combine pulls the expert outputs from the place where experts wrote them and adds them up. Peers
 * that loads and stores do not reach receive the same messages by puts from a staging copy, and
 * return expert outputs by puts; the last put to a peer carries the signal. With dedup in layout
 * expert, rows arrive in region arrival_at, and the receiver copies them to its experts. It reduces
 * the outputs of a row's experts into region outbox_at, which also contains quantised outputs.
 *
 * Dispatch and combine end with quiet(). Otherwise a transport would deliver buffered data only in
 * this rank's next call, and experts may run for a long time. quiet() takes no longer than the
 * preceding wait and the way back, and makes the sources of puts reusable.
 *
 * Dispatches have the epochs 1, 2, 3... and signals carry the epoch. A dispatch takes the first
 * free buffer set, and its combine releases the set. All ranks make the same calls in the same
 * order, so they take the same set. The protocol needs no barrier. Let epoch m take the set of
 * epoch n < m, with combine n called before dispatch m.
 *   - Rows of m are written at p after COUNT m, or routes m, of p have arrived. So p has entered
 *     dispatch m, after its experts and combine of n.
 *   - Expert outputs of m are written at p after its dispatch m has ended. So every rank has
 *     entered dispatch m, and has pulled or used the expert outputs of n before.
 *   - Region arrival_at is written like rows, and p last read the choices in it in its combine n.
 *     p itself writes the copies of rows, after that.
 *   - p itself writes region outbox_at, in combine m. Every rank has entered dispatch m, since p
 *     has its counts, and so has pulled the expert outputs of n. Puts of outputs were complete
 *     at the quiet() of combine n, puts from staging at the quiet() of dispatch n.
 *   - A rank that has ended dispatch m - 1 writes counts of m at p. So p has sent DATA m - 1,
 *     and copied the counts of n long before.
 *   - Routes have two places, for odd and even epochs: see routes_of().
 * These conditions do not need DATA or OUTPUT of a rank that exchanges no rows with p. With
 * published routes, ranks neither signal such a rank nor wait for it. A signal of a later epoch
 * satisfies a wait for m with >=; it follows the signal of m, if any.
 *
 * With two sets one dispatch may run ahead: D1 D2 C1 D3 C2 ... Combines follow the order of
 * dispatches: each kind of signal is one word per source, so outputs of a later epoch would pass
 * for outputs of an earlier one. */
#include "ll_v2_host.h"

#include "ll_v2_combine.h"
#include "ll_v2_message.h"
#include "ll_v2_routes.h"
#include "ll_v2_signals.h"
#include "ll_v2_state.h"
#include "../../common/algo_store.h"

/* ---- dispatch: puts of rows ---- */

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

/* Extends the blocks by the tokens that were just written. */
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

/* Puts blocks, beginning with the next rank. After the last token it also puts short blocks. */
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

static enum epa_status put_written_rows(const struct ll_task *task)
{
    struct ll_host *h = task->h;
    enum epa_status status = h->l.dedup ? put_blocks(task) : put_rows(task);

    /* Frees room for which peers may wait. */
    return status == EPA_OK ? h->a.t->ops->progress(h->a.t) : status;
}

/* ---- dispatch: rows ---- */

/* Stores `bytes` at n places, and advances the places. */
static void spread_part(const struct ll_host *h, void **to, uint32_t n, const char *from,
                        uint64_t bytes, enum epa_store store)
{
    h->a.kernels->spread(to, n, from, bytes, store);
    for (uint32_t i = 0; i < n; i++)
        to[i] = (char *)to[i] + bytes;
}

/* Stores one message at all experts of token t, part by part: the quantisation of a part overlaps
 * the stores of the previous one. */
static void send_to_experts(const struct ll_task *task, uint32_t t, uint32_t end, uint32_t worker)
{
    const struct ll_host *h = task->h;
    const struct ll_slot *place = task->set->place + (size_t)t * h->l.places;
    uint64_t recv = recv_offset(h, task->set), sent = 0, ready;
    uint32_t n = 0, mine = 0, hidden = h->l.hidden, part = part_channels(task), last;
    bool apart = h->a.own_store != h->a.store;
    char *msg = NULL;
    void *to[LL_TOPK], *own[LL_TOPK];

    for (uint32_t j = 0; j < h->l.places; j++) {
        if (place[j].rank == ALGO_NONE)
            continue;
        if (apart && place[j].rank == h->a.world.rank)
            own[mine++] = algo_at(&h->a, place[j].rank, recv + place[j].row * h->l.message_bytes);
        else if (algo_reachable(&h->a, place[j].rank))
            to[n++] = algo_at(&h->a, place[j].rank, recv + place[j].row * h->l.message_bytes);
        else if (msg == NULL)
            msg = staging_at(h, task->set, t, &place[j]);
    }
    if (msg == NULL)
        msg = h->scratch + worker * h->l.message_bytes;
    write_meta(task, t, 0, msg);
    for (uint32_t first = 0; first < hidden; first = last, sent = ready) {
        last = hidden - first > part ? first + part : hidden;
        if (t != 0 || last > task->written)
            write_part(task, t, end, first, last, msg);
        ready = last == hidden ? h->l.message_bytes : (LL_META_BYTES + last) / LL_LINE * LL_LINE;
        spread_part(h, to, n, msg + sent, ready - sent, h->a.store);
        spread_part(h, own, mine, msg + sent, ready - sent, h->a.own_store);
    }
}

/* Stores token t once per rank, with the choices of experts at that rank. */
static void send_to_ranks(const struct ll_task *task, uint32_t t, uint32_t end, uint32_t worker)
{
    const struct ll_host *h = task->h;
    const struct ll_layout *l = &h->l;
    const struct ll_slot *place = task->set->place + (size_t)t * l->places;
    uint64_t recv = arrival_offset(h, task->set);
    char *scratch = h->scratch + worker * l->message_bytes, *first = NULL;
    bool again = false; /* scratch contains the token */

    for (uint32_t j = 0; j < l->places && place[j].rank != ALGO_NONE; j++) {
        bool near = algo_reachable(&h->a, place[j].rank);
        char *msg = near ? scratch : staging_at(h, task->set, t, &place[j]);
        struct ll_choice *choice = (struct ll_choice *)(void *)(msg + l->choices_at);
        uint32_t n = 0, which = 0;

        if (first == NULL)
            write_token(task, t, end, first = msg);
        else if (!near || !again)
            memcpy(msg, first, l->choices_at);
        again = again || near;
        for (uint32_t k = 0; k < l->topk; k++) {
            size_t i = (size_t)t * l->topk + k;
            int32_t e = task->m->expert[i];

            if (e < 0 || h->a.rank_of[e] != place[j].rank)
                continue;
            choice[n++] = (struct ll_choice){task->set->entry[i], task->m->weight[i]};
            which |= 1u << k;
        }
        write_meta(task, t, which, msg);
        if (near) {
            void *to = algo_at(&h->a, place[j].rank, recv + place[j].row * l->message_bytes);

            h->a.kernels->spread(&to, 1, msg, l->message_bytes,
                                 place[j].rank == h->a.world.rank ? h->a.own_store : h->a.store);
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

/* Reports the invalid choices of a row. */
static enum epa_status report_bad_choices(struct ll_host *h, uint64_t row, const char *msg)
{
    uint32_t n = meta_of(msg)->choices, c = 0;
    const struct ll_choice *choice = choices_of(h, msg);

    while (n <= h->l.topk && c + 1 < n && choice[c].entry < h->l.entries)
        c++;
    return algo_fail(&h->a, EPA_ERR_MISMATCH, "invalid row %llu: %u choices, entry %u",
                     (unsigned long long)row, n, choice[c].entry);
}

/* Fills in recv_row, recv_weight and recv_k from the choices of the messages. */
static enum epa_status index_rows(struct ll_host *h, struct ll_set *s, uint64_t rows,
                                  const char *recv)
{
    enum { AHEAD = 8 };

    for (uint64_t row = 0; row < rows; row++) {
        const char *msg = recv + row * h->l.message_bytes;
        const struct ll_meta *meta = meta_of(msg);
        const struct ll_choice *choice = choices_of(h, msg);
        uint32_t which = meta->which;

        __builtin_prefetch(msg + AHEAD * h->l.message_bytes);
        __builtin_prefetch(msg + AHEAD * h->l.message_bytes + h->l.choices_at);
        for (uint32_t c = 0; c < meta->choices; c++, which &= which - 1) {
            if (meta->choices > h->l.topk || choice[c].entry >= h->l.entries || which == 0)
                return report_bad_choices(h, row, msg);
            s->recv_row[choice[c].entry] = (uint32_t)row;
            s->recv_weight[choice[c].entry] = choice[c].weight;
            s->recv_k[choice[c].entry] = (uint8_t)__builtin_ctz(which);
        }
    }
    return EPA_OK;
}

/* Copies a received row to each of its experts. Returns false if its choices are invalid. */
static bool copy_row(const struct ll_host *h, const char *msg, char *recv)
{
    uint32_t n = meta_of(msg)->choices;
    const struct ll_choice *choice = choices_of(h, msg);
    /* The copy includes choices in the last line of the scales. */
    uint64_t bytes = (h->l.choices_at + LL_LINE - 1) / LL_LINE * LL_LINE;
    void *to[LL_TOPK];

    if (n > h->l.topk)
        return false;
    for (uint32_t c = 0; c < n; c++) {
        if (choice[c].entry >= h->l.entries)
            return false;
        to[c] = recv + choice[c].entry * h->l.message_bytes;
    }
    h->a.kernels->spread(to, n, msg, bytes, h->a.own_store);
    return true;
}

static void copy_rows(void *arg, uint32_t worker, uint32_t workers)
{
    struct ll_task *task = arg;
    const struct ll_host *h = task->h;
    const char *received = h->a.t->heap + arrival_offset(h, task->set);
    char *recv = h->a.t->heap + recv_offset(h, task->set);
    uint64_t rows = task->set->rows, end = rows * (worker + 1) / workers;

    for (uint64_t row = rows * worker / workers; row < end; row++) {
        /* Relaxed: the wait for the workers orders this store before its load. */
        if (!copy_row(h, received + row * h->l.message_bytes, recv))
            __atomic_store_n(&task->wrong, row + 1, __ATOMIC_RELAXED);
    }
    algo_drain(h->a.own_store);
}

static enum epa_status copy_to_experts(struct ll_task *task)
{
    struct ll_host *h = task->h;
    const char *received = h->a.t->heap + arrival_offset(h, task->set);
    enum epa_status status = algo_parallel(&h->a, copy_rows, task);

    if (status == EPA_OK && task->wrong != 0)
        status = report_bad_choices(h, task->wrong - 1,
                                    received + (task->wrong - 1) * h->l.message_bytes);
    return status;
}

/* Publishes the received rows for experts, and copies or indexes them. */
static enum epa_status publish_rows(struct ll_task *task)
{
    struct ll_host *h = task->h;
    struct ll_set *s = task->set;
    struct epa_moe *m = task->m;
    const char *recv = h->a.t->heap + recv_offset(h, s);

    epa_publish_counts(m, s->s.epoch, h->l.local, s->s.recv_count, s->s.recv_start);
    epa_publish_messages(m, recv, LL_META_BYTES, h->l.fp8, h->l.scales_at, 0, h->l.message_bytes);
    m->recv_source = s->s.recv_source;
    m->y_space = h->a.t->heap + y_offset(h, s);
    if (h->l.by_rank) {
        m->recv_rows = s->rows;
        m->recv_row = s->recv_row;
        m->recv_weight = s->recv_weight;
        m->recv_k = s->recv_k;
        return index_rows(h, s, m->recv_rows, recv);
    }
    return h->l.dedup ? copy_to_experts(task) : EPA_OK;
}

/* ---- dispatch ---- */

/* Writes messages and stores them; messages for puts are written and put in slices. */
static enum epa_status store_rows(struct ll_host *h, struct ll_task *task)
{
    uint32_t tokens = task->m->tokens, slice = tokens;
    enum epa_status status = EPA_OK;

    if (h->a.far != 0)
        slice = 1 + ALGO_SLICE_BYTES / (uint32_t)h->l.message_bytes;
    for (task->begin = 0; task->begin < tokens && status == EPA_OK; task->begin = task->end) {
        task->end = tokens - task->begin > slice ? task->begin + slice : tokens;
        status = algo_parallel(&h->a, send_rows, task);
        if (status == EPA_OK && h->a.far != 0)
            status = put_written_rows(task);
    }
    return status;
}

static enum epa_status run_dispatch(struct epa_algorithm *a, struct epa_problem *problem)
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
    status = ll_exchange(&task);
    if (algo_phase(&h->a, status, "quant_and_put"))
        status = ll_give_places(h, s, m);
    if (status == EPA_OK)
        status = algo_set_store(&h->a, s->s.epoch);
    if (status == EPA_OK) {
        algo_begin_work(&h->a);
        status = store_rows(h, &task);
        algo_end_work(&h->a, s->s.epoch, ALGO_DISPATCH, m->tokens);
    }
    if (status == EPA_OK)
        status = ll_signal(h, LL_DATA, s->s.epoch, s->to);
    if (algo_phase(&h->a, status, "wait"))
        status = ll_wait_and_leave(h, LL_DATA, s->s.epoch, s->from);
    if (algo_phase(&h->a, status, "postprocess"))
        status = publish_rows(&task);
    algo_end(&h->a);
    epa_trace_count(h->a.trace, 0, epa_trace_name(h->a.trace, "rows"), m->recv_rows);
    return status;
}

/* ---- set-up ---- */

static const struct epa_stage stages[] = {
    {"dispatch", EPA_STAGE_DISPATCH, run_dispatch},
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
                          (double)(l->message_bytes + l->output_bytes),
                      true, LL_SIGNALS * l->size);
    for (uint32_t b = 0; b < l->buffers; b++) {
        struct ll_set *s = (struct ll_set *)a->set[b];
        size_t tokens = l->max_tokens;

        s->place = algo_alloc(a, tokens * l->places, sizeof(*s->place));
        if (l->puts)
            s->count = algo_alloc(a, l->size, l->count_words * sizeof(*s->count));
        if (l->dedup)
            s->entry = algo_alloc(a, tokens * l->topk, sizeof(*s->entry));
        if (l->by_rank) {
            s->recv_row = algo_alloc(a, l->entries, sizeof(*s->recv_row));
            s->recv_weight = algo_alloc(a, l->entries, sizeof(*s->recv_weight));
            s->recv_k = algo_alloc(a, l->entries, sizeof(*s->recv_k));
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
