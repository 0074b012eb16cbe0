/* Host code of ll_v1, for any transport.
 *
 * Dispatch sorts choices by expert, quantises each token once, sends a block to each rank, and
 * regroups the received rows by expert. Combine sends the expert outputs back in blocks, or pulls
 * them from the place where experts wrote them, and adds up the expert outputs of each token.
 *
 *                  dispatch                              combine
 *     block        rows of a slice, in sorted order      outputs of a slice, in the same order
 *     target       slots of the source, from             start of the slice at the source:
 *                  rank * MAX_M                          recv_offset
 *     beside it    splits, scales                        nothing
 *
 * A rank that pulls receives only splits and a signal. It loads tokens and expert outputs (from y)
 * during their use. A rank that does not pull receives its block by stores if it is in reach, else
 * by puts. Long blocks are put in pieces, so that packing and sending overlap.
 *
 * Calls of dispatch have the numbers 1, 2, 3..., and calls of combine have their own numbers 1, 2,
 * 3... All ranks make the same calls in the same order. A call uses the buffers of its position
 * (call mod 2), and its signals carry its number.
 *
 * Two buffers are enough for any sequence of calls. Let rank s write data of call m of a mode at
 * rank p. Rank s does so in its own call m, after its call m - 1, in which it waited for p. So p
 * has begun call m - 1 and ended call m - 2, the previous call at this position. A call uses up its
 * received data before it ends: dispatch copies rows and splits, combine adds outputs up. The
 * conclusion also holds for tokens that p reads at s. With one buffer, s would return from call n
 * and overwrite data that p still reads in its call n. An abandoned dispatch and a repeated combine
 * count as calls, too.
 *
 * The signal word of a source, mode and position takes the values n, n + 2, ... A rank that waits
 * for n never finds a larger value: s raises n + 2 after p has begun call n + 1. A comparison
 * with == would thus suffice, as in the source; all protocols of this project compare with >=.
 *
 * Rows by expert, starts and y belong to sets. A dispatch takes the first free set; its combine, or
 * discard, releases the set. Only the owner writes and reads the rows. Let dispatch m take the set
 * of dispatch n. Rank p writes `starts` after the DATA signal of m has arrived from every rank s,
 * and its experts write y later. Every s has then begun dispatch m and ended combine n, in which it
 * pulled both. The puts that p made from y were in place when the quiet() of combine n returned.
 *
 * Each call ends with quiet(). It flushes data that a transport buffers, since peers would wait for
 * the data during the experts' work. It also orders the two SETs of a word, and frees the sources
 * of puts. */
#include "ll_v1_host.h"

#include "ll_v1_rows.h"
#include "ll_v1_state.h"
#include "../../common/algo_store.h"

#include <string.h>

/* ---- the exchange: a block to each rank, its signal, the wait for all signals ---- */

/* Raises the signal of this call, after a put of `bytes` if any. */
static enum epa_status signal_with(const struct v1_task *task, uint64_t dst, const void *src,
                                   uint64_t bytes)
{
    struct v1_host *h = task->h;

    return algo_signal(&h->a, dst, src, bytes,
                       v1_signal_of(h->l.size, task->mode, task->call, h->a.world.rank), task->call,
                       task->peer);
}

/* Offset of the first row of this rank's block in the slots of a receiver. */
static uint64_t slot_of(const struct v1_host *h, uint64_t row_bytes)
{
    return (uint64_t)h->a.world.rank * h->l.max_m * row_bytes;
}

/* Copies rows `begin` to `end` of the block from the quantised tokens to the receiver's slots, or
 * to the source buffer of puts. */
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
        if (status == EPA_OK && far) /* frees room for which peers may wait */
            status = h->a.t->ops->progress(h->a.t);
    }
    return status;
}

/* Sends splits and the signal. For a rank out of reach, the put of scales carries the signal. */
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
    /* Orders the signal after the whole block; the put of the scales orders only the scales. */
    if (status == EPA_OK)
        status = h->a.t->ops->fence(h->a.t, task->peer);
    if (status == EPA_OK)
        status = signal_with(
            task, offset_of(h, &h->l.slot_scales, position(task)) + slot_of(h, h->l.scales_bytes),
            here(h, &h->l.out_scales, 0) + start * h->l.scales_bytes, rows * h->l.scales_bytes);
    return status;
}

/* Stores expert outputs in the region `outputs` of the source. */
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

/* Puts the expert outputs of one expert at a time: they are contiguous at both ranks. */
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
    /* Orders the signal after the block. */
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

/* Sends the blocks to the ranks that pull, or to all other ranks. */
static enum epa_status send_blocks(struct v1_task *task, bool pulling)
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

/* Sends the blocks of a call to all ranks, waits for the blocks of all ranks, and flushes the puts
 * of this rank. */
static enum epa_status exchange_blocks(struct v1_task *task)
{
    struct v1_host *h = task->h;
    enum epa_status status = send_blocks(task, true);

    if (status == EPA_OK)
        status = send_blocks(task, false);
    if (algo_phase(&h->a, status, "wait"))
        status = algo_wait_for_all(&h->a, v1_signal_of(h->l.size, task->mode, task->call, 0),
                                   task->call, task->mode == V1_DISPATCH ? "rows" : "outputs");
    return algo_phase(&h->a, status, "quiet") ? h->a.t->ops->quiet(h->a.t) : status;
}

/* ---- dispatch ---- */

static enum epa_status run_dispatch(struct epa_algorithm *a, struct epa_problem *problem)
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
        status = exchange_blocks(&task);
    if (algo_phase(&h->a, status, "postprocess"))
        status = v1_regroup(&task);
    algo_end(&h->a);
    return status;
}

/* ---- combine ---- */

/* Copies expert outputs from a foreign buffer to y, from which ranks pull and put. */
static void copy_to_y(void *arg, uint32_t worker, uint32_t workers)
{
    const struct v1_task *task = arg;
    const struct v1_host *h = task->h;
    uint64_t bytes = h->l.output_bytes;
    uint32_t begin = algo_share(task->end, worker, workers);
    uint32_t n = algo_share(task->end, worker + 1, workers) - begin;

    if (n != 0) /* y may be NULL if n is 0 */
        memcpy(here(h, &h->l.y, index_of(task)) + begin * bytes,
               (const char *)task->m->y + begin * bytes, n * bytes);
}

/* Finds the base address of expert outputs. A rank that pushes to all ranks reads a foreign buffer
 * in place. */
static enum epa_status provide_outputs(struct v1_task *task)
{
    struct v1_host *h = task->h;
    const struct algo_set *s = &task->set->s;
    uint32_t last = h->l.local - 1;
    bool apart = task->m->y != here(h, &h->l.y, index_of(task));

    task->y = here(h, &h->l.y, index_of(task));
    if (apart && !h->l.pull && h->a.far == 0)
        task->y = task->m->y;
    else if (apart && h->again == NULL) /* a repeated combine finds the copy in y */
        task->end = (uint32_t)s->recv_start[last] + s->recv_count[last];
    return task->end != 0 ? in_parallel(task, copy_to_y) : EPA_OK;
}

static enum epa_status run_combine(struct epa_algorithm *a, struct epa_problem *problem)
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
        status = provide_outputs(&task);
    if (status == EPA_OK)
        status = exchange_blocks(&task);
    if (algo_phase(&h->a, status, "reduce"))
        status = v1_reduce(&task);
    algo_end(&h->a);
    task.set->s.state = ALGO_FREE;
    h->again = task.set;
    return status;
}

/* ---- set-up ---- */

static const struct epa_stage stages[] = {
    {"dispatch", EPA_STAGE_DISPATCH, run_dispatch},
    {"combine", EPA_STAGE_COMBINE, run_combine},
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
