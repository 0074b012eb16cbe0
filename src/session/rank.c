/* One rank of a session: backend, transport, algorithm, then the iterations, then all of it
 * away again. What it measures and why it failed it writes into the session's shared memory,
 * where the parent finds it however the rank ends. */
#include "session/session.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "kernels/kernels.h"
#include "moe/op_moe.h"
#include "moe/random.h"

/* Marks of a sample: before and after each stage. */
enum { MARKS_PER_STAGE = 2 };

struct rank {
    const struct session *session;
    struct session_rank *shared;
    struct epa_bootstrap *boot;
    struct epa_backend *backend;
    struct epa_transport *transport;
    struct epa_algorithm *algorithm;
    struct op_moe *op;
};

static const struct experiment *experiment_of(const struct rank *r)
{
    return r->session->experiment;
}

/* Where this rank is, for whoever looks from outside; nothing hangs on its order. */
static void at(struct rank *r, uint64_t iteration, uint32_t stage)
{
    __atomic_store_n(&r->shared->iteration, iteration, __ATOMIC_RELAXED);
    __atomic_store_n(&r->shared->stage, stage, __ATOMIC_RELAXED);
}

static const char *where(const struct rank *r)
{
    uint32_t stage = r->shared->stage;

    return stage < r->algorithm->n_stages ? r->algorithm->stages[stage].name
                                          : "between stages";
}

/* ---- set-up ---- */

static enum epa_status boot_barrier(struct rank *r, struct epa_error *err)
{
    enum epa_status status = r->boot->barrier(r->boot);

    if (status == EPA_ERR_TIMEOUT)
        r->boot->explain(r->boot, err);
    return status;
}

static enum epa_status open_transport(struct rank *r, struct epa_error *err)
{
    const struct chosen *chosen = &experiment_of(r)->transport;
    const struct epa_transport_plugin *plugin =
        (const struct epa_transport_plugin *)chosen->plugin;
    const struct epa_footprint *need = &r->session->footprint;

    return plugin->open(&(struct epa_transport_params){.boot = r->boot,
                                                       .backend = r->backend,
                                                       .config = chosen->config,
                                                       .heap_bytes = need->heap_bytes,
                                                       .signals = need->signals},
                        &r->transport, err);
}

static enum epa_status create_algorithm(struct rank *r, struct epa_error *err)
{
    const struct experiment *x = experiment_of(r);
    struct epa_problem problem = experiment_problem(x);
    const struct epa_algorithm_plugin *plugin =
        (const struct epa_algorithm_plugin *)x->algorithm.plugin;
    const struct epa_transport_plugin *transport =
        (const struct epa_transport_plugin *)x->transport.plugin;

    return plugin->create(
        &(struct epa_algorithm_params){.problem = &problem,
                                       .world = r->boot->world,
                                       .transport = r->transport,
                                       .backend = r->backend,
                                       .config = x->algorithm.config,
                                       .transport_flags = transport->flags,
                                       .timeout_ns = x->timeout_ns},
        &r->algorithm, err);
}

static enum epa_status check_stages(const struct rank *r, struct epa_error *err)
{
    const struct epa_algorithm *a = r->algorithm;
    const char *name = experiment_of(r)->algorithm.plugin->name;

    if (a->n_stages > SESSION_STAGES)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "%s has %u stages; %d are as many as can be", name, a->n_stages,
                        SESSION_STAGES);
    if (r->session->verb == VERB_VERIFY &&
        (a->n_stages != 2 || a->stages[0].kind != EPA_STAGE_DISPATCH ||
         a->stages[1].kind != EPA_STAGE_COMBINE))
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "verify needs a dispatch and a combine, which is not what %s has",
                        name);
    return EPA_OK;
}

/* Said once for all ranks: the stages that the algorithm chose, and the instruction set. */
static void describe_stages(const struct rank *r)
{
    struct session_notes *notes = r->session->notes;

    if (r->boot->world.rank != 0)
        return;
    snprintf(notes->isa, sizeof(notes->isa), "%s", kernels_get(NULL)->isa);
    for (uint32_t i = 0; i < r->algorithm->n_stages; i++) {
        snprintf(notes->stage[i], sizeof(notes->stage[i]), "%s",
                 r->algorithm->stages[i].name);
        notes->stage_kind[i] = r->algorithm->stages[i].kind;
    }
    notes->n_stages = r->algorithm->n_stages;
}

static enum epa_status set_up(struct rank *r, struct epa_error *err)
{
    const struct session *s = r->session;
    const struct epa_backend_plugin *backend =
        (const struct epa_backend_plugin *)s->experiment->backend.plugin;
    enum epa_status status =
        backend->open(s->experiment->backend.config, &r->boot->world, &r->backend, err);

    if (status == EPA_OK)
        status = open_transport(r, err);
    if (status == EPA_OK)
        status = create_algorithm(r, err);
    if (status == EPA_OK)
        status = check_stages(r, err);
    if (status == EPA_OK)
        describe_stages(r);
    if (status == EPA_OK)
        status = op_moe_create(s->experiment, &r->boot->world, &s->footprint, s->routing,
                               r->backend, session_slots(s), &r->op, err);
    if (status == EPA_OK)
        op_moe_hard_values(r->op, s->verb == VERB_VERIFY);
    /* Nobody starts before all are there; those that wait here are told if one fails. */
    if (status == EPA_OK)
        status = boot_barrier(r, err);
    return status;
}

static void tear_down(struct rank *r)
{
    op_moe_destroy(r->op);
    if (r->algorithm != NULL)
        r->algorithm->destroy(r->algorithm);
    if (r->transport != NULL)
        r->transport->ops->close(r->transport);
    if (r->backend != NULL)
        r->backend->ops->close(r->backend);
}

/* ---- stages ---- */

static enum epa_status run_stage(struct rank *r, uint32_t stage,
                                 struct epa_problem *problem, struct epa_error *err)
{
    enum epa_status status = r->algorithm->stages[stage].run(r->algorithm, problem);

    if (status != EPA_OK && status != EPA_ERR_ABORTED)
        r->algorithm->explain(r->algorithm, err);
    return status;
}

static enum epa_status transport_barrier(struct rank *r, struct epa_error *err)
{
    enum epa_status status =
        r->transport->ops->barrier(r->transport, experiment_of(r)->timeout_ns);

    if (status != EPA_OK && status != EPA_ERR_ABORTED)
        r->transport->ops->explain(r->transport, err);
    return status;
}

/* Whether there is to be another iteration. A rank that waits for nobody would not hear of
 * a failure elsewhere, or of the user's wish to stop, in any other way. */
static bool goes_on(const struct rank *r, enum epa_status *status)
{
    if (*status == EPA_OK && epa_aborted(r->boot))
        *status = EPA_ERR_ABORTED;
    return *status == EPA_OK;
}

static enum epa_status backend_says(struct rank *r, enum epa_status status,
                                    struct epa_error *err)
{
    if (status != EPA_OK)
        r->backend->ops->explain(r->backend, err);
    return status;
}

static bool is_dispatch(const struct rank *r, uint32_t stage)
{
    return r->algorithm->stages[stage].kind == EPA_STAGE_DISPATCH;
}

/* ---- run and bench ---- */

/* One iteration with its stages timed, each after a barrier where `apart`. check: compare
 * every element after each stage. */
static enum epa_status timed_iteration(struct rank *r, uint32_t slot, bool apart,
                                       bool check, struct epa_error *err)
{
    const struct epa_backend_ops *ops = r->backend->ops;
    struct epa_problem *problem = op_moe_problem(r->op, slot);
    enum epa_status status = EPA_OK;
    uint64_t *compared = &r->shared->compared, *wrong = &r->shared->wrong;

    for (uint32_t i = 0; i < r->algorithm->n_stages && status == EPA_OK; i++) {
        __atomic_store_n(&r->shared->stage, i, __ATOMIC_RELAXED);
        if (apart)
            status = transport_barrier(r, err);
        if (status == EPA_OK)
            status = backend_says(r, ops->mark(r->backend, MARKS_PER_STAGE * i), err);
        if (status == EPA_OK)
            status = run_stage(r, i, problem, err);
        if (status == EPA_OK)
            status = backend_says(r, ops->mark(r->backend, MARKS_PER_STAGE * i + 1), err);
        if (status == EPA_OK)
            status = backend_says(r, ops->sync(r->backend), err);
        if (status != EPA_OK)
            return status;
        if (apart) /* so that no rank's experts or checks run inside another's stage */
            status = transport_barrier(r, err);
        if (status == EPA_OK && check)
            status = is_dispatch(r, i)
                         ? op_moe_check_dispatch(r->op, slot, compared, wrong, err)
                         : op_moe_check_combine(r->op, slot, compared, wrong, err);
        __atomic_store_n(&r->shared->stage, SESSION_STAGES, __ATOMIC_RELAXED);
        if (status == EPA_OK && is_dispatch(r, i))
            status = op_moe_experts(r->op, slot, err);
    }
    if (status == EPA_OK && check)
        r->shared->checked++;
    return status;
}

/* Keeps the times of the iteration that just ended. Of warm-up none are kept, but the total
 * of the very first. */
static enum epa_status keep_times(struct rank *r, uint64_t iteration, uint64_t warmup,
                                  struct epa_error *err)
{
    const struct session *s = r->session;
    uint32_t ranks = s->experiment->ranks, me = r->boot->world.rank;
    double total = 0;

    for (uint32_t i = 0; i < r->algorithm->n_stages; i++) {
        double ns = 0;
        enum epa_status status = r->backend->ops->elapsed(r->backend, MARKS_PER_STAGE * i,
                                                          MARKS_PER_STAGE * i + 1, &ns);

        if (status != EPA_OK)
            return backend_says(r, status, err);
        total += ns;
        if (iteration >= warmup)
            s->rank_ns[((size_t)i * ranks + me) * s->iterations + (iteration - warmup)] =
                ns;
    }
    if (iteration == 0)
        s->first_ns[me] = total;
    /* Release: pairs with the parent's read after it has reaped this rank or given it up. */
    if (iteration >= warmup)
        __atomic_store_n(&r->shared->samples, iteration - warmup + 1, __ATOMIC_RELEASE);
    return EPA_OK;
}

static enum epa_status make_inputs(struct rank *r, uint32_t slot, uint64_t iteration,
                                   struct epa_error *err)
{
    if (op_moe_inputs(r->op, slot, iteration) == NULL)
        return epa_fail(err, EPA_ERR_SYSTEM,
                        "the inputs of iteration %llu cannot be written",
                        (unsigned long long)iteration);
    op_moe_traffic(r->op, slot, &r->shared->traffic);
    r->shared->traffic_n++;
    if (r->boot->world.rank == 0)
        routing_stats_add(r->session->routing_stats, experiment_of(r), r->session->routing,
                          iteration);
    return EPA_OK;
}

static enum epa_status bench(struct rank *r, struct epa_error *err)
{
    const struct session *s = r->session;
    const struct bench_options *o = &s->experiment->bench;
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < o->inputs && status == EPA_OK; i++)
        status = make_inputs(r, i, i, err);
    for (uint64_t i = 0; i < (uint64_t)s->warmup + s->iterations && goes_on(r, &status);
         i++) {
        at(r, i, SESSION_STAGES);
        status = timed_iteration(r, (uint32_t)(i % o->inputs),
                                 o->cadence == CADENCE_ISOLATED, false, err);
        if (status == EPA_OK)
            status = keep_times(r, i, s->warmup, err);
    }
    return status;
}

static enum epa_status run(struct rank *r, struct epa_error *err)
{
    const struct session *s = r->session;
    enum epa_status status = EPA_OK;

    for (uint64_t i = 0; i < s->iterations && goes_on(r, &status); i++) {
        at(r, i, SESSION_STAGES);
        status = make_inputs(r, 0, i, err);
        if (status == EPA_OK)
            status = timed_iteration(r, 0, true, i == 0 || i + 1 == s->iterations, err);
        if (status == EPA_OK)
            status = keep_times(r, i, 0, err);
    }
    return status;
}

/* ---- verify ---- */

/* Late and early ranks, another set before each stage of each iteration. */
static void straggle(const struct rank *r, uint64_t iteration, uint32_t stage)
{
    const struct experiment *x = experiment_of(r);
    uint64_t draw;

    if (x->verify.straggle_ns == 0)
        return;
    draw = random_at(random_key(x->seed, RANDOM_STRAGGLE, r->boot->world.rank, iteration),
                     stage);
    if (draw % 4 == 0) {
        uint64_t ns = (draw >> 8) % x->verify.straggle_ns;
        struct timespec ts = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};

        nanosleep(&ts, NULL);
    }
}

static bool checks(const struct session *s, uint64_t iteration)
{
    return iteration % s->experiment->verify.check_every == 0 ||
           iteration + 1 == s->iterations;
}

static enum epa_status verify_dispatch(struct rank *r, uint64_t iteration, uint32_t slot,
                                       struct epa_error *err)
{
    enum epa_status status;

    at(r, iteration, SESSION_STAGES);
    status = make_inputs(r, slot, iteration, err);
    if (status != EPA_OK)
        return status;
    at(r, iteration, 0);
    straggle(r, iteration, 0);
    status = run_stage(r, 0, op_moe_problem(r->op, slot), err);
    if (status == EPA_OK)
        at(r, iteration, SESSION_STAGES);
    return status;
}

static enum epa_status verify_rest(struct rank *r, uint64_t iteration, uint32_t slot,
                                   struct epa_error *err)
{
    bool check = checks(r->session, iteration);
    uint64_t *compared = &r->shared->compared, *wrong = &r->shared->wrong;
    enum epa_status status = EPA_OK;

    if (check)
        status = op_moe_check_dispatch(r->op, slot, compared, wrong, err);
    if (status == EPA_OK)
        status = op_moe_experts(r->op, slot, err);
    if (status == EPA_OK) {
        at(r, iteration, 1);
        straggle(r, iteration, 1);
        status = run_stage(r, 1, op_moe_problem(r->op, slot), err);
    }
    if (status == EPA_OK)
        at(r, iteration, SESSION_STAGES);
    if (status == EPA_OK && check) {
        status = op_moe_check_combine(r->op, slot, compared, wrong, err);
        r->shared->checked++;
    }
    if (status == EPA_OK)
        __atomic_store_n(&r->shared->samples, iteration + 1, __ATOMIC_RELEASE);
    return status;
}

/* Inputs change with every iteration, and no barrier stands between them. Pipelined: what
 * dispatch i delivered is looked at, and answered, after dispatch i + 1. */
static enum epa_status verify(struct rank *r, struct epa_error *err)
{
    const struct session *s = r->session;
    uint32_t ahead = s->experiment->verify.order == ORDER_PIPELINED ? 1 : 0;
    enum epa_status status = EPA_OK;

    for (uint64_t i = 0; i < (uint64_t)s->iterations + ahead && goes_on(r, &status); i++) {
        if (i < s->iterations)
            status = verify_dispatch(r, i, (uint32_t)(i % (ahead + 1)), err);
        if (status == EPA_OK && i >= ahead)
            status = verify_rest(r, i - ahead, (uint32_t)((i - ahead) % (ahead + 1)), err);
    }
    return status;
}

/* ---- the rank ---- */

static void record_failure(struct rank *r, bool set_up_done, enum epa_status status,
                           const struct epa_error *err)
{
    struct session_rank *to = r->shared;

    if (!set_up_done || status == EPA_ERR_MISMATCH) /* which says itself where it is */
        snprintf(to->text, sizeof(to->text), "rank %u: %s", r->boot->world.rank, err->text);
    else
        snprintf(to->text, sizeof(to->text), "rank %u: %s, iteration %llu: %s",
                 r->boot->world.rank, where(r), (unsigned long long)to->iteration,
                 err->text);
    to->failed_ns = clock_ns();
    /* Release: the text is there before the status that sends the parent to read it. */
    __atomic_store_n(&to->status, status, __ATOMIC_RELEASE);
    r->boot->abort(r->boot);
}

static void describe_rank(struct rank *r)
{
    const struct epa_world *w = &r->boot->world;

    r->shared->pid = (int32_t)getpid();
    r->shared->core = w->cores > 0 ? w->core[0] : -1;
}

enum epa_status rank_main(struct epa_bootstrap *boot, void *session)
{
    struct rank r = {.session = session,
                     .shared = &((struct session *)session)->rank[boot->world.rank],
                     .boot = boot};
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status;
    bool set_up_done;

    describe_rank(&r);
    at(&r, 0, SESSION_STAGES);
    status = set_up(&r, &err);
    set_up_done = status == EPA_OK;
    if (status == EPA_OK && r.session->verb == VERB_BENCH)
        status = bench(&r, &err);
    else if (status == EPA_OK && r.session->verb == VERB_RUN)
        status = run(&r, &err);
    else if (status == EPA_OK)
        status = verify(&r, &err);
    /* What is still held back reaches those that wait for it, and nobody takes its memory
     * away while a peer may read it. */
    if (status == EPA_OK)
        status = transport_barrier(&r, &err);
    if (status == EPA_OK)
        status = boot_barrier(&r, &err);
    if (status != EPA_OK)
        record_failure(&r, set_up_done, status, &err);
    tear_down(&r);
    __atomic_store_n(&r.shared->finished, 1, __ATOMIC_RELEASE);
    return status;
}
