/* fused on hosts: the protocol, flags and puts, queues of tasks, set-up.
 *
 * A call is one queue of tasks that workers take: send rows, build the index, GEMM tiles, combine.
 * Before the queue, the rank computes the routes of its rows and sends each rank a header with the
 * experts and weights of every row to that rank. Rows follow, to a fixed part of the receiver's
 * heap (recv_layout: padded) or, after all headers have arrived, behind the rows of lower sources
 * (packed). The headers tell the receiver the rows of each expert. Entries refer to rows, so a
 * token crosses once for all experts of a rank (dedup). The rank of the experts adds up the outputs
 * of a row and returns the sum to the source, whose combine tasks add up the sums of the ranks.
 *
 * Flags. The header of a source, its rows by chunk or expert, and each returning row (or each part
 * of its columns) have a flag in the heap of the waiting rank: the epoch of the call. A rank that
 * stores the data directly sets the flag by a release after the data. If stores do not reach the
 * receiver, worker 0 puts the data with a signal, and the receiver's worker 0 sets the flag after
 * it has seen the signal. Tasks therefore wait for flags only, and only worker 0 calls the
 * transport. Other workers add their puts to a list. Worker 0 processes list and signals between
 * tiles, while it waits, and after its last task until all workers are done.
 *
 * No task waits for a later task. Tasks are taken in the order of queues. A task waits for flags of
 * other ranks (rows: set by their dispatch tasks, which wait for headers only; outputs: set by
 * their GEMM tasks), or for earlier tasks: a GEMM waits for the index, for its panel, for the
 * up-projection of its block, and for the earlier block that used its ring slot. So the first
 * unfinished task can always continue, even with one worker; roles leave at least one worker to the
 * GEMMs.
 *
 * Buffers. Calls are numbered 1, 2, ...: call e uses set e % 2 of all regions that peers write. A
 * call ends after the rank has received the headers of all ranks and all awaited rows have
 * returned. Suppose that p has begun call e + 2. Then p has seen the headers of e + 1 of all ranks
 * q, so q has ended call e.
 *   - Headers and rows of e + 2 are written at q after that. They overwrite headers and rows of e,
 *     which q has used.
 *   - Rows that return to q in e + 2 are written after q's header of e + 2.
 *   - Rows that stay here for their source to load (gather) are overwritten by tasks that follow
 *     the header of e + 2 of that source, which has ended call e.
 *   - Flags exist once. A rank sets a flag of e + 1 after it has set all of its flags of e, or
 *     after the header e + 1 of the waiting rank. Waits compare with >=, so a wait misses no flag
 *     and accepts no flag of another call early.
 *   - Puts are complete after the quiet() that ends the call: staging buffers and headers are then
 *     reusable, and two values of one signal cannot arrive in the wrong order.
 *
 * Halves, which bench times alone. MOVING is a call whose GEMM tasks wait and count but do not
 * multiply. MULTIPLYING repeats the GEMM tasks of the previous call on the rows that this call left
 * here: they stay valid until this rank has sent the header of the next call but one. */
#include "fused_host.h"

#include "fused_alloc.h"
#include "fused_dispatch.h"
#include "fused_gemm.h"
#include "fused_progress.h"
#include "fused_state.h"
#include "kernels/kernels.h"

#include <epa2a/wait.h>

/* ---- queues ---- */

static void run_task(struct fused_host *h, uint32_t worker, const struct fused_task *task)
{
    uint64_t begin = epa_trace_now(h->a.trace);

    switch ((enum fused_kind)task->kind) {
    case FUSED_SEND:
        fused_send(h, worker, task->item);
        break;
    case FUSED_INDEX:
        fused_index(h, worker);
        break;
    case FUSED_PACK:
        fused_pack(h, worker, task->item);
        break;
    case FUSED_UP:
        fused_up(h, worker, task->item, task->part);
        break;
    case FUSED_DOWN:
        fused_down(h, worker, task->item, task->part);
        break;
    case FUSED_FINISH:
        fused_finish(h, worker, task->item);
        break;
    case FUSED_COMBINE:
        fused_combine(h, worker, task->item, task->part);
        break;
    case FUSED_KINDS:
        break;
    }
    (void)epa_trace_slice(h->a.trace, worker, h->name[task->kind], begin, EPA_TRACE_NOBODY, 0, 0);
}

/* Runs this worker's tasks of a queue. */
static void run_queue(struct fused_host *h, uint32_t worker, enum fused_queue_number number)
{
    struct fused_tasks *q = &h->queue[number];
    const struct fused_wait why = {.what = "counts", .peer = ALGO_NONE, .expert = ALGO_NONE};
    bool deals = h->c.queue == FUSED_STATIC;
    uint32_t i = worker - q->first_worker;

    if (deals && (worker < q->first_worker || i >= q->workers))
        return;
    if (number == FUSED_Q_TAIL || number == FUSED_Q_GEMM) {
        if (!fused_await(h, worker, &h->indexed, h->epoch, &why))
            return;
    }
    if (!deals)
        i = __atomic_fetch_add(&q->next, 1, __ATOMIC_RELAXED);
    while (i < q->n && !algo_stopped(&h->pass)) {
        run_task(h, worker, &q->task[i]);
        i = deals ? i + q->workers : __atomic_fetch_add(&q->next, 1, __ATOMIC_RELAXED);
    }
}

/* Returns true if the worker runs this queue: it has the role, or no worker has it. */
static bool has_role(const struct fused_host *h, enum fused_queue_number q, uint32_t worker)
{
    uint32_t first[] = {0, h->c.dispatch_workers, 0, 0, h->c.dispatch_workers + h->c.tail_workers};
    uint32_t n[] = {h->c.dispatch_workers, h->c.tail_workers, 0, 0, h->c.combine_workers};

    return n[q] == 0 ? q != FUSED_Q_TAIL : worker >= first[q] && worker - first[q] < n[q];
}

static enum epa_status serve_transport(struct algo_host *h)
{
    fused_poll((struct fused_host *)h, 0); /* first member; fused_poll() ends the pass */
    return EPA_OK;
}

static void run_worker(void *arg, uint32_t worker, uint32_t workers)
{
    struct fused_host *h = arg;
    bool combines = has_role(h, FUSED_Q_COMBINE, worker);

    h->held[worker] = ALGO_NONE;
    if (h->launch == 0) {
        if (h->c.combine_workers == 0 || !combines) {
            if (has_role(h, FUSED_Q_DISPATCH, worker))
                run_queue(h, worker, FUSED_Q_DISPATCH);
            if (has_role(h, FUSED_Q_TAIL, worker))
                run_queue(h, worker, FUSED_Q_TAIL);
            run_queue(h, worker, FUSED_Q_GEMM);
        }
    }
    if (h->launch == 1 || h->c.launches == FUSED_ONE) {
        if (h->c.combine_workers == 0 || !combines)
            run_queue(h, worker, FUSED_Q_DOWN);
        if (combines)
            run_queue(h, worker, FUSED_Q_COMBINE);
    }
    (void)algo_tend(&h->a, &h->pass, worker, workers, serve_transport);
}

static void begin_call(struct fused_host *h, struct epa_moe *m)
{
    h->m = m;
    m->epoch = h->a.epoch = ++h->epoch;
    h->set = h->epoch % FUSED_BUFFERS;
    h->requests = h->issued = 0;
    h->pass = (struct algo_pass){0};
    h->downs_done = 0;
    for (uint32_t q = 0; q < FUSED_QUEUES; q++)
        h->queue[q].n = h->queue[q].next = 0;
    for (uint32_t i = 0; i * FUSED_COMBINE_TOKENS < m->tokens; i++) {
        for (uint32_t part = 0; part < h->l.out_parts; part++)
            fused_add_task(h, FUSED_Q_COMBINE, FUSED_COMBINE, i, part);
    }
    fused_route(h);
    for (uint32_t r = 0; r < h->l.size; r++) {
        uint32_t rows = h->out_start[r + 1] - h->out_start[r];

        h->far[r] = (struct fused_far){.row_units = ALGO_NONE,
                                       .out_chunks = (rows + h->l.chunk - 1) / h->l.chunk};
    }
    fused_poll(h, 0);
}

/* Begins a call that repeats the GEMMs of the previous call. */
static void begin_again(struct fused_host *h, struct epa_moe *m)
{
    h->m = m;
    h->requests = h->issued = 0;
    h->pass = (struct algo_pass){0};
    for (uint32_t q = 0; q < FUSED_QUEUES; q++)
        h->queue[q].n = h->queue[q].next = 0;
    fused_list_gemms(h);
}

static enum epa_status run_call(struct epa_algorithm *a, struct epa_problem *problem,
                                enum fused_half half)
{
    struct fused_host *h = (struct fused_host *)a; /* its base is the first member */
    uint32_t launches = h->c.launches == FUSED_TWO ? 2 : 1;
    enum epa_status status = EPA_OK;

    algo_begin(&h->a, "layer", "route");
    h->half = half;
    if (half == FUSED_MULTIPLYING)
        begin_again(h, &problem->u.moe);
    else
        begin_call(h, &problem->u.moe);
    for (h->launch = 0; h->launch < launches; h->launch++) {
        if (!algo_phase(&h->a, status, h->launch == 0 ? "tasks" : "tasks_down"))
            break;
        h->pass.done = 0;
        status = algo_parallel(&h->a, run_worker, h);
        status = status == EPA_OK ? h->pass.status : status;
    }
    if (algo_phase(&h->a, status, "quiet"))
        status = fused_complete_puts(h);
    algo_end(&h->a);
    return status;
}

static enum epa_status run_layer(struct epa_algorithm *a, struct epa_problem *problem)
{
    return run_call(a, problem, FUSED_BOTH);
}

static enum epa_status run_moving(struct epa_algorithm *a, struct epa_problem *problem)
{
    return run_call(a, problem, FUSED_MOVING);
}

static enum epa_status run_multiplying(struct epa_algorithm *a, struct epa_problem *problem)
{
    return run_call(a, problem, FUSED_MULTIPLYING);
}

static const struct epa_stage stages[] = {
    {.name = "layer", .kind = EPA_STAGE_WHOLE, .run = run_layer},
};

static const struct epa_stage halves[EPA_PARTS] = {
    {.name = "dispatch and combine", .kind = EPA_STAGE_WHOLE, .run = run_moving},
    {.name = "gemms", .kind = EPA_STAGE_WHOLE, .run = run_multiplying},
};

/* ---- set-up ---- */

static void destroy_fused_host(struct epa_algorithm *a)
{
    struct fused_host *h = (struct fused_host *)a;

    if (h == NULL)
        return;
    h->a.backend->ops->free(h->a.backend, h->weights);
    h->a.backend->ops->free(h->a.backend, h->panel);
    h->a.backend->ops->free(h->a.backend, h->inter);
    h->a.backend->ops->free(h->a.backend, h->slot);
    algo_destroy(a);
}

static void alloc_lists(struct fused_host *h)
{
    const struct fused_layout *l = &h->l;
    size_t rows = (size_t)l->size * l->source_rows, chunks = (size_t)l->size * l->chunks;
    size_t splits = h->c.column_splits != 0 ? h->c.column_splits : 1;
    size_t parts = l->blocks * splits + (h->c.column_splits != 0 ? 0 : 5 * (size_t)h->a.workers);
    const size_t room[FUSED_QUEUES] = {
        [FUSED_Q_DISPATCH] = chunks + 1,
        [FUSED_Q_TAIL] = l->blocks,
        [FUSED_Q_GEMM] = l->blocks + 2 * parts,
        [FUSED_Q_DOWN] = parts + chunks,
        [FUSED_Q_COMBINE] = (l->max_tokens + FUSED_COMBINE_TOKENS - 1) / FUSED_COMBINE_TOKENS *
                            (size_t)l->out_parts,
    };

    h->place = fused_alloc_list(h, (size_t)l->max_tokens * l->places, sizeof(*h->place));
    h->out_start = fused_alloc_list(h, l->size + 1, sizeof(*h->out_start));
    h->token = fused_alloc_list(h, l->out_rows, sizeof(*h->token));
    h->first_expert = fused_alloc_list(h, l->out_rows, sizeof(*h->first_expert));
    h->key_next = fused_alloc_list(h, l->experts + 1, sizeof(*h->key_next));
    h->expert_left = fused_alloc_list(h, l->experts, sizeof(*h->expert_left));
    h->chunk = fused_alloc_list(h, chunks, sizeof(*h->chunk));
    h->head = fused_alloc_list(h, l->size, sizeof(*h->head));
    h->row_base = fused_alloc_list(h, l->size, sizeof(*h->row_base));
    h->sent_base = fused_alloc_list(h, l->size, sizeof(*h->sent_base));
    h->entry_row = fused_alloc_list(h, l->entries, sizeof(*h->entry_row));
    h->choice_entry =
        fused_alloc_list(h, (size_t)l->size * l->source_choices, sizeof(*h->choice_entry));
    h->left = fused_alloc_list(h, rows * l->out_parts, sizeof(*h->left));
    h->chunk_left = fused_alloc_list(h, chunks * l->out_parts, sizeof(*h->chunk_left));
    h->count = fused_alloc_list(h, l->local, sizeof(*h->count));
    h->entry_start = fused_alloc_list(h, l->local, sizeof(*h->entry_start));
    h->block = fused_alloc_list(h, l->blocks, sizeof(*h->block));
    h->packed = fused_alloc_list(h, l->blocks, sizeof(*h->packed));
    h->ups = fused_alloc_list(h, l->blocks, sizeof(*h->ups));
    h->downs = fused_alloc_list(h, l->blocks, sizeof(*h->downs));
    h->far = fused_alloc_list(h, l->size, sizeof(*h->far));
    if (h->a.far != 0) /* headers, rows, their flags, outputs */
        h->request_room =
            (uint32_t)(l->size * (1 + (1 + (size_t)l->out_parts) * l->chunks + l->units));
    h->request = fused_alloc_list(h, h->request_room, sizeof(*h->request));
    for (uint32_t q = 0; q < FUSED_QUEUES; q++)
        h->queue[q].task = fused_alloc_list(h, room[q], sizeof(*h->queue[q].task));
}

uint64_t fused_host_bytes(const struct fused_layout *l, const struct fused_config *c,
                          uint32_t workers)
{
    /* the bytes that algo_create() allocates */
    uint64_t bytes = sizeof(struct fused_host) + l->experts * sizeof(uint16_t) + 2 * FUSED_LINE;
    struct fused_host h = {.l = *l, .c = *c, .a.workers = workers, .counted = &bytes};

    h.a.far = l->puts ? l->size : 0;
    alloc_lists(&h);
    fused_make_gemms(&h);
    return bytes;
}

/* Assigns queues to workers and counts the workers that share the GEMMs; plan() has requested
 * enough workers. */
static void assign_roles(struct fused_host *h)
{
    uint32_t d = h->c.dispatch_workers, t = h->c.tail_workers, c = h->c.combine_workers;
    uint32_t first = d + t + c, all = h->a.workers;

    for (uint32_t q = 0; q < FUSED_QUEUES; q++) {
        h->queue[q].first_worker = first;
        h->queue[q].workers = all - first;
    }
    if (d != 0) {
        h->queue[FUSED_Q_DISPATCH].first_worker = 0;
        h->queue[FUSED_Q_DISPATCH].workers = d;
    }
    h->queue[FUSED_Q_TAIL].first_worker = d;
    h->queue[FUSED_Q_TAIL].workers = t;
    if (c != 0) {
        h->queue[FUSED_Q_COMBINE].first_worker = d + t;
        h->queue[FUSED_Q_COMBINE].workers = c;
    }
    h->gemm_workers = all - first;
}

static void name_tasks(struct fused_host *h)
{
    static const char *const names[FUSED_KINDS] = {
        [FUSED_SEND] = "send",
        [FUSED_INDEX] = "index",
        [FUSED_PACK] = "tail",
        [FUSED_UP] = "up",
        [FUSED_DOWN] = "down",
        [FUSED_FINISH] = "finish",
        [FUSED_COMBINE] = "combine_tokens",
    };

    for (uint32_t i = 0; i < FUSED_KINDS; i++)
        h->name[i] = epa_trace_name(h->a.trace, names[i]);
    h->wait_name = epa_trace_name(h->a.trace, "wait");
}

enum epa_status fused_host_create(const struct epa_algorithm_params *p,
                                  const struct fused_layout *l, struct epa_algorithm **out,
                                  struct epa_error *err)
{
    const struct algo_setup setup = {
        .name = "fused",
        .stages = stages,
        .n_stages = 1,
        .state_bytes = sizeof(struct fused_host),
        .signals = l->signals,
        .heap_bytes = l->heap_bytes,
        .puts = l->puts,
    };
    struct algo_host *base;
    struct fused_host *h;
    enum epa_status status = algo_create(&setup, p, &base, err);

    if (status != EPA_OK)
        return status;
    h = (struct fused_host *)base; /* its first member */
    base->base.destroy = destroy_fused_host;
    h->l = *l;
    h->epoch = p->epoch;
    h->c = *(const struct fused_config *)p->config;
    h->mlp = p->problem->u.moe.mlp;
    base->base.parts = halves;
    base->base.n_parts = EPA_PARTS;
    h->gemm = epa_gemm_get(l->weights, NULL);
    h->rows = gemm_rows_get();
    assign_roles(h);
    alloc_lists(h);
    fused_make_gemms(h);
    name_tasks(h);
    if (!base->no_memory)
        status = algo_parallel(base, fused_pack_weights, h);
    if (status != EPA_OK) {
        destroy_fused_host(&base->base);
        return epa_fail(err, status, "fused: packing the weights failed");
    }
    return algo_created(base, out, err);
}
