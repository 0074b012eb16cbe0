/* alltoallv: dispatch and combine as a user would write them with MPI. This file contains the
 * descriptor, options, plan, blocking calls of MPI, and the code that both modes share. */
#include "alltoallv.h"

#include <limits.h>
#include <string.h>

#include <epa2a/wait.h>

static const struct av_config defaults = {
    .mode = AV_MESSAGES,
    .dispatch_dtype = ALGO_DTYPE_FP8,
    .nontemporal = EPA_STORE_CACHED,
};

static const struct epa_choice modes[] = {
    {"messages", AV_MESSAGES, "MPI_Alltoallv of packed rows, and of expert outputs"},
    {"shared", AV_SHARED, "loads and stores in a window of MPI_Win_allocate_shared"},
    {0},
};

static const struct epa_option options[] = {
    {.name = "mode",
     EPA_CHOICE(struct av_config, mode),
     .choices = modes,
     .help = "mechanism that transfers rows and expert outputs",
     .tune = "*"},
    ALGO_OPTION_DISPATCH_DTYPE(struct av_config),
    ALGO_OPTION_NONTEMPORAL(struct av_config, algo_plain_nontemporal_choices,
                            "stores that write rows and sums"),
    ALGO_OPTION_CAPACITY(struct av_config, "received rows"),
    {0},
};

static enum epa_status check_problem(const struct epa_moe *m, const struct epa_world *world,
                                     const struct av_config *c, struct epa_error *err)
{
    const struct algo_limits limits = {.name = "alltoallv",
                                       .topk = AV_TOPK,
                                       .ranks = UINT16_MAX,
                                       .fp8 = c->dispatch_dtype == ALGO_DTYPE_FP8 ? "dispatch_dtype"
                                                                                  : NULL,
                                       .native = c->dispatch_dtype == ALGO_DTYPE_NATIVE};
    enum epa_status status = algo_check(&limits, m, world, false, err);

    if (status != EPA_OK)
        return status;
    if (m->hidden > INT_MAX / 4)
        return epa_fail_key(err, EPA_ERR_CONFIG, "moe.hidden",
                            "alltoallv takes moe.hidden up to %d, not %u", INT_MAX / 4, m->hidden);
    if ((uint64_t)world->size * m->max_tokens * m->topk > INT_MAX)
        return epa_fail_key(err, EPA_ERR_CONFIG, "moe.max_tokens moe.topk ranks",
                            "alltoallv counts rows in int, as MPI does, which ranks (%u) x "
                            "moe.max_tokens (%u) x moe.topk (%u) exceed",
                            world->size, m->max_tokens, m->topk);
    if (c->mode == AV_SHARED && world->local_size != world->size)
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.mode",
                            "alltoallv with mode: shared needs all %u ranks on one node, which "
                            "has %u; set mode: messages",
                            world->size, world->local_size);
    return EPA_OK;
}

static enum epa_status make_shape(const struct epa_moe *m, const struct epa_world *world,
                                  const struct av_config *c, struct av_shape *out,
                                  struct epa_error *err)
{
    enum epa_status status = check_problem(m, world, c, err);
    struct av_shape s = {
        .size = world->size,
        .experts = m->experts,
        .max_tokens = m->max_tokens,
        .topk = m->topk,
        .hidden = m->hidden,
        .group = m->fp8_group_size,
        .dtype = (enum epa_dtype)m->dtype,
        .fp8 = c->dispatch_dtype == ALGO_DTYPE_FP8,
        .shared = c->mode == AV_SHARED,
        .output_bytes = 2 * (size_t)m->hidden,
        .choices = (uint64_t)m->max_tokens * m->topk,
    };

    if (status != EPA_OK)
        return status;
    s.local = s.experts / s.size;
    s.scales_at = s.fp8 ? s.hidden : s.output_bytes;
    s.origin_at = s.scales_at + (s.fp8 ? s.hidden / s.group * sizeof(float) : 0);
    s.message_bytes = epa_round_up(s.origin_at + sizeof(struct epa_origin), EPA_LINE_BYTES);
    s.entries = (uint64_t)s.size * s.max_tokens * (s.topk < s.local ? s.topk : s.local);
    if (c->capacity > 0 && (double)s.choices * c->capacity < (double)s.entries)
        s.entries = (uint64_t)((double)s.choices * c->capacity) + 1;
    *out = s;
    return EPA_OK;
}

/* Bytes that the create_alltoallv() functions of both modes allocate, without lists. */
static uint64_t private_bytes(const struct av_shape *s)
{
    uint64_t rows = s->entries * (s->message_bytes + s->output_bytes);

    if (s->shared)
        return rows;
    return rows + s->entries * (s->message_bytes + s->output_bytes) +
           s->choices * (s->message_bytes + s->output_bytes);
}

static const char *const stage_names[] = {"dispatch", "combine", NULL};

static enum epa_status plan_alltoallv(const struct epa_problem *problem,
                                      const struct epa_world *world, uint32_t transport_flags,
                                      const void *config, struct epa_footprint *out,
                                      struct epa_error *err)
{
    struct av_shape s;
    enum epa_status status = make_shape(&problem->u.moe, world, config, &s, err);

    (void)transport_flags;
    if (status != EPA_OK)
        return status;
    *out = (struct epa_footprint){
        .private_bytes = private_bytes(&s),
        .stages = stage_names,
        .u.moe.recv_rows = s.entries,
        .u.moe.recv_entries = s.entries,
        .u.moe.layout = EPA_LAYOUT_EXPERT,
        .u.moe.recv_dtype = s.fp8 ? EPA_FP8_E4M3 : s.dtype,
        .u.moe.sum = EPA_SUM_ORDERED,
        .u.moe.output_dtype = s.dtype,
        .in_flight = 1,
        .u.moe.dispatch_row_bytes = s.message_bytes,
        .u.moe.dispatch_token_bytes = s.scales_at,
        .u.moe.combine_row_bytes = s.output_bytes,
        .u.moe.combine_token_bytes = s.output_bytes,
        .u.moe.control_bytes = (uint64_t)(s.shared ? s.experts : s.local) * sizeof(int),
    };
    return EPA_OK;
}

/* ---- calls of MPI that may block ----
 *
 * MPI has no time limits and does not detect failed ranks. Each call is therefore non-blocking, and a
 * loop tests its request, the time limit and `aborted`. */

/* Tests between two checks. A test takes about 100 ns; with more ranks than cores each check yields
 * the core first, which can take milliseconds. */
enum { TESTS = 64 };

double av_timeout_s(const struct av *a)
{
    return (double)a->h.timeout_ns * 1e-9;
}

enum epa_status av_poll(struct av *a, struct av_poll *p)
{
    struct epa_wait_state w = {.kind = EPA_WAIT_CALL,
                               .peer = p->peer,
                               .number = EPA_WAIT_NOBODY,
                               .seen = p->seen,
                               .what = p->what};
    enum epa_status status;

    if (!a->h.crowded && ++p->looks % TESTS != 0)
        return EPA_OK;
    w.waited_ns = p->waited_ns = epa_waited_ns(&p->since_ns, p->waited_ns, a->h.timeout_ns);
    if (a->h.crowded)
        epa_backoff(w.waited_ns, 0);
    status = a->h.t->ops->progress(a->h.t);
    if (status != EPA_OK)
        return status;
    epa_wait_report(a->h.observer, &w, &p->reported_ns);
    return w.waited_ns > a->h.timeout_ns ? EPA_ERR_TIMEOUT : EPA_OK;
}

enum epa_status av_check(struct av *a, const char *call, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;

    if (code == MPI_SUCCESS)
        return EPA_OK;
    MPI_Error_string(code, text, &length);
    return algo_fail(&a->h, EPA_ERR_SYSTEM, "%s: %.250s", call, text);
}

static enum epa_status finish(struct av *a, const char *call, MPI_Request *request)
{
    struct av_poll poll = {.what = call, .peer = EPA_WAIT_NOBODY};
    enum epa_status status = EPA_OK;
    int done = 0, code = MPI_SUCCESS;

    a->pending = true;
    for (;;) {
        code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS || done)
            break;
        status = av_poll(a, &poll);
        if (status == EPA_ERR_TIMEOUT)
            return algo_fail(&a->h, status,
                             "%s did not end within %.3f s on rank %u; MPI does not say for "
                             "whom it waits",
                             call, av_timeout_s(a), a->h.world.rank);
        if (status != EPA_OK)
            return status;
    }
    epa_wait_clear(a->h.observer, poll.reported_ns);
    a->pending = code != MPI_SUCCESS;
    return av_check(a, call, code);
}

enum epa_status av_parallel(struct av *a, const char *name, void (*fn)(void *, uint32_t, uint32_t),
                            void *arg)
{
    struct epa_trace *trace = a->h.trace;
    uint64_t begin = epa_trace_now(trace);
    enum epa_status status = algo_parallel(&a->h, fn, arg);

    (void)epa_trace_slice(trace, 0, epa_trace_name(trace, name), begin, EPA_TRACE_NOBODY, 0, 0);
    return status;
}

enum epa_status av_finish(struct av *a, const char *call, MPI_Request *request)
{
    uint64_t begin = epa_trace_now(a->h.trace);
    enum epa_status status = finish(a, call, request);

    (void)epa_trace_slice(a->h.trace, 0, epa_trace_name(a->h.trace, call), begin, EPA_TRACE_NOBODY,
                          0, 0);
    return status;
}

enum epa_status av_barrier(struct av *a, const char *what)
{
    MPI_Request request = MPI_REQUEST_NULL;
    enum epa_status status = av_check(a, what, MPI_Ibarrier(a->comm, &request));

    return status == EPA_OK ? av_finish(a, what, &request) : status;
}

/* Checks that this process is rank world->rank of an MPI world of the same size and may call MPI. */
static enum epa_status check_mpi(const struct epa_world *world, struct epa_error *err)
{
    int yes = 0, over = 0, size = 0, rank = 0, threads = 0, first = 0;

    MPI_Initialized(&yes);
    if (yes)
        MPI_Finalized(&over);
    if (!yes || over)
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "launcher.name",
                            "alltoallv needs ranks that mpirun started: run mpirun -n %u "
                            "epa2a ..., with launcher: mpi",
                            world->size);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if ((uint32_t)size != world->size || (uint32_t)rank != world->rank)
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "launcher.name",
                            "alltoallv: this is rank %u of %u, and rank %d of %d in "
                            "MPI_COMM_WORLD; use launcher: mpi, which has ranks as MPI has them",
                            world->rank, world->size, rank, size);
    MPI_Query_thread(&threads);
    MPI_Is_thread_main(&first);
    if (threads < MPI_THREAD_SERIALIZED && !first)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "alltoallv: MPI was set up for the one thread that called MPI_Init, "
                        "and rank %u runs on another",
                        world->rank);
    return EPA_OK;
}

/* ---- stages ----
 *
 * `place` identifies a row: its index at the rank of its expert, or in the message to this rank. The
 * expert output returns to the same index. */

struct task {
    struct av *a;
    const struct epa_moe *m;
};

static enum epa_status count_rows(struct av *a, const struct epa_moe *m)
{
    uint32_t choices = m->tokens * a->s.topk;

    memset(a->count, 0, a->s.experts * sizeof(*a->count));
    for (uint32_t i = 0; i < choices; i++) {
        if (m->expert[i] >= (int32_t)a->s.experts)
            return algo_fail(&a->h, EPA_ERR_CONFIG, "token %u chooses expert %d of %u",
                             i / a->s.topk, m->expert[i], a->s.experts);
        if (m->expert[i] >= 0)
            a->count[m->expert[i]]++;
    }
    return EPA_OK;
}

static void give_places(struct av *a, const struct epa_moe *m)
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

/* Records a failed stage: collective calls may no longer return afterwards. */
static enum epa_status end_stage(struct av *a, enum epa_status status)
{
    a->failed = a->failed || status != EPA_OK;
    return status;
}

static enum epa_status run_dispatch(struct epa_algorithm *base, struct epa_problem *problem)
{
    struct av *a = (struct av *)base;
    struct epa_moe *m = &problem->u.moe;
    const struct algo_set *set = a->h.set[0];
    struct task task = {a, m};
    enum epa_status status;
    const char *recv = NULL;
    char *y = NULL;

    algo_begin(&a->h, "dispatch", "count");
    if (algo_take_set(&a->h) == NULL)
        return end_stage(a, algo_fail(&a->h, EPA_ERR_CONFIG,
                                      "dispatch %llu is open, and there is room for one: combine "
                                      "it first",
                                      (unsigned long long)a->h.epoch));
    status = count_rows(a, m);
    if (status == EPA_OK)
        status = a->way->place(a);
    if (status == EPA_OK) {
        give_places(a, m);
        status = av_parallel(a, "pack", pack, &task);
    }
    if (status == EPA_OK)
        status = a->way->deliver(a, &recv, &y);
    if (status != EPA_OK)
        return end_stage(a, status);
    epa_publish_counts(m, set->epoch, a->s.local, set->recv_count, set->recv_start);
    epa_publish_messages(m, recv, 0, a->s.fp8, a->s.scales_at, a->s.origin_at, a->s.message_bytes);
    m->y_space = y;
    return EPA_OK;
}

static enum epa_status run_combine(struct epa_algorithm *base, struct epa_problem *problem)
{
    struct av *a = (struct av *)base;
    struct epa_moe *m = &problem->u.moe;
    struct task task = {a, m};
    struct algo_set *set;
    enum epa_status status;

    algo_begin(&a->h, "combine", "expert outputs");
    set = algo_set_of(&a->h, m->epoch, ALGO_OPEN, "open");
    if (set == NULL)
        return end_stage(a, EPA_ERR_CONFIG);
    set->state = ALGO_FREE;
    status = a->way->take_back(a, m);
    return end_stage(a, status == EPA_OK ? av_parallel(a, "add_up", add_up, &task) : status);
}

static const struct epa_stage stages[2] = {
    {"dispatch", EPA_STAGE_DISPATCH, run_dispatch},
    {"combine", EPA_STAGE_COMBINE, run_combine},
};

/* ---- set-up ---- */

static void explain_alltoallv(struct epa_algorithm *base, struct epa_error *err)
{
    struct av *a = (struct av *)base;

    if (a->h.last.text[0] != 0)
        algo_explain(base, err);
    else
        a->h.t->ops->explain(a->h.t, err);
}

/* Freeing is collective. After a failure or a time-out the rank keeps memory that MPI may still use
 * until the process ends. */
static void destroy_alltoallv(struct epa_algorithm *base)
{
    struct av *a = (struct av *)base;

    if (a == NULL)
        return;
    if (!a->failed && av_barrier(a, "MPI_Ibarrier before the end") != EPA_OK)
        a->failed = true;
    if (a->pending)
        return;
    a->way->destroy(a);
    if (!a->failed)
        MPI_Comm_free(&a->comm);
    algo_destroy(base);
}

/* Creates a communicator, so that messages of other code cannot match, and lets MPI return
 * errors. */
static enum epa_status join_world(struct av *a, struct epa_error *err)
{
    MPI_Request request = MPI_REQUEST_NULL;
    enum epa_status status = av_check(a, "MPI_Comm_idup of MPI_COMM_WORLD",
                                      MPI_Comm_idup(MPI_COMM_WORLD, &a->comm, &request));

    if (status == EPA_OK)
        status = av_finish(a, "MPI_Comm_idup of MPI_COMM_WORLD", &request);
    if (status == EPA_OK)
        status = av_check(a, "MPI_Comm_set_errhandler",
                          MPI_Comm_set_errhandler(a->comm, MPI_ERRORS_RETURN));
    if (status != EPA_OK && status != EPA_ERR_ABORTED)
        return epa_fail(err, status, "alltoallv: %s", a->h.last.text);
    return status;
}

static enum epa_status create_alltoallv(const struct epa_algorithm_params *p,
                                        struct epa_algorithm **out, struct epa_error *err)
{
    const struct av_config *c = p->config;
    const struct algo_setup setup = {.name = "alltoallv",
                                     .stages = stages,
                                     .n_stages = 2,
                                     .state_bytes = sizeof(struct av),
                                     .set_bytes = sizeof(struct algo_set),
                                     .buffers = 1,
                                     .puts = true};
    struct av_shape s;
    enum epa_status status = make_shape(&p->problem->u.moe, &p->world, c, &s, err);
    struct algo_host *h;
    struct av *a;

    if (status == EPA_OK)
        status = check_mpi(&p->world, err);
    if (status == EPA_OK)
        status = algo_create(&setup, p, &h, err);
    if (status != EPA_OK)
        return status;
    a = (struct av *)h;
    h->base.explain = explain_alltoallv;
    h->base.destroy = destroy_alltoallv;
    h->store = (enum epa_store)c->nontemporal;
    a->s = s;
    a->way = s.shared ? &av_shared : &av_messages;
    a->comm = MPI_COMM_NULL;
    a->msg.message = a->msg.output = MPI_DATATYPE_NULL;
    a->shm.node = MPI_COMM_NULL;
    a->shm.window = MPI_WIN_NULL;
    a->scratch = algo_alloc_scratch(h, s.message_bytes);
    a->count = algo_alloc(h, s.experts, sizeof(*a->count));
    a->counts = algo_alloc(h, s.experts, sizeof(*a->counts));
    a->next = algo_alloc(h, s.experts, sizeof(*a->next));
    a->place = algo_alloc(h, s.choices, sizeof(*a->place));
    a->into = algo_alloc(h, s.size, sizeof(*a->into));
    a->from = algo_alloc(h, s.size, sizeof(*a->from));
    a->failed = true; /* until all ranks reach the end of set-up: some may fail before it */
    if (!h->no_memory)
        status = join_world(a, err);
    if (!h->no_memory && status == EPA_OK)
        status = a->way->create(a, err);
    if (status != EPA_OK) {
        destroy_alltoallv(&h->base);
        return status;
    }
    a->failed = h->no_memory;
    return algo_created(h, out, err);
}

EPA_PLUGIN_EXPORT
const struct epa_algorithm_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_ALGORITHM, struct epa_algorithm_plugin),
               .name = "alltoallv",
               .summary = "the baseline: what is written with MPI and nothing else",
               .options = {options, sizeof(struct av_config), &defaults}},
    .op = EPA_OP_MOE,
    .memory = EPA_MEMORY_HOST,
    .needs_host = EPA_TRANSPORT_HOST,
    .plan = plan_alltoallv,
    .create = create_alltoallv,
};
