/* One rank of a session: backend, transport, algorithm, then the iterations, then all of it
 * away again. What it measures and why it failed it writes into the session's shared
 * memory, where the parent finds it however the rank ends. */
#include "session/rank.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "epa2a/quant.h"
#include "session/session.h"

static const char *where(const struct rank *r)
{
    uint32_t stage = r->shared->stage;

    if (stage == SESSION_PAIR)
        return "dispatch and combine";
    return stage < r->n_stages ? r->stage[stage].name : "between stages";
}

void session_keep_fact(void *facts, const char *key, const char *value)
{
    struct session_facts *to = facts;
    struct session_fact *fact = &to->fact[to->n];

    if (to->n == SESSION_FACTS)
        return;
    snprintf(fact->key, sizeof(fact->key), "%s", key);
    snprintf(fact->value, sizeof(fact->value), "%s", value);
    to->n++;
}

void rank_describe_device(struct rank *r)
{
    r->shared->device.n = 0;
    if (r->backend->ops->describe != NULL)
        r->backend->ops->describe(r->backend, session_keep_fact, &r->shared->device);
}

/* ---- set-up ---- */

enum epa_status rank_explain_boot(struct rank *r, enum epa_status status, struct epa_error *err)
{
    if (status == EPA_ERR_TIMEOUT)
        r->boot->explain(r->boot, err);
    else if (status != EPA_OK && status != EPA_ERR_ABORTED)
        (void)epa_fail(err, status, "what ranks tell each other in set-up was lost");
    return status;
}

static enum epa_status boot_barrier(struct rank *r, struct epa_error *err)
{
    return rank_explain_boot(r, r->boot->barrier(r->boot), err);
}

static enum epa_status open_transport(struct rank *r, struct epa_error *err)
{
    const struct chosen *chosen = &experiment_of(r)->transport;
    const struct epa_transport_plugin *plugin = (const struct epa_transport_plugin *)chosen->plugin;
    const struct epa_footprint *need = &r->session->footprint;
    uint32_t more = r->session->verb == VERB_BENCH ? PEAK_SIGNALS : 0;

    return plugin->open(
        &(struct epa_transport_params){.boot = r->boot,
                                       .backend = r->backend,
                                       .config = chosen->config,
                                       .heap_bytes = need->heap_bytes,
                                       .signals = need->signals + more,
                                       .between = (const void *)experiment_of(r)->between.plugin},
        &r->transport, err);
}

/* What was written is taken away again: algorithms find the heap as open() left it. */
static enum epa_status clean_transport(struct rank *r, struct epa_error *err)
{
    const struct epa_backend_ops *ops = r->backend->ops;
    struct epa_transport *t = r->transport;
    enum epa_status status = boot_barrier(r, err);

    if (status == EPA_OK)
        status = rank_explain(r, ops->fill(r->backend, t->heap, 0, t->heap_bytes), err);
    if (status == EPA_OK)
        status = rank_sync(r, err);
    if (status != EPA_OK)
        return status;
    status = t->ops->reset(t);
    if (status != EPA_OK && status != EPA_ERR_ABORTED)
        t->ops->explain(t, err);
    return status;
}

/* What the links can do, before anything lives in the heap. */
static enum epa_status measure_peak(struct rank *r, struct epa_error *err)
{
    enum epa_status status;

    if (r->session->verb != VERB_BENCH)
        return EPA_OK;
    status = peak_measure(r->boot, r->backend, r->transport, r->session->footprint.signals,
                          &r->shared->peak, err);
    return status == EPA_OK ? clean_transport(r, err) : status;
}

static enum epa_status create_operation(struct rank *r, struct epa_error *err)
{
    const struct session *s = r->session;
    bool exact = s->experiment->verify.tolerance == TOLERANCE_EXACT;

    return session_operation(s)->create(
        &(struct op_params){.x = s->experiment,
                            .world = &r->boot->world,
                            .footprint = &s->footprint,
                            .source = s->source,
                            .backend = r->backend,
                            .slots = session_slots(s),
                            .hard_values = s->verb == VERB_VERIFY && exact},
        &r->op, err);
}

static enum epa_status create_algorithm(struct rank *r, struct epa_error *err)
{
    const struct experiment *x = experiment_of(r);
    struct epa_problem problem = operation_problem(x);
    const struct epa_algorithm_plugin *plugin =
        (const struct epa_algorithm_plugin *)x->algorithm.plugin;

    if (r->op->operation->weights != NULL)
        r->op->operation->weights(r->op, &problem);
    return plugin->create(
        &(struct epa_algorithm_params){.problem = &problem,
                                       .world = r->boot->world,
                                       .transport = r->transport,
                                       .backend = r->backend,
                                       .config = x->algorithm.config,
                                       .transport_flags = experiment_transport_flags(x),
                                       .timeout_ns = x->timeout_ns,
                                       .trace = r->trace,
                                       .observer = r->boot->observer},
        &r->algorithm, err);
}

/* Whether the stages are the phases of the operation, or one that is WHOLE, any of them
 * perhaps in two halves: how many make up the first; 0: they are something else. */
static uint32_t count_first_stages(const struct rank *r)
{
    const struct operation *op = session_operation(r->session);
    uint32_t at = 0, first = 0, n = r->n_stages;
    bool whole = n > 0 && last_kind(r) == EPA_STAGE_WHOLE;

    for (uint32_t i = 0; i < (whole ? 1 : op->n_phases); i++) {
        at += at < n && is_kind(r, at, EPA_STAGE_SEND);
        if (at >= n || !is_kind(r, at, whole ? EPA_STAGE_WHOLE : op->phase[i].kind))
            return 0;
        at++;
        first = i == 0 ? at : first;
        at += at < n && is_kind(r, at, EPA_STAGE_EXPERTS);
    }
    return at == n ? first : 0;
}

/* Of those that the operation has. */
static bool has_kind(const struct operation *op, enum epa_stage_kind kind)
{
    bool found = kind == EPA_STAGE_SEND || kind == EPA_STAGE_WHOLE;

    for (uint32_t i = 0; i < op->n_phases; i++)
        found = found || op->phase[i].kind == kind;
    return found;
}

/* The algorithm's, and one for the experts after each dispatch where those are timed. Returns how
 * many that is; those past SESSION_STAGES are left out. */
static uint32_t list_stages(struct rank *r)
{
    const struct operation *op = session_operation(r->session);
    const struct epa_algorithm *a = r->algorithm;
    bool timed = op->between_is_timed != NULL &&
                 op->between_is_timed(experiment_of(r), &r->session->footprint);
    uint32_t n = 0;

    for (uint32_t i = 0; i < a->n_stages; i++) {
        if (n < SESSION_STAGES)
            r->stage[n] = a->stages[i];
        n++;
        if (!timed || a->stages[i].kind != EPA_STAGE_DISPATCH)
            continue;
        if (n < SESSION_STAGES)
            r->stage[n] = (struct epa_stage){.name = op->between_name, .kind = EPA_STAGE_EXPERTS};
        n++;
    }
    r->n_stages = n < SESSION_STAGES ? n : SESSION_STAGES;
    return n;
}

static enum epa_status check_stages(struct rank *r, struct epa_error *err)
{
    const struct epa_algorithm *a = r->algorithm;
    const char *name = experiment_of(r)->algorithm.plugin->name;
    uint32_t n = list_stages(r);

    if (n > SESSION_STAGES)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "%s has %u stages; %d are as many as can be",
                        name, n, SESSION_STAGES);
    for (uint32_t i = 0; i < a->n_stages; i++)
        if (!has_kind(session_operation(r->session), a->stages[i].kind))
            return epa_fail(err, EPA_ERR_UNSUPPORTED,
                            "stage '%s' of %s is of a kind that %s does not have",
                            a->stages[i].name, name, session_operation(r->session)->name);
    r->first_stages = count_first_stages(r);
    if (r->session->verb == VERB_VERIFY && r->first_stages == 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "verify needs a dispatch and a combine, or one stage that is both, "
                        "which is not what %s has",
                        name);
    return EPA_OK;
}

/* What bench and run take their times with. */
static enum epa_status choose_clock(struct rank *r, struct epa_error *err)
{
    const struct bench_options *o = &experiment_of(r)->bench;
    const struct experiment *x = experiment_of(r);
    bool captures = r->backend->ops->capture_begin != NULL;
    bool bench = r->session->verb == VERB_BENCH;

    r->clock = r->backend->memory == EPA_MEMORY_HOST ? CLOCK_HOST : CLOCK_EVENTS;
    if (!bench)
        return EPA_OK;
    if (o->cache == CACHE_COLD && r->backend->ops->flush_cache == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "bench.cache: cold: backend '%s' cannot flush a cache",
                        x->backend.plugin->name);
    if (o->clock == CLOCK_END_TO_END)
        r->clock = CLOCK_END_TO_END;
    if (o->clock == CLOCK_GRAPH && !captures)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "bench.clock: backend '%s' has no graphs; set events",
                        x->backend.plugin->name);
    /* Experts of the host follow the lists of a dispatch, which a graph has not made yet. */
    for (uint32_t i = 0; i < r->n_stages; i++)
        if (is_kind(r, i, EPA_STAGE_EXPERTS) && r->backend->ops->experts_create == NULL)
            captures = false;
    if (o->clock == CLOCK_GRAPH && !captures && r->backend->ops->capture_begin != NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "bench.clock: backend '%s' leaves real experts to the host, which no graph "
                        "can hold; set events",
                        x->backend.plugin->name);
    if (o->clock == CLOCK_GRAPH && r->first_stages == 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "bench.clock: graph needs a dispatch and a combine, or one stage "
                        "that is both, which is not what %s has; set events",
                        x->algorithm.plugin->name);
    if (o->clock == CLOCK_GRAPH || (o->clock == CLOCK_AUTO && captures && r->first_stages != 0))
        r->clock = CLOCK_GRAPH;
    return EPA_OK;
}

/* Said once in each memory that ranks share: the stages that the algorithm chose, and the
 * instruction set. Ranks that were started one by one share none. */
static void describe_stages(const struct rank *r)
{
    struct session_notes *notes = r->session->notes;

    if (r->boot->world.rank != 0 && r->session->process_id.size <= 1)
        return;
    if (r->op->operation->between_by != NULL)
        r->op->operation->between_by(r->op, notes->between_by, sizeof(notes->between_by));
    snprintf(notes->isa, sizeof(notes->isa), "%s", epa_kernels_get(EPA_BF16, NULL)->isa);
    for (uint32_t i = 0; i < r->n_stages; i++) {
        snprintf(notes->stage[i], sizeof(notes->stage[i]), "%s", r->stage[i].name);
        notes->stage_kind[i] = r->stage[i].kind;
    }
    notes->n_parts = r->algorithm->n_parts;
    for (uint32_t i = 0; i < r->algorithm->n_parts; i++)
        snprintf(notes->part[i], sizeof(notes->part[i]), "%s", r->algorithm->parts[i].name);
    notes->clock = r->session->verb == VERB_VERIFY ? CLOCK_AUTO : r->clock;
    /* Release: who looks on while ranks run reads the rest after it. */
    __atomic_store_n(&notes->n_stages, r->n_stages, __ATOMIC_RELEASE);
}

/* What this rank can compute, while all ranks do so. */
static enum epa_status measure_computing(struct rank *r, struct epa_error *err)
{
    const struct operation *op = r->op->operation;
    enum epa_status status;

    if (r->session->verb != VERB_BENCH || op->measure == NULL)
        return EPA_OK;
    status = boot_barrier(r, err);
    return status == EPA_OK ? op->measure(r->op, &r->shared->peaks, err) : status;
}

static enum epa_status open_all(struct rank *r, struct epa_error *err)
{
    const struct chosen *chosen = &experiment_of(r)->backend;
    const struct epa_backend_plugin *backend = (const struct epa_backend_plugin *)chosen->plugin;
    enum epa_status status = backend->open(chosen->config, r->boot, &r->backend, err);

    if (status == EPA_OK)
        status = preflight_device(r->session, r->backend->free_bytes, err);
    if (status == EPA_OK)
        status = open_transport(r, err);
    if (status == EPA_OK && r->transport->ops->describe != NULL)
        r->transport->ops->describe(r->transport, session_keep_fact, &r->shared->transport);
    if (status == EPA_OK)
        status = measure_peak(r, err);
    rank_trace_begin(r);
    if (status == EPA_OK) /* its weights are there before the algorithm */
        status = create_operation(r, err);
    if (status == EPA_OK)
        status = measure_computing(r, err);
    if (status == EPA_OK)
        status = create_algorithm(r, err);
    return status;
}

static enum epa_status set_up(struct rank *r, struct epa_error *err)
{
    enum epa_status status = open_all(r, err);

    if (status == EPA_OK)
        status = check_stages(r, err);
    if (status == EPA_OK)
        status = choose_clock(r, err);
    if (status == EPA_OK)
        status = rank_expect_check(r, err);
    if (status == EPA_OK)
        status = rank_fault_check(r, err);
    if (status == EPA_OK)
        describe_stages(r);
    if (status == EPA_OK)
        status = rank_explain_boot(r, rank_trace_ready(r), err);
    /* Nobody starts before all are there; those that wait here are notified if one fails. */
    if (status == EPA_OK)
        status = boot_barrier(r, err);
    return status;
}

/* Kernels that wait for peers are told to leave only by the backend's sync(), and what
 * frees or closes below would wait for them in the driver, without a limit. After a failure
 * alone: else nothing is queued any more. */
static void settle(struct rank *r)
{
    if (r->backend != NULL)
        (void)r->backend->ops->sync(r->backend); /* why it failed has been recorded */
}

static void tear_down(struct rank *r)
{
    rank_graphs_destroy(r);
    rank_stop_destroy(r);
    if (r->algorithm != NULL)
        r->algorithm->destroy(r->algorithm);
    r->algorithm = NULL;
    if (r->op != NULL) /* whose weights the algorithm may use */
        r->op->operation->destroy(r->op);
    if (r->transport != NULL)
        r->transport->ops->close(r->transport);
    if (r->backend != NULL)
        r->backend->ops->close(r->backend);
}

/* ---- the rank ---- */

/* Ranks of several hosts have no other clock in common. */
static uint64_t realtime_ns(void)
{
    struct timespec now = {0};

    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void record_failure(struct rank *r, bool set_up_done, enum epa_status status,
                           const struct epa_error *err)
{
    struct session_rank *to = r->shared;
    const char *stage = where(r);
    size_t n = strlen(stage);
    char me[32], at[64] = "";

    snprintf(me, sizeof(me), "rank %u, ", r->boot->world.rank);
    if (strncmp(err->text, stage, n) == 0 && strchr("/,:", err->text[n]) != NULL)
        stage = ""; /* an algorithm says "dispatch/wait: ..." */
    snprintf(at, sizeof(at), "iteration %llu, ", (unsigned long long)to->iteration);
    if (strncmp(err->text, me, strlen(me)) == 0) /* a check, which says of which iteration */
        snprintf(to->text, sizeof(to->text), "%s", err->text);
    else if (!set_up_done)
        snprintf(to->text, sizeof(to->text), "rank %u: %s", r->boot->world.rank, err->text);
    else
        snprintf(to->text, sizeof(to->text), "%s%s%s%s%s", me, at, stage,
                 stage[0] != '\0' ? ": " : "", err->text);
    to->failed_ns = realtime_ns();
    /* Release: the text is there before the status that sends the parent to read it. */
    __atomic_store_n(&to->status, status, __ATOMIC_RELEASE);
    r->boot->abort(r->boot);
}

static void describe_rank(struct rank *r)
{
    const struct epa_world *w = &r->boot->world;

    if (gethostname(r->shared->host, sizeof(r->shared->host) - 1) != 0)
        r->shared->host[0] = '\0';
    r->shared->node = w->node != NULL ? w->node[w->rank] : 0;
    r->shared->local_size = w->local_size;
    r->shared->local_cores = w->local_cores;
    r->shared->pid = (int32_t)getpid();
    r->shared->core = w->cores > 0 ? w->core[0] : -1;
}

static enum epa_status work(struct rank *r, struct epa_error *err)
{
    enum epa_status status;

    switch (r->session->verb) {
    case VERB_BENCH:
        status = rank_stop_create(r, err);
        return status != EPA_OK              ? status
               : r->clock == CLOCK_GRAPH     ? rank_bench_graph(r, err)
               : session_is_open(r->session) ? rank_bench_open(r, err)
                                             : rank_bench(r, err);
    case VERB_RUN:
        return rank_run(r, err);
    case VERB_VERIFY:
        break;
    }
    return rank_verify(r, err);
}

enum epa_status rank_main(struct epa_bootstrap *boot, void *session)
{
    struct rank r = {
        .session = session, .shared = session_rank(session, boot->world.rank), .boot = boot};
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status;
    bool set_up_done;

    describe_rank(&r);
    rank_at(&r, 0, SESSION_ELSEWHERE);
    rank_waits_begin(&r);
    status = set_up(&r, &err);
    set_up_done = status == EPA_OK;
    if (status == EPA_OK)
        status = work(&r, &err);
    /* What is still held back reaches those that wait for it, and nobody takes its memory
     * away while a peer may read it. */
    if (status == EPA_OK)
        status = rank_barrier(&r, &err);
    if (status == EPA_OK)
        status = rank_explain_boot(&r, rank_trace_end(&r), &err);
    if (status == EPA_OK)
        status = boot_barrier(&r, &err);
    if (status != EPA_OK) {
        record_failure(&r, set_up_done, status, &err);
        settle(&r);
    }
    tear_down(&r);
    rank_waits_end(&r);
    __atomic_store_n(&r.shared->finished, 1, __ATOMIC_RELEASE);
    return status;
}
