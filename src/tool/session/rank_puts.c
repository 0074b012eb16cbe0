/* verify: checks that an algorithm sends the bytes that its plan claims. All reports compute `wire`,
 * `bottleneck` and "sent" from the plan; this check compares them with the transferred bytes in a few
 * iterations after the last one.
 *
 * On hosts no function can count stores to a peer's heap. So the ranks create the algorithm again, for
 * the same problem and over the same transport without peer_heap, and puts carry all data.
 *
 * On GPUs kernels store to peers themselves, and write a descriptor of each put to a rank of
 * another node. An emulator of CUDA counts both in the kernel: the count is complete once the stream
 * is, although a proxy may still execute puts. If a kernel loads from a peer, the rank of the heap is
 * the sender. */
#include "session/rank_puts.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "experiment/operation.h"
#include "session/kernel_traffic.h"
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

/* Plans the count of kernels' stores and puts. Returns the reason why they cannot be counted, or
 * NULL. */
static const char *plan_kernels(struct session *s)
{
    s->puts = s->footprint;
    return kernel_traffic_find(backend_of(s->experiment)) == NULL
               ? "stores of kernels cannot be counted"
               : NULL;
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
        why = plan_kernels(s);
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

/* Bytes that a rank sent to others. An algorithm may claim `least` to `most`: kernels have
 * optional bytes (kernel_traffic.h), and send fewer control bytes than planned for fewer tokens than
 * moe.max_tokens. */
struct counted {
    uint64_t least, most;
};

/* Counters of a rank: of the puts over `view`, or of the stores of kernels. */
struct counters {
    struct view *view;
    struct kernel_traffic *kernels; /* NULL: on a host */
    uint64_t *loaded; /* kernels: [size][size], bytes by loading rank and rank of the heap */
};

/* Tolerates 1 %, or SPARE_BYTES per peer for few bytes, since the number of signals may depend on the
 * routing. */
static void compare_sent(struct rank *r, const char *stage, uint64_t claimed,
                         struct counted counted)
{
    uint64_t nearest = claimed < counted.least  ? counted.least
                       : claimed > counted.most ? counted.most
                                                : claimed;
    uint64_t off = claimed > nearest ? claimed - nearest : nearest - claimed;

    if (off * 100 > claimed && off > (uint64_t)(r->comm.boot->world.size - 1) * SPARE_BYTES)
        rank_fail_key(
            r, EPA_ERR_MISMATCH, OP_PLACED,
            "rank %u, iteration %llu, %s: plan() claims %llu bytes sent to other ranks, but "
            "%llu were put (a signal counts 8); correct the bytes of a row, or control bytes, "
            "in its footprint",
            r->comm.boot->world.rank, (unsigned long long)r->shared->iteration, stage,
            (unsigned long long)claimed, (unsigned long long)nearest);
}

/* Returns the bytes that other ranks loaded from the heap of this rank since the last call.
 * Collective. */
static uint64_t bytes_loaded_by_others(struct rank *r, struct counters *c)
{
    uint32_t size = r->comm.boot->world.size, me = r->comm.boot->world.rank;
    uint64_t mine[EPA_DEVICE_RANKS] = {0}, sum = 0;

    for (uint32_t i = 0; i < c->kernels->n; i++) {
        mine[c->kernels->region[i].rank] += c->kernels->region[i].loaded;
        c->kernels->region[i].loaded = 0;
    }
    if (!rank_boot(r, r->comm.boot->allgather(r->comm.boot, mine, size * sizeof(*mine), c->loaded)))
        return 0;
    for (uint32_t from = 0; from < size; from++)
        sum += c->loaded[(size_t)from * size + me];
    return sum;
}

/* Returns the control bytes that kernels of a rank with few tokens may omit. */
static uint64_t unsent_control_most(const struct rank *r)
{
    const struct op_slot *slot = &r->op->slot[0];
    const struct experiment *x = experiment_of(r);
    const struct epa_moe_footprint *f = &r->session->puts.u.moe;

    if (algorithm_of(x)->op != EPA_OP_MOE || slot->units == x->problem.moe.max_tokens)
        return 0;
    return (f->far_control_bytes > f->control_bytes ? f->far_control_bytes : f->control_bytes) *
           (r->comm.boot->world.size - 1);
}

/* Returns the bytes sent since the last call. Collective. */
static struct counted take_counts(struct rank *r, struct counters *c)
{
    uint64_t sent, optional;

    if (c->kernels == NULL) {
        sent = c->view->bytes;
        c->view->bytes = 0;
        return (struct counted){sent, sent};
    }
    sent = __atomic_exchange_n(&c->kernels->stored, 0, __ATOMIC_RELAXED);
    optional = __atomic_exchange_n(&c->kernels->optional, 0, __ATOMIC_RELAXED);
    sent += bytes_loaded_by_others(r, c);
    return (struct counted){sent, sent + optional + unsent_control_most(r)};
}

/* Runs the stages `first` to `last - 1`. Returns the bytes that this rank sent. */
static struct counted run_counted_stages(struct rank *r, struct counters *c, uint32_t first,
                                         uint32_t last)
{
    for (uint32_t i = first; i < last && rank_good(r); i++) {
        rank_at_stage(r, i);
        rank_stage(r, i, 0);
    }
    rank_sync(r);
    if (last > first)
        rank_check(r, r->stage[last - 1].kind, 0);
    rank_at_stage(r, SESSION_ELSEWHERE);
    return take_counts(r, c);
}

static void count_iteration(struct rank *r, struct counters *c, uint64_t iteration)
{
    const struct operation *op = r->op->operation;
    struct op_traffic claimed = {.flops = 0};
    struct counted first, rest;
    uint64_t compared = r->shared->compared; /* elements of verify's own iterations */

    rank_at(r, iteration, SESSION_ELSEWHERE);
    rank_make(r, 0, iteration);
    if (!rank_good(r))
        return;
    rank_guard_inputs(r, 0);
    op->traffic(r->op, 0, &claimed);
    first = run_counted_stages(r, c, 0, r->first_stages);
    rank_between(r, r->first_stages - 1, 0);
    rest = run_counted_stages(r, c, r->first_stages, r->n_stages);
    rank_guard_check(r, 0);
    r->shared->compared = compared;
    r->shared->put_bytes += first.least + rest.least;
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

static void count_iterations(struct rank *r, struct counters *c)
{
    uint64_t first = r->session->iterations, n = first < FEW_ITERATIONS ? 1 : COUNTED_ITERATIONS;

    rank_boot_barrier(r);
    for (uint32_t i = 0; i < n && rank_goes_on(r); i++)
        count_iteration(r, c, first + i);
    rank_barrier(r);
}

/* Adds the heap and the signals of each other rank of this node to the regions. */
static void add_regions(const struct rank *r, struct kernel_traffic *k)
{
    const struct epa_transport *t = r->ep.transport;
    uint64_t signals = (r->signal_at + (uint64_t)r->ep.footprint.signals) * sizeof(uint64_t);

    for (uint32_t p = 0; p < t->size; p++) {
        if (p == t->rank || t->peer_heap[p] == NULL)
            continue;
        k->region[k->n++] = (struct kernel_region){t->peer_heap[p], t->heap_bytes, p, 0};
        if (t->view != NULL)
            k->region[k->n++] =
                (struct kernel_region){(const char *)t->view->peer_signal[p], signals, p, 0};
    }
}

static void count_kernels(struct rank *r)
{
    kernel_traffic_function *count = kernel_traffic_find(backend_of(experiment_of(r)));
    uint32_t size = r->comm.boot->world.size;
    struct kernel_traffic *kernels = memory_alloc(1, sizeof(*kernels));
    struct counters c = {.kernels = kernels,
                         .loaded = memory_alloc((size_t)size * size, sizeof(uint64_t))};

    _Static_assert(KERNEL_TRAFFIC_REGIONS >= 2 * EPA_DEVICE_RANKS, "regions of all ranks");
    rank_create(r, &r->session->puts, experiment_transport_flags(experiment_of(r)));
    if (rank_good(r)) {
        add_regions(r, kernels);
        count(kernels);
        count_iterations(r, &c);
        rank_sync(r);
        count(NULL);
    }
    free(c.loaded);
    free(kernels);
}

static void count_host_puts(struct rank *r)
{
    const struct session *s = r->session;
    struct counters c = {.kernels = NULL};

    c.view = insert_view(r, &s->puts);
    c.view->bytes = 0;
    view_put_only(c.view);
    rank_guard_heap(r, &s->puts);
    rank_create(r, &s->puts, flags_of_puts(s->experiment));
    count_iterations(r, &c);
}

void rank_count_puts(struct rank *r)
{
    const struct session *s = r->session;

    if (!rank_good(r) || s->verb != VERB_VERIFY || s->uncounted[0] != '\0')
        return;
    r->counts_puts = true;
    r->trace = NULL;
    rank_clear_heap(r);
    rank_destroy(r);
    if (!rank_good(r))
        return;
    if (is_on_hosts(s->experiment))
        count_host_puts(r);
    else
        count_kernels(r);
}
