/* Host code of ll_v1, over any transport.
 *
 * Dispatch sorts choices by expert, quantises each token once, sends a block to each rank and
 * regroups what it received by expert. Combine sends the expert outputs back in blocks, or
 * pulls them from where experts wrote them, and adds up those of each token.
 *
 *                dispatch                              combine
 *   a block      rows of a slice, as sorted            outputs of a slice, as sorted there
 *   goes to      slots of its source, from rank *      where the slice begins at the source:
 *                MAX_M                                 recv_offset
 *   with it      splits, scales                        nothing
 *
 * A rank in reach that pulls gets no more than splits and signal: it loads tokens, and outputs
 * from y, as it uses them. One that is pushed to gets its block by stores, one out of reach by
 * puts: long ones in pieces, so that making them and sending them overlap.
 *
 * Dispatches count as calls 1, 2, 3... and so do combines, apart from them; all ranks make the
 * same calls in the same order. A call uses the buffers of its position, call mod 2, and its
 * signals carry its count.
 *
 * Two buffers are enough, whatever calls are in between. What call m of a mode writes at p, s
 * writes in call m of that mode: s has ended call m - 1, for which it waited for p; so p has
 * begun m - 1 and ended m - 2, the last that had this position, and what a call receives is used
 * up before the call ends: dispatch copies rows and splits away, combine adds outputs up. Tokens
 * are read by p in place of being written there, with the same conclusion. With one buffer s,
 * back from call n, would write what p, in call n still, has not read. A dispatch that is given
 * up and a combine that is called again are calls like any other.
 *
 * The word of a source, mode and position takes n, n + 2, ... and never passes a rank that waits
 * for n: s raises n + 2 after p has begun n + 1. So == would do, as in the source; >= is what
 * all protocols here wait with.
 *
 * Rows by expert, starts and y belong to sets, of which a dispatch takes the first that no open
 * one has; its combine, or discard, gives it back. Rows are written and read by their rank
 * alone. Let dispatch m take the set that dispatch n had. p writes `starts` once DATA of m has
 * arrived from every s, and its experts write y later: s has begun dispatch m, so it has ended
 * combine n, in which it pulled both; and what p itself put from y was in place when the quiet()
 * at the end of combine n returned.
 *
 * quiet() ends each call: it lets go of what a transport holds back, for which peers would wait
 * while experts run, keeps the two SETs of a word apart, and frees what was put from. */
#include "ll_v1_host.h"

#include <string.h>

/* ---- the exchange: a block to each rank, its signal, and the wait for those of all ---- */

/* The signal of this call, and what is put with it, if anything. */
static enum epa_status signal_with(const struct v1_task *task, uint64_t dst, const void *src,
                                   uint64_t bytes)
{
    struct v1_host *h = task->h;

    return algo_signal(&h->a, dst, src, bytes,
                       v1_signal_of(h->l.size, task->mode, task->call, h->a.world.rank), task->call,
                       task->peer);
}

/* Where the first row of my block is at any rank. */
static uint64_t slot_of(const struct v1_host *h, uint64_t row_bytes)
{
    return (uint64_t)h->a.world.rank * h->l.max_m * row_bytes;
}

/* Rows from `begin` to `end` of the block, from where tokens were quantised: to the receiver's
 * slots, or to where they are put from. */
static void gather_rows(void *arg, uint32_t worker, uint32_t workers)
{
    const struct v1_task *task = arg;
    const struct v1_host *h = task->h;
    const struct v1_layout *l = &h->l;
    const uint32_t *token = splits_to(task, task->peer) + l->local + 1;
    const char *from = here(h, &l->token, position(task));
    const char *from_scales = here(h, &l->token_scales, position(task));
    bool far = way_to(h, task->peer) == V1_PUT;
    uint64_t start = start_to(task, task->peer);
    char *to = far ? here(h, &l->out, 0) + start * l->row_bytes
                   : there(h, task->peer, &l->slot, position(task)) + slot_of(h, l->row_bytes);
    char *to_scales =
        far ? here(h, &l->out_scales, 0) + start * l->scales_bytes
            : there(h, task->peer, &l->slot_scales, position(task)) + slot_of(h, l->scales_bytes);
    enum epa_store store = far ? EPA_STORE_CACHED : h->a.store;
    uint32_t n = task->end - task->begin;
    uint32_t end = task->begin + algo_share(n, worker + 1, workers);

    for (uint32_t i = task->begin + algo_share(n, worker, workers); i < end; i++) {
        void *row = to + i * l->row_bytes, *scales = to_scales + i * l->scales_bytes;

        h->a.kernels->spread(&row, 1, from + token[i] * l->row_bytes, l->row_bytes, store);
        if (l->fp8)
            h->a.kernels->spread(&scales, 1, from_scales + token[i] * l->scales_bytes,
                                 l->scales_bytes, store);
    }
    algo_drain(store);
}

static enum epa_status send_rows(struct v1_task *task)
{
    struct v1_host *h = task->h;
    bool far = way_to(h, task->peer) == V1_PUT;
    uint32_t start = start_to(task, task->peer);
    uint32_t rows = start_to(task, task->peer + 1) - start;
    uint32_t piece = far ? 1 + ALGO_SLICE_BYTES / (uint32_t)h->l.row_bytes : rows;
    uint64_t slot = offset_of(h, &h->l.slot, position(task)) + slot_of(h, h->l.row_bytes);
    enum epa_status status = EPA_OK;

    for (task->begin = 0; task->begin < rows && status == EPA_OK; task->begin = task->end) {
        task->end = rows - task->begin > piece ? task->begin + piece : rows;
        algo_begin_work(&h->a);
        status = in_parallel(task, gather_rows);
        algo_end_work(&h->a, task->set->s.epoch, ALGO_DISPATCH, task->m->tokens);
        if (status == EPA_OK && far)
            status = algo_put(&h->a, slot + task->begin * h->l.row_bytes,
                              here(h, &h->l.out, 0) + (start + task->begin) * h->l.row_bytes,
                              (task->end - task->begin) * h->l.row_bytes, task->peer);
        if (status == EPA_OK && far) /* peers may wait for room here meanwhile */
            status = h->a.t->ops->progress(h->a.t);
    }
    return status;
}

/* Splits and signal; out of reach scales bring the signal, if there are any. */
static enum epa_status end_rows(struct v1_task *task)
{
    struct v1_host *h = task->h;
    const uint32_t *splits = splits_to(task, task->peer);
    uint32_t start = start_to(task, task->peer);
    uint32_t rows = start_to(task, task->peer + 1) - start;
    uint64_t to = offset_of(h, &h->l.splits, position(task)) +
                  (uint64_t)h->a.world.rank * h->l.split_words * 4;
    uint64_t bytes = (h->l.local + 1 + (uint64_t)rows) * 4;
    enum epa_status status;

    if (task->peer == h->a.world.rank) {
        memcpy(h->a.t->heap + to, splits, bytes);
        return EPA_OK;
    }
    if (way_to(h, task->peer) != V1_PUT)
        return signal_with(task, to, splits, bytes);
    status = algo_put(&h->a, to, splits, bytes, task->peer);
    /* The signal is seen after all of the block, and not only after the scales. */
    if (status == EPA_OK)
        status = h->a.t->ops->fence(h->a.t, task->peer);
    if (status == EPA_OK)
        status = signal_with(
            task, offset_of(h, &h->l.slot_scales, position(task)) + slot_of(h, h->l.scales_bytes),
            here(h, &h->l.out_scales, 0) + start * h->l.scales_bytes, rows * h->l.scales_bytes);
    return status;
}

/* To the source's `expert outputs`, by stores. */
static void copy_outputs(void *arg, uint32_t worker, uint32_t workers)
{
    const struct v1_task *task = arg;
    const struct v1_host *h = task->h;
    uint64_t bytes = h->l.output_bytes;
    const uint32_t *count = counts_of(task, task->peer);
    const uint32_t *start = starts_of(task, task->peer);
    char *to =
        there(h, task->peer, &h->l.outputs, position(task)) + task->set->offset[task->peer] * bytes;

    for (uint32_t j = 0; j < h->l.local; j++) {
        uint32_t begin = algo_share(count[j], worker, workers);
        uint32_t n = algo_share(count[j], worker + 1, workers) - begin;

        if (n != 0)
            memcpy(to + begin * bytes, task->y + (start[j] + (uint64_t)begin) * bytes, n * bytes);
        to += count[j] * bytes;
    }
}

/* The outputs of an expert are adjacent, here and there: a piece of the block. */
static enum epa_status put_outputs(const struct v1_task *task)
{
    struct v1_host *h = task->h;
    uint64_t bytes = h->l.output_bytes;
    const uint32_t *count = counts_of(task, task->peer);
    const uint32_t *start = starts_of(task, task->peer);
    uint64_t to =
        offset_of(h, &h->l.outputs, position(task)) + task->set->offset[task->peer] * bytes;
    enum epa_status status = EPA_OK;

    for (uint32_t j = 0; j < h->l.local && status == EPA_OK; j++) {
        if (count[j] == 0)
            continue;
        status = algo_put(&h->a, to, task->y + start[j] * bytes, count[j] * bytes, task->peer);
        to += count[j] * bytes;
    }
    return status == EPA_OK ? h->a.t->ops->progress(h->a.t) : status;
}

static enum epa_status end_outputs(const struct v1_task *task)
{
    struct v1_host *h = task->h;
    enum epa_status status = EPA_OK;

    if (task->peer == h->a.world.rank)
        return EPA_OK;
    /* The signal is seen after the block. */
    if (way_to(h, task->peer) == V1_PUT)
        status = h->a.t->ops->fence(h->a.t, task->peer);
    return status == EPA_OK ? signal_with(task, 0, NULL, 0) : status;
}

static enum epa_status send_block(struct v1_task *task)
{
    enum v1_way way = way_to(task->h, task->peer);

    if (way == V1_PULL)
        return EPA_OK;
    if (task->mode == V1_DISPATCH)
        return send_rows(task);
    return way == V1_PUT ? put_outputs(task) : in_parallel(task, copy_outputs);
}

/* Blocks to those ranks that pull, or to the others. */
static enum epa_status send_to(struct v1_task *task, bool pulling)
{
    struct v1_host *h = task->h;
    enum epa_status status = EPA_OK;

    for (uint32_t i = 1; i <= h->l.size && status == EPA_OK; i++) {
        h->a.last.peer = task->peer = algo_peer(&h->a, i);
        if ((way_to(h, task->peer) == V1_PULL) != pulling)
            continue;
        status = send_block(task);
        if (status == EPA_OK)
            status = task->mode == V1_DISPATCH ? end_rows(task) : end_outputs(task);
    }
    return status;
}

/* All blocks of a call to all ranks, until those of all ranks have arrived and nothing that this
 * rank sent is held back. */
static enum epa_status exchange(struct v1_task *task)
{
    struct v1_host *h = task->h;
    enum epa_status status = send_to(task, true);

    if (status == EPA_OK)
        status = send_to(task, false);
    if (algo_phase(&h->a, status, "wait"))
        status = algo_wait_for_all(&h->a, v1_signal_of(h->l.size, task->mode, task->call, 0),
                                   task->call, task->mode == V1_DISPATCH ? "rows" : "outputs");
    return algo_phase(&h->a, status, "quiet") ? h->a.t->ops->quiet(h->a.t) : status;
}

/* ---- dispatch ---- */

static enum epa_status dispatch(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct v1_host *h = (struct v1_host *)a;
    struct v1_task task = {.h = h, .m = &problem->u.moe, .mode = V1_DISPATCH};
    enum epa_status status;

    algo_begin(&h->a, "dispatch", "sort_and_quantise");
    task.set = (struct v1_set *)algo_take_set(&h->a);
    if (task.set == NULL)
        return EPA_ERR_CONFIG;
    task.call = ++h->calls[V1_DISPATCH];
    h->again = NULL;
    status = algo_set_store(&h->a, task.set->s.epoch);
    if (status == EPA_OK)
        status = v1_sort_and_quantise(&task);
    if (algo_phase(&h->a, status, "send"))
        status = exchange(&task);
    if (algo_phase(&h->a, status, "postprocess"))
        status = v1_regroup(&task);
    algo_end(&h->a);
    return status;
}

/* ---- combine ---- */

/* Outputs that are elsewhere, to where they are pulled or put from. */
static void copy_to_y(void *arg, uint32_t worker, uint32_t workers)
{
    const struct v1_task *task = arg;
    const struct v1_host *h = task->h;
    uint64_t bytes = h->l.output_bytes;
    uint32_t begin = algo_share(task->end, worker, workers);
    uint32_t n = algo_share(task->end, worker + 1, workers) - begin;

    if (n != 0) /* y may be NULL then */
        memcpy(here(h, &h->l.y, index_of(task)) + begin * bytes,
               (const char *)task->m->y + begin * bytes, n * bytes);
}

/* Who pushes to all reads them where they are. */
static enum epa_status find_outputs(struct v1_task *task)
{
    struct v1_host *h = task->h;
    const struct algo_set *s = &task->set->s;
    uint32_t last = h->l.local - 1;
    bool apart = task->m->y != here(h, &h->l.y, index_of(task));

    task->y = here(h, &h->l.y, index_of(task));
    if (apart && !h->l.pull && h->a.far == 0)
        task->y = task->m->y;
    else if (apart && h->again == NULL) /* called again the same outputs are there */
        task->end = (uint32_t)s->recv_start[last] + s->recv_count[last];
    return task->end != 0 ? in_parallel(task, copy_to_y) : EPA_OK;
}

static enum epa_status combine(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct v1_host *h = (struct v1_host *)a;
    struct v1_task task = {.h = h, .m = &problem->u.moe, .mode = V1_COMBINE};
    enum epa_status status;

    algo_begin(&h->a, "combine", "send");
    if (h->again != NULL && h->again->s.epoch != task.m->epoch)
        h->again = NULL;
    task.set = h->again;
    if (task.set == NULL)
        task.set = (struct v1_set *)algo_set_of(&h->a, task.m->epoch, ALGO_OPEN, "open");
    if (task.set == NULL)
        return EPA_ERR_CONFIG;
    task.call = ++h->calls[V1_COMBINE];
    status = algo_set_store(&h->a, task.m->epoch);
    if (status == EPA_OK)
        status = find_outputs(&task);
    if (status == EPA_OK)
        status = exchange(&task);
    if (algo_phase(&h->a, status, "reduce"))
        status = v1_reduce(&task);
    algo_end(&h->a);
    task.set->s.state = ALGO_FREE;
    h->again = task.set;
    return status;
}

/* ---- set-up ---- */

static const struct epa_stage stages[] = {
    {"dispatch", EPA_STAGE_DISPATCH, dispatch},
    {"combine", EPA_STAGE_COMBINE, combine},
};

enum epa_status v1_host_create(const struct epa_algorithm_params *p, const struct v1_layout *l,
                               struct epa_algorithm **out, struct epa_error *err)
{
    const struct algo_setup setup = {
        .name = "ll_v1",
        .stages = stages,
        .n_stages = sizeof(stages) / sizeof(stages[0]),
        .state_bytes = sizeof(struct v1_host),
        .set_bytes = sizeof(struct v1_set),
        .buffers = l->buffers,
        .signals = (V1_MODES * V1_POSITIONS + ALGO_WAYS) * l->size,
        .heap_bytes = l->heap_bytes,
        .puts = l->puts,
    };
    struct algo_host *a;
    struct v1_host *h;
    enum epa_status status = algo_create(&setup, p, &a, err);

    if (status != EPA_OK)
        return status;
    h = (struct v1_host *)a;
    for (uint32_t mode = 0; mode < V1_MODES; mode++)
        h->calls[mode] = p->epoch;
    a->base.discard = algo_discard;
    a->base.combines_again = true;
    h->l = *l;
    algo_choose_store(a, ((const struct v1_config *)p->config)->nontemporal,
                      (double)p->world.local_size * l->max_tokens * l->topk *
                          (double)(l->row_bytes + l->scales_bytes + l->output_bytes),
                      false, V1_MODES * V1_POSITIONS * l->size);
    for (uint32_t b = 0; b < l->buffers; b++) {
        struct v1_set *s = (struct v1_set *)a->set[b];

        s->at = algo_alloc(a, l->max_tokens, l->topk * sizeof(*s->at));
        s->cumsum = algo_alloc(a, l->experts + 1, sizeof(*s->cumsum));
        s->count = algo_alloc(a, l->experts, sizeof(*s->count));
        s->offset = algo_alloc(a, l->size, sizeof(*s->offset));
    }
    h->tokens_of = algo_alloc(a, l->experts, sizeof(*h->tokens_of));
    h->next = algo_alloc(a, a->workers, l->experts * sizeof(*h->next));
    h->output = algo_alloc(a, l->experts, sizeof(*h->output));
    h->move = algo_alloc(a, l->rows, sizeof(*h->move));
    h->moves = algo_alloc(a, l->size, sizeof(*h->moves));
    h->dest = algo_alloc(a, l->rows, sizeof(*h->dest));
    h->seen = algo_alloc(a, a->workers, l->max_tokens * sizeof(*h->seen));
    for (uint32_t e = 0; e < l->experts && h->tokens_of != NULL; e++)
        h->tokens_of[e] = v1_splits_to(l, a->rank_of[e] + 1, 0);
    return algo_created(a, out, err);
}
