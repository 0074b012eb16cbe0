/* verify: checks that an algorithm sends the bytes that its plan claims. All reports compute `wire`,
 * `bottleneck` and "sent" from the plan; this check compares them with the puts.
 *
 * No function can count stores to a peer's heap. So after the last iteration the ranks create the
 * algorithm again, for the same problem and over the same transport without peer_heap, and run a few
 * more iterations with puts only. */
#include "session/rank_puts.h"

#include <stdio.h>

#include "experiment/operation.h"
#include "session/preflight.h"
#include "session/rank_create.h"
#include "session/rank_guard.h"
#include "session/rank_stages.h"
#include "session/rank_status.h"
#include "session/view.h"

enum { COUNTED_ITERATIONS = 3, FEW_ITERATIONS = 20, SPARE_BYTES = 32 * 8 };

/* Limit of the additional heap if another launcher starts the processes: each computes its own free
 * memory, and all must make the same decision. */
static const uint64_t additional_bytes_most = 256u << 20;

static uint32_t flags_of_puts(const struct experiment *x)
{
    return experiment_transport_flags(x) & ~(uint32_t)EPA_TRANSPORT_LOAD_STORE;
}

static bool has_room(struct session *s)
{
    struct epa_footprint footprint = s->footprint;
    struct epa_error ignored = {EPA_OK, ""};
    bool room;

    if (s->puts.heap_bytes <= footprint.heap_bytes)
        return true;
    if (s->process_id.size > 1)
        return s->puts.heap_bytes - footprint.heap_bytes <= additional_bytes_most;
    s->footprint.heap_bytes = s->puts.heap_bytes;
    room = preflight_memory("", s, &ignored) == EPA_OK;
    s->footprint = footprint;
    return room;
}

void session_plan_puts(struct session *s)
{
    const struct experiment *x = s->experiment;
    uint32_t local = x->problem.ranks_per_node == 0 ? x->problem.ranks : x->problem.ranks_per_node;
    const struct epa_world world = {
        .size = x->problem.ranks, .local_size = local, .local_cores = 1};
    struct epa_problem problem = operation_problem(x, 0);
    struct epa_error err = {EPA_OK, ""};
    const char *why = NULL;

    if (s->verb != VERB_VERIFY)
        return;
    if (x->problem.ranks == 1)
        why = "one rank sends no puts";
    else if (x->api != API_NONE)
        why = "the transport belongs to the library";
    else if (fault_is_planted(x))
        why = "a fault is planted";
    else if (x->verify.stop != STOP_NONE)
        why = "a rank stops at the end";
    else if (!is_on_hosts(x))
        why = "stores of kernels cannot be counted";
    else if (s->footprint.heap_bytes == 0 && s->footprint.signals == 0)
        why = "the algorithm uses no memory of the transport";
    else if ((algorithm_of(x)->needs_host & EPA_TRANSPORT_LOAD_STORE) != 0)
        why = "the algorithm needs loads and stores";
    else if (ep_plan(&x->algorithm, &problem, &world, flags_of_puts(x), &s->puts, &err) != EPA_OK)
        why = err.text;
    else if (!has_room(s))
        why = "there is no memory for the larger heap of puts";
    snprintf(s->uncounted, sizeof(s->uncounted), "%.199s", why != NULL ? why : "");
    if (why != NULL)
        s->puts = (struct epa_footprint){0};
}

/* Tolerates 1 %, or SPARE_BYTES per peer for few bytes, since the number of signals may depend on the
 * routing. */
static void compare_sent(struct rank *r, const char *stage, uint64_t claimed, uint64_t counted)
{
    uint64_t off = claimed > counted ? claimed - counted : counted - claimed;

    if (off * 100 > claimed && off > (uint64_t)(r->comm.boot->world.size - 1) * SPARE_BYTES)
        rank_fail(
            r, EPA_ERR_MISMATCH,
            "rank %u, iteration %llu, %s: plan() claims %llu bytes sent to other ranks, but "
            "%llu were put (a signal counts 8); correct the bytes of a row, or control bytes, "
            "in its footprint",
            r->comm.boot->world.rank, (unsigned long long)r->shared->iteration, stage,
            (unsigned long long)claimed, (unsigned long long)counted);
}

/* Runs the stages `first` to `last - 1`. Returns the number of bytes that they put. */
static uint64_t run_counted_stages(struct rank *r, struct view *v, uint32_t first, uint32_t last)
{
    uint64_t before = v->bytes;

    for (uint32_t i = first; i < last && rank_good(r); i++) {
        rank_at_stage(r, i);
        rank_stage(r, i, 0);
    }
    rank_sync(r);
    if (last > first)
        rank_check(r, r->stage[last - 1].kind, 0);
    rank_at_stage(r, SESSION_ELSEWHERE);
    return v->bytes - before;
}

static void count_iteration(struct rank *r, struct view *v, uint64_t iteration)
{
    const struct operation *op = r->op->operation;
    struct op_traffic claimed = {.flops = 0};
    uint64_t first, rest, compared = r->shared->compared; /* elements of verify's own iterations */

    rank_at(r, iteration, SESSION_ELSEWHERE);
    rank_make(r, 0, iteration);
    if (!rank_good(r))
        return;
    rank_guard_inputs(r, 0);
    op->traffic(r->op, 0, &claimed);
    first = run_counted_stages(r, v, 0, r->first_stages);
    rank_between(r, r->first_stages - 1, 0);
    rest = run_counted_stages(r, v, r->first_stages, r->n_stages);
    rank_guard_check(r, 0);
    r->shared->compared = compared;
    r->shared->put_bytes += first + rest;
    if (!rank_good(r))
        return;
    if (r->first_stages == r->n_stages) { /* one stage for all phases */
        for (uint32_t i = 1; i < op->n_phases; i++)
            claimed.phase[0].sent += claimed.phase[i].sent;
        compare_sent(r, r->stage[r->n_stages - 1].name, claimed.phase[0].sent, first);
        return;
    }
    compare_sent(r, op->phase[0].name, claimed.phase[0].sent, first);
    compare_sent(r, op->phase[1].name, claimed.phase[1].sent, rest);
}

void rank_count_puts(struct rank *r)
{
    const struct session *s = r->session;
    uint64_t first = s->iterations, n = first < FEW_ITERATIONS ? 1 : COUNTED_ITERATIONS;
    struct view *v;

    if (!rank_good(r) || s->verb != VERB_VERIFY || s->uncounted[0] != '\0')
        return;
    r->counts_puts = true;
    rank_clear_heap(r);
    rank_destroy(r);
    if (!rank_good(r))
        return;
    v = insert_view(r, &s->puts);
    view_put_only(v);
    rank_guard_heap(r, &s->puts);
    r->trace = NULL;
    rank_create(r, &s->puts, flags_of_puts(s->experiment));
    rank_boot_barrier(r);
    for (uint32_t i = 0; i < n && rank_goes_on(r); i++)
        count_iteration(r, v, first + i);
    rank_barrier(r);
}
