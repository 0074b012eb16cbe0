/* Operation and algorithm of a rank: creation over the open transport, checks of the stages, and
 * destruction. */
#include "session/rank_create.h"

#include "caller/caller_shape.h"
#include "experiment/operation.h"
#include "config/origin.h"
#include "session/rank_graph.h"
#include "session/rank_guard.h"
#include "session/rank_stages.h"
#include "session/rank_status.h"

void rank_clear_heap(struct rank *r)
{
    if (rank_good(r))
        r->status = ep_clear_heap(&r->ep, &r->err);
}

static struct op_oracle oracle_of(const struct session *s)
{
    const struct verify_options *v = &s->experiment->verify;

    return (struct op_oracle){
        .hard_values = s->verb == VERB_VERIFY && v->tolerance == TOLERANCE_EXACT,
        .signed_weights = origin_find(s->experiment, "routing.weights") == NULL,
        .nonfinite = v->nonfinite,
        .allclose = v->tolerance == TOLERANCE_ALLCLOSE,
        .rtol = v->rtol,
        .atol = v->atol,
    };
}

/* Returns this rank's share of the cores of its host. */
static struct crew crew_of(const struct session *s, const struct epa_world *world)
{
    uint32_t share = world->local_size > 0 ? world->local_cores / world->local_size : 1;

    return (struct crew){.core = s->cores.order,
                         .cores = s->cores.cores,
                         .threads = share < s->cores.cores ? share : s->cores.cores};
}

/* Creates the operation with its weights, which the algorithm needs. All ranks measure the peak of
 * computing at the same time. */
static void create_operation(struct rank *r, const struct epa_footprint *footprint)
{
    const struct session *s = r->session;

    if (!rank_good(r))
        return;
    r->status = op_create(session_operation(s),
                          &(struct op_params){.problem = &s->experiment->problem,
                                              .world = &r->comm.boot->world,
                                              .footprint = footprint,
                                              .source = s->source,
                                              .backend = r->comm.backend,
                                              .backend_name = s->experiment->backend.plugin->name,
                                              .slots = session_slots(s),
                                              .crew = crew_of(s, &r->comm.boot->world),
                                              .oracle = oracle_of(s)},
                          &r->op, &r->err);
    if (!rank_good(r) || !session_has_peaks(s) || r->op->operation->measure == NULL)
        return;
    rank_boot_barrier(r);
    if (rank_good(r))
        r->status = r->op->operation->measure(r->op, &r->shared->peaks, &r->err);
}

/* Opens the comm of the public interface, and raises the maximum of rows. */
static void open_caller(struct rank *r, struct epa_footprint *footprint)
{
    if (!rank_good(r) || experiment_of(r)->api == API_NONE)
        return;
    r->status =
        caller_open(&(struct caller_params){.experiment = experiment_of(r),
                                            .boot = r->comm.boot,
                                            .backend = r->comm.backend,
                                            .library_memory = r->session->verb == VERB_BENCH},
                    &r->caller, &r->err);
    if (rank_good(r))
        r->status = caller_raise_rows(r->caller, footprint, &r->err);
}

/* Creates the object of the public interface. In bench it takes turns with the algorithm. */
static void create_object(struct rank *r)
{
    if (!rank_good(r) || r->caller == NULL)
        return;
    r->direct = r->ep.algorithm;
    r->ep.algorithm = NULL;
    r->ep.footprint = r->session->footprint;
    r->status = caller_create(r->caller, r->op, &r->ep.algorithm, &r->err);
}

static void create_algorithm(struct rank *r, const struct epa_footprint *footprint,
                             uint32_t transport_flags)
{
    const struct experiment *x = experiment_of(r);
    struct epa_problem problem;

    if (!rank_good(r) || (r->caller != NULL && r->session->verb != VERB_BENCH))
        return;
    problem = operation_problem(x, r->comm.boot->world.rank);
    if (r->op->operation->weights != NULL)
        r->op->operation->weights(r->op, &problem);
    r->status =
        ep_create(&r->ep,
                  &(struct ep_algorithm_params){.algorithm = x->algorithm,
                                                .problem = &problem,
                                                .transport_flags = transport_flags,
                                                .footprint = footprint,
                                                .heap_at = r->heap_at,
                                                .signal_at = r->signal_at,
                                                .epoch = rank_is_guarded(r) ? x->verify.epoch : 0,
                                                .trace = r->trace},
                  &r->err);
}

/* Returns the number of stages of the first phase if the stages are the phases of the operation or one
 * WHOLE stage; a SEND stage may precede each. Returns 0 for other stages. */
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

/* Returns true for the stage kinds of the operation. */
static bool has_kind(const struct operation *op, enum epa_stage_kind kind)
{
    bool found = kind == EPA_STAGE_SEND || kind == EPA_STAGE_WHOLE;

    for (uint32_t i = 0; i < op->n_phases; i++)
        found = found || op->phase[i].kind == kind;
    return found;
}

uint32_t rank_list_stages(struct rank *r)
{
    const struct operation *op = session_operation(r->session);
    const struct epa_algorithm *a = r->ep.algorithm;
    bool timed = op->between_is_timed != NULL &&
                 op->between_is_timed(&experiment_of(r)->problem, &r->session->footprint);
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
    r->first_stages = count_first_stages(r);
    return n;
}

static void check_stages(struct rank *r)
{
    const struct operation *op = session_operation(r->session);
    const char *name = experiment_of(r)->algorithm.plugin->name;
    uint32_t n = rank_list_stages(r);

    if (n > SESSION_STAGES)
        rank_fail(r, EPA_ERR_UNSUPPORTED, "%s has %u stages; the maximum is %d", name, n,
                  SESSION_STAGES);
    for (uint32_t i = 0; i < r->ep.algorithm->n_stages; i++)
        if (!has_kind(op, r->ep.algorithm->stages[i].kind))
            rank_fail(r, EPA_ERR_UNSUPPORTED, "stage '%s' of %s is of a kind that %s does not have",
                      r->ep.algorithm->stages[i].name, name, op->name);
    if (r->session->verb == VERB_VERIFY && r->first_stages == 0)
        rank_fail(r, EPA_ERR_UNSUPPORTED,
                  "verify needs a dispatch and a combine, or one stage for both; %s has other "
                  "stages",
                  name);
}

void rank_create(struct rank *r, const struct epa_footprint *footprint, uint32_t transport_flags)
{
    struct epa_footprint raised = *footprint;

    open_caller(r, &raised);
    create_operation(r, &raised);
    create_algorithm(r, footprint, transport_flags);
    create_object(r);
    if (rank_good(r))
        check_stages(r);
}

void rank_destroy_algorithm(struct rank *r)
{
    rank_graphs_destroy(r);
    ep_destroy(&r->ep);
    r->ep.algorithm = r->direct;
    r->direct = NULL;
    ep_destroy(&r->ep);
}

void rank_destroy(struct rank *r)
{
    rank_destroy_algorithm(r);
    if (r->op != NULL) /* after the algorithm, which may use its weights */
        op_destroy(r->op);
    r->op = NULL;
}
