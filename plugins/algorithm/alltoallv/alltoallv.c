/* alltoallv: dispatch and combine as they are written with MPI; the descriptor, the options,
 * the plan, and what both modes set up. */
#include "alltoallv.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const struct av_config defaults = {
    .mode = AV_MESSAGES,
    .dispatch_dtype = AV_FP8,
    .nontemporal = KERNELS_STORE_CACHED,
};

static const struct epa_choice modes[] = {
    {"messages", AV_MESSAGES, "MPI_Alltoallv of packed rows, and of expert outputs"},
    {"shared", AV_SHARED, "loads and stores in a window of MPI_Win_allocate_shared"},
    {0},
};

static const struct epa_choice wires[] = {
    {"fp8", AV_FP8, "e4m3 with a scale for each group, quantised on the way"},
    {"native", AV_DTYPE, "as the tokens are"},
    {0},
};

static const struct epa_choice stores[] = {
    {"off", KERNELS_STORE_CACHED, "ordinary stores, as memcpy has them"},
    {"on", KERNELS_STORE_STREAM, "past the cache"},
    {0},
};

static const struct epa_option options[] = {
    {.name = "mode",
     EPA_CHOICE(struct av_config, mode),
     .choices = modes,
     .help = "how rows and expert outputs get to other ranks"},
    {.name = "dispatch_dtype",
     EPA_CHOICE(struct av_config, dispatch_dtype),
     .choices = wires,
     .help = "what dispatch sends"},
    {.name = "nontemporal",
     EPA_CHOICE(struct av_config, nontemporal),
     .choices = stores,
     .help = "how rows and sums are written"},
    {.name = "capacity",
     EPA_REAL(struct av_config, capacity),
     .least = 0,
     .most = 1024,
     .help =
         "room for received rows as a multiple of the even share; 0 holds the worst case, "
         "and an iteration that needs more than there is ends the run"},
    {0},
};

static enum epa_status check_world(const struct epa_moe *m, const struct epa_world *world,
                                   const struct av_config *c, struct epa_error *err)
{
    if (m->experts == 0 || m->experts % world->size != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "alltoallv needs moe.experts (%u) to be a multiple of ranks (%u)",
                        m->experts, world->size);
    if ((uint64_t)world->size * m->max_tokens * m->topk > INT_MAX)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "alltoallv counts rows in int, as MPI does, which ranks (%u) x "
                        "moe.max_tokens (%u) x moe.topk (%u) exceed",
                        world->size, m->max_tokens, m->topk);
    if (c->mode == AV_SHARED && world->local_size != world->size)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "alltoallv with mode: shared needs all %u ranks on one node, which "
                        "has %u; set mode: messages",
                        world->size, world->local_size);
    return EPA_OK;
}

static enum epa_status check_shape(const struct epa_moe *m, const struct av_config *c,
                                   struct epa_error *err)
{
    if (m->dtype != EPA_BF16 && m->dtype != EPA_F16)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "alltoallv moves tokens of 16 bits; set moe.dtype: bf16 or f16");
    if (m->topk == 0 || m->topk > AV_TOPK)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "alltoallv takes moe.topk from 1 to %d, not %u", AV_TOPK, m->topk);
    if (m->hidden == 0 || m->hidden % 16 != 0 || m->hidden > INT_MAX / 4)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "alltoallv needs moe.hidden (%u) to be a multiple of 16, up to %d",
                        m->hidden, INT_MAX / 4);
    if (c->dispatch_dtype == AV_FP8 && (m->fp8_group_size == 0 || m->hidden % m->fp8_group_size != 0))
        return epa_fail(
            err, EPA_ERR_CONFIG,
            "alltoallv with dispatch_dtype: fp8 needs moe.hidden (%u) to be a multiple of "
            "moe.fp8_group_size (%u); choose another group or dispatch_dtype: native",
            m->hidden, m->fp8_group_size);
    if (c->dispatch_dtype == AV_DTYPE && m->x_dtype == EPA_FP8_E4M3)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "alltoallv with dispatch_dtype: native cannot send input that is quantised "
                        "already; set dispatch_dtype: fp8 or moe.input_dtype: native");
    return EPA_OK;
}

static enum epa_status make_shape(const struct epa_moe *m, const struct epa_world *world,
                                  const struct av_config *c, struct av_shape *out,
                                  struct epa_error *err)
{
    enum epa_status status = check_shape(m, c, err);
    struct av_shape s = {
        .size = world->size,
        .experts = m->experts,
        .max_tokens = m->max_tokens,
        .topk = m->topk,
        .hidden = m->hidden,
        .group = m->fp8_group_size,
        .dtype = (enum epa_dtype)m->dtype,
        .fp8 = c->dispatch_dtype == AV_FP8,
        .shared = c->mode == AV_SHARED,
        .output_bytes = 2 * (size_t)m->hidden,
        .choices = (uint64_t)m->max_tokens * m->topk,
    };

    if (status == EPA_OK)
        status = check_world(m, world, c, err);
    if (status != EPA_OK)
        return status;
    s.local = s.experts / s.size;
    s.scales_at = s.fp8 ? s.hidden : s.output_bytes;
    s.origin_at = s.scales_at + (s.fp8 ? s.hidden / s.group * sizeof(float) : 0);
    s.message_bytes = av_up(s.origin_at + sizeof(struct epa_origin), AV_LINE);
    s.entries = (uint64_t)s.size * s.max_tokens * (s.topk < s.local ? s.topk : s.local);
    if (c->capacity > 0 && (double)s.choices * c->capacity < (double)s.entries)
        s.entries = (uint64_t)((double)s.choices * c->capacity) + 1;
    *out = s;
    return EPA_OK;
}

/* What av_messages_create() and av_shared_create() allocate, but for lists. */
static uint64_t private_bytes(const struct av_shape *s)
{
    uint64_t rows = s->entries * (s->message_bytes + s->output_bytes);

    if (s->shared)
        return rows;
    return rows + s->entries * (s->message_bytes + s->output_bytes) +
           s->choices * (s->message_bytes + s->output_bytes);
}

static enum epa_status plan(const struct epa_problem *problem,
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

static void explain(struct epa_algorithm *base, struct epa_error *err)
{
    struct av *a = av_of(base);

    if (a->last.status == EPA_OK)
        a->t->ops->explain(a->t, err);
    else
        (void)epa_fail(err, a->last.status, "alltoallv: %s", a->last.text);
}

/* Ranks that free together come here together, or not at all: who has failed, or waits in
 * vain for the others, leaves to the end of the process what MPI may still use. */
static void destroy(struct epa_algorithm *base)
{
    struct av *a = av_of(base);

    if (a == NULL)
        return;
    if (!a->failed && av_barrier(a, "MPI_Ibarrier before the end") != EPA_OK)
        a->failed = true;
    if (a->pending)
        return;
    if (a->s.shared)
        av_shared_destroy(a);
    else
        av_messages_destroy(a);
    if (!a->failed)
        MPI_Comm_free(&a->comm);
    free(a->scratch);
    free(a->count);
    free(a->counts);
    free(a->next);
    free(a->place);
    free(a->into);
    free(a->from);
    free(a->recv_count);
    free(a->recv_start);
    free(a);
}

static bool alloc_lists(struct av *a)
{
    const struct av_shape *s = &a->s;

    a->scratch = aligned_alloc(AV_LINE, a->workers * s->message_bytes);
    a->count = calloc(s->experts, sizeof(*a->count));
    a->counts = calloc(s->experts, sizeof(*a->counts));
    a->next = calloc(s->experts, sizeof(*a->next));
    a->place = calloc(s->choices + 1, sizeof(*a->place));
    a->into = calloc(s->size, sizeof(*a->into));
    a->from = calloc(s->size, sizeof(*a->from));
    a->recv_count = calloc(s->local, sizeof(*a->recv_count));
    a->recv_start = calloc(s->local, sizeof(*a->recv_start));
    if (a->scratch != NULL)
        memset(a->scratch, 0, a->workers * s->message_bytes);
    return a->scratch != NULL && a->count != NULL && a->counts != NULL && a->next != NULL &&
           a->place != NULL && a->into != NULL && a->from != NULL &&
           a->recv_count != NULL && a->recv_start != NULL;
}

/* Its own messages cannot meet those of anyone else, and its errors are returned. */
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
        return epa_fail(err, status, "alltoallv: %s", a->last.text);
    return status;
}

static void count_worker(void *arg, uint32_t worker, uint32_t workers)
{
    if (worker == 0)
        *(uint32_t *)arg = workers;
}

static enum epa_status set_up(struct av *a, struct epa_error *err)
{
    enum epa_status status =
        a->backend->ops->parallel(a->backend, count_worker, &a->workers);

    if (status == EPA_OK && !alloc_lists(a))
        status = epa_fail(err, EPA_ERR_NOMEM, "alltoallv: no memory for lists of %llu rows",
                          (unsigned long long)a->s.choices);
    if (status == EPA_OK)
        status = join_world(a, err);
    if (status != EPA_OK)
        return status;
    return a->s.shared ? av_shared_create(a, err) : av_messages_create(a, err);
}

static enum epa_status create(const struct epa_algorithm_params *p,
                              struct epa_algorithm **out, struct epa_error *err)
{
    const struct av_config *c = p->config;
    struct av_shape s;
    enum epa_status status = make_shape(&p->problem->u.moe, &p->world, c, &s, err);
    struct av *a;

    if (status == EPA_OK)
        status = av_check_world(&p->world, err);
    if (status != EPA_OK)
        return status;
    a = malloc(sizeof(*a));
    if (a == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "alltoallv: no memory");
    *a = (struct av){
        .base = {.stages = s.shared ? av_shared_stages : av_messages_stages,
                 .n_stages = 2,
                 .explain = explain,
                 .destroy = destroy},
        .s = s,
        .world = p->world,
        .t = p->transport,
        .backend = p->backend,
        .kernels = kernels_get(s.dtype, NULL),
        .store = (enum kernels_store)c->nontemporal,
        .timeout_ns = p->timeout_ns,
        .trace = p->trace,
        .observer = p->observer,
        .crowded = p->world.local_size > p->world.local_cores,
        .comm = MPI_COMM_NULL,
        .msg = {.message = MPI_DATATYPE_NULL, .output = MPI_DATATYPE_NULL},
        .shm = {.node = MPI_COMM_NULL, .window = MPI_WIN_NULL},
    };
    status = set_up(a, err);
    if (status != EPA_OK) {
        a->failed = true; /* the others do not come here */
        destroy(&a->base);
        return status;
    }
    *out = &a->base;
    return EPA_OK;
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
    .plan = plan,
    .create = create,
};
