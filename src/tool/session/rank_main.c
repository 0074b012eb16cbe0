/* The life of a rank: creates backend, transport and algorithm, runs the iterations, and destroys all
 * three. The rank writes measurements and the reason of a failure to the shared memory of the session,
 * which the parent reads even after a crash of the rank. */
#include "session/rank_main.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "epa2a/quant.h"
#include "base/text.h"
#include "session/peak.h"
#include "session/preflight.h"
#include "session/rank_bench.h"
#include "session/rank_create.h"
#include "session/rank_expect.h"
#include "session/rank_fault.h"
#include "session/rank_graph.h"
#include "session/rank_guard.h"
#include "session/rank_halt.h"
#include "session/rank_puts.h"
#include "session/rank_run.h"
#include "session/rank_stages.h"
#include "session/rank_status.h"
#include "session/rank_stop.h"
#include "session/rank_trace.h"
#include "session/rank_verify.h"
#include "session/rank_waits.h"

/* ---- set-up ---- */

static void open_backend(struct rank *r)
{
    const struct experiment *x = experiment_of(r);

    r->status = ep_comm_open(&r->comm, r->comm.boot, &x->backend, x->timeout_ns, &r->err);
    if (rank_good(r))
        r->status = preflight_device(r->session, r->comm.backend->free_bytes, &r->err);
}

static uint64_t max64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void open_transport(struct rank *r)
{
    const struct experiment *x = experiment_of(r);
    const struct session *s = r->session;
    const struct epa_footprint *need = &s->footprint, *puts = &s->puts;
    uint32_t signals = (uint32_t)max64(need->signals, puts->signals);
    uint64_t heap_bytes = max64(need->heap_bytes, puts->heap_bytes);

    if (!rank_good(r))
        return;
    if (x->api != API_NONE && s->verb != VERB_BENCH) { /* for barriers alone */
        heap_bytes = 0;
        signals = 0;
    }
    if (s->verb == VERB_BENCH)
        signals += PEAK_SIGNALS;
    rank_guard_room(r, &heap_bytes, &signals);
    r->status = ep_open(&r->ep, &r->comm,
                        &(struct ep_transport_params){.transport = x->transport,
                                                      .between = x->between,
                                                      .heap_bytes = heap_bytes,
                                                      .signals = signals,
                                                      .trace = r->trace},
                        &r->err);
    if (rank_good(r) && r->ep.transport->ops->describe != NULL)
        r->ep.transport->ops->describe(r->ep.transport, session_keep_fact, &r->shared->transport);
}

/* Measures the link peak before the algorithm uses the heap, and clears the heap afterwards: algorithms
 * require the state after open(). */
static void measure_peak(struct rank *r)
{
    if (!rank_good(r) || !session_has_peaks(r->session))
        return;
    r->status = peak_measure(r->comm.boot, r->comm.backend, r->ep.transport,
                             r->session->footprint.signals, &r->shared->peak, &r->err);
    rank_boot_barrier(r);
    rank_clear_heap(r);
}

/* Measures the host peak again after the iterations, since other load may have lowered the first
 * value; keeps the better one. Devices are exclusive and are measured once. The algorithm has been
 * destroyed, so the heap is free. */
static void measure_peak_again(struct rank *r)
{
    struct session_rank *shared = r->shared;
    struct peak again;

    if (!rank_goes_on(r) || !session_has_peaks(r->session) ||
        r->comm.backend->memory != EPA_MEMORY_HOST)
        return;
    r->status = peak_measure(r->comm.boot, r->comm.backend, r->ep.transport,
                             r->session->footprint.signals, &again, &r->err);
    if (!rank_good(r))
        return;
    shared->peak.bytes_per_ns = fmax(shared->peak.bytes_per_ns, again.bytes_per_ns);
    if (!(shared->peak.latency_ns > 0 && shared->peak.latency_ns < again.latency_ns))
        shared->peak.latency_ns = again.latency_ns > 0 ? again.latency_ns : shared->peak.latency_ns;
}

/* Chooses the clock of bench and run. */
static void choose_clock(struct rank *r)
{
    const struct experiment *x = experiment_of(r);
    const struct bench_options *o = &x->bench;
    const struct epa_backend_ops *ops = r->comm.backend->ops;
    const char *backend = x->backend.plugin->name;
    bool graphs = ops->capture_begin != NULL, graph = o->clock == CLOCK_GRAPH;

    r->clock = r->comm.backend->memory == EPA_MEMORY_HOST ? CLOCK_HOST : CLOCK_EVENTS;
    if (r->session->verb != VERB_BENCH)
        return;
    if (o->cache == CACHE_COLD && ops->flush_cache == NULL)
        rank_fail_key(r, EPA_ERR_UNSUPPORTED, "bench.cache",
                      "bench.cache: cold: backend '%s' cannot flush a cache", backend);
    if (graph && !graphs)
        rank_fail_key(r, EPA_ERR_UNSUPPORTED, "bench.clock",
                      "bench.clock: backend '%s' has no graphs; set events", backend);
    if (graph && r->first_stages == 0)
        rank_fail_key(
            r, EPA_ERR_UNSUPPORTED, "bench.clock",
            "bench.clock: graph needs a dispatch and a combine, or one stage for both; %s has "
            "other stages; set events",
            x->algorithm.plugin->name);
    if (o->clock == CLOCK_END_TO_END)
        r->clock = CLOCK_END_TO_END;
    else if (graph || (o->clock == CLOCK_AUTO && graphs && r->first_stages != 0))
        r->clock = CLOCK_GRAPH;
}

/* Writes the stages of the algorithm and the instruction set to the notes: rank 0 of each shared
 * memory does. A process that another launcher started has its own memory, so its rank writes, too. */
static void describe_stages(struct rank *r)
{
    struct session_notes *notes = r->session->notes;

    if (!rank_good(r) || (r->comm.boot->world.rank != 0 && r->session->process_id.size <= 1))
        return;
    if (r->op->operation->between_by != NULL)
        r->op->operation->between_by(r->op, notes->between_by, sizeof(notes->between_by));
    if (r->ep.algorithm->products_by != NULL)
        snprintf(notes->products_by, sizeof(notes->products_by), "%s",
                 r->ep.algorithm->products_by);
    snprintf(notes->isa, sizeof(notes->isa), "%s", epa_kernels_get(EPA_BF16, NULL)->isa);
    for (uint32_t i = 0; i < r->n_stages; i++) {
        snprintf(notes->stage[i], sizeof(notes->stage[i]), "%s", r->stage[i].name);
        notes->stage_kind[i] = r->stage[i].kind;
    }
    notes->n_parts = r->ep.algorithm->n_parts;
    for (uint32_t i = 0; i < r->ep.algorithm->n_parts; i++)
        snprintf(notes->part[i], sizeof(notes->part[i]), "%s", r->ep.algorithm->parts[i].name);
    notes->clock = r->session->verb == VERB_VERIFY ? CLOCK_AUTO : r->clock;
    rank_expect_check(r);
    /* Release: pairs with observers of running ranks, which read n_stages before the other notes. */
    if (rank_good(r))
        __atomic_store_n(&notes->n_stages, r->n_stages, __ATOMIC_RELEASE);
}

static void set_up(struct rank *r)
{
    open_backend(r);
    rank_trace_begin(r);
    open_transport(r);
    measure_peak(r);
    rank_guard_heap(r, &r->session->footprint);
    rank_create(r, &r->session->footprint, experiment_transport_flags(experiment_of(r)));
    if (!rank_good(r))
        return;
    choose_clock(r);
    rank_fault_check(r);
    describe_stages(r);
    rank_trace_ready(r);
    /* No rank starts before all are ready. The bootstrap ends this wait if a rank fails. */
    rank_boot_barrier(r);
}

static void tear_down(struct rank *r)
{
    rank_destroy(r);
    caller_close(r->caller, !rank_good(r) || rank_is_halted(r));
    rank_stop_destroy(r);
    free(r->guard);
    ep_close(&r->ep);
    ep_comm_close(&r->comm);
}

/* ---- the rank ---- */

/* The only common clock of ranks on several hosts. */
static uint64_t realtime_ns(void)
{
    struct timespec now = {0};

    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void record_failure(struct rank *r, bool set_up_done)
{
    struct session_rank *to = r->shared;
    const char *stage = session_stage(r->session->notes, to->stage);
    bool placed = strcmp(r->err.key, OP_PLACED) == 0;
    char me[32], at[64] = "";

    error_add_remedy(&r->err);
    snprintf(me, sizeof(me), "rank %u, ", r->comm.boot->world.rank);
    if (strcmp(r->err.stage, stage) == 0)
        stage = ""; /* the message begins with it */
    snprintf(at, sizeof(at), "iteration %llu, ", (unsigned long long)to->iteration);
    if (placed)
        snprintf(to->text, sizeof(to->text), "%s", r->err.text);
    else if (!set_up_done)
        snprintf(to->text, sizeof(to->text), "rank %u: %s", r->comm.boot->world.rank, r->err.text);
    else
        snprintf(to->text, sizeof(to->text), "%s%s%s%s%s", me, at, stage,
                 stage[0] != '\0' ? ": " : "", r->err.text);
    snprintf(to->key, sizeof(to->key), "%s", placed ? "" : r->err.key);
    to->failed_ns = realtime_ns();
    /* Release: pairs with the acquire in first_failure(). The text precedes the status. */
    __atomic_store_n(&to->status, r->status, __ATOMIC_RELEASE);
    r->comm.boot->abort(r->comm.boot);
}

static void describe_rank(struct rank *r)
{
    const struct epa_world *w = &r->comm.boot->world;

    if (gethostname(r->shared->host, sizeof(r->shared->host) - 1) != 0)
        r->shared->host[0] = '\0';
    r->shared->node = w->node != NULL ? w->node[w->rank] : 0;
    r->shared->local_size = w->local_size;
    r->shared->local_cores = w->local_cores;
    r->shared->pid = (int32_t)getpid();
    r->shared->core = w->cores > 0 ? w->core[0] : -1;
}

static void run_verb(struct rank *r)
{
    if (r->session->verb == VERB_RUN)
        rank_run(r);
    if (r->session->verb == VERB_VERIFY)
        rank_verify(r);
    if (r->session->verb != VERB_BENCH)
        return;
    rank_stop_create(r);
    if (!rank_good(r))
        return;
    if (r->clock == CLOCK_GRAPH)
        rank_bench_graph(r);
    else
        rank_bench(r);
}

enum epa_status session_rank_main(struct epa_bootstrap *boot, void *session)
{
    struct rank r = {.session = session,
                     .shared = session_rank(session, boot->world.rank),
                     .comm = {.boot = boot}};
    bool set_up_done;

    describe_rank(&r);
    rank_at(&r, 0, SESSION_ELSEWHERE);
    rank_waits_begin(&r);
    set_up(&r);
    set_up_done = rank_good(&r);
    if (set_up_done)
        run_verb(&r);
    /* The barrier delivers delayed puts to peers that wait for them, and no rank frees memory that a
     * peer may still read. */
    if (!rank_is_halted(&r))
        rank_barrier(&r);
    rank_trace_end(&r);
    rank_boot_barrier(&r);
    if (rank_good(&r) && !rank_is_halted(&r)) {
        rank_destroy_algorithm(&r);
        rank_boot_barrier(&r);
        measure_peak_again(&r);
        rank_count_puts(&r);
        rank_guard_end(&r);
    }
    if (!rank_good(&r)) {
        record_failure(&r, set_up_done);
        ep_comm_stop(&r.comm);
    }
    tear_down(&r);
    rank_waits_end(&r);
    __atomic_store_n(&r.shared->finished, 1, __ATOMIC_RELEASE);
    return r.status;
}
