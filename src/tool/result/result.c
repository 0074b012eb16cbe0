/* Turns the raw times of a session into the figures of a run. A sample is the slowest rank of an
 * iteration, because a layer ends with its last rank. Statistics cover only iterations that all
 * ranks finished. */
#include "result/result.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/exit_code.h"
#include "base/memory.h"
#include "base/text.h"
#include "config/experiment.h"
#include "result/outcome.h"
#include "result/verdicts.h"
#include "result/warnings.h"
#include "session/rows.h"

/* A measured time this far below its limit shows that the limit was measured too high. */
static const double BEATEN = 1.03;

/* The session, its figures, and scratch memory. */
struct making {
    const struct session *s;
    struct run_figures *out;
    uint32_t ranks;
    uint64_t n_samples;      /* iterations that all ranks with a record finished */
    double *rank_ns;         /* [ranks][n_samples], of the current stage */
    double *sample, *sorted; /* [n_samples] */
    uint32_t *wins;          /* [ranks]: samples in which the rank was slowest */
};

const struct run_stage *run_total(const struct run_figures *f)
{
    return &f->stage[f->n_stages - 1];
}

const struct run_stage *run_stage_of(const struct run_figures *f, const char *name)
{
    for (uint32_t i = 0; i < f->n_stages; i++)
        if (strcmp(f->stage[i].name, name) == 0)
            return &f->stage[i];
    return NULL;
}

bool run_has_links(const struct run_figures *f)
{
    return f->links.latency_ns > 0 || f->links.bytes_per_ns > 0;
}

/* ---- rows ---- */

/* The record of a rank is lost if its launcher died before it sent the record to rank 0. A sample is
 * then the time of the slowest other rank. */
static bool has_record(const struct making *m, uint32_t rank)
{
    return session_rank(m->s, rank)->pid != 0;
}

/* Returns the number of complete samples. Acquire: pairs with the release of a finished sample in a
 * rank that has ended or died since, so that the times of counted samples are complete. */
static uint64_t count_samples(const struct making *m)
{
    uint64_t n = m->s->iterations;
    uint32_t records = 0;

    for (uint32_t r = 0; r < m->ranks; r++) {
        uint64_t done = __atomic_load_n(&session_rank(m->s, r)->samples, __ATOMIC_ACQUIRE);

        n = done < n && has_record(m, r) ? done : n;
        records += has_record(m, r);
    }
    /* verify counts iterations without times */
    return m->s->verb == VERB_VERIFY || m->s->notes->n_stages == 0 || records == 0 ? 0 : n;
}

/* Returns the number of ranks with times. */
static uint32_t count_timed_ranks(const struct making *m)
{
    return m->s->notes->clock == CLOCK_END_TO_END && m->ranks > 1 ? 1 : m->ranks;
}

/* Gathers the first n times of each rank in one row, and the times of the slowest rank. */
static void gather_times(const struct making *m, const struct session_row *row, uint64_t n)
{
    for (uint32_t r = 0; r < m->ranks; r++)
        for (uint64_t k = 0; k < n; k++)
            m->rank_ns[r * n + k] = session_row_ns(m->s, row, r, k);
    for (uint64_t k = 0; k < n; k++) {
        m->sample[k] = 0;
        for (uint32_t r = 0; r < count_timed_ranks(m); r++)
            if (has_record(m, r))
                m->sample[k] = fmax(m->sample[k], m->rank_ns[r * n + k]);
    }
}

/* Returns the lower bounds for some phases with the traffic. */
static struct run_limit find_limit(const struct run_figures *out, const struct run_traffic *traffic,
                                   uint32_t phases)
{
    const struct op_peaks *peaks = &out->compute.peaks;
    struct run_limit of = {.memory = traffic->memory, .cache = peaks->cache_bytes};

    of.hops_ns = out->links.latency_ns > 0 ? phases * out->links.latency_ns : NAN;
    of.launches_ns = out->launches_ns * phases / out->operation->n_phases;
    of.links_ns = out->links.bytes_per_ns > 0 ? traffic->least / out->links.bytes_per_ns : NAN;
    of.memory_per_ns = of.memory > 0 && peaks->bytes_per_ns > 0 ? peaks->bytes_per_ns : NAN;
    of.memory_ns = fmax(of.memory - of.cache, 0) / of.memory_per_ns;
    return of;
}

static double or_nothing(double ns)
{
    return isnan(ns) ? 0 : ns;
}

double run_limit_ns(const struct run_limit *l)
{
    return or_nothing(l->hops_ns) + or_nothing(l->launches_ns) +
           or_nothing(fmax(l->links_ns, l->memory_ns)); /* fmax() ignores NaN */
}

/* Fills a row of `n` gathered samples. Bytes per nanosecond are GB/s; a message costs the latency of
 * a link in each phase. `traffic` NULL: the traffic of the row is unknown. `in_pair` NaN: unknown. */
static void make_stage(struct making *m, const char *name, uint64_t n,
                       const struct run_traffic *traffic, bool experts, double in_pair,
                       struct run_stage *stage)
{
    struct run_figures *out = m->out;
    bool all = traffic == &out->total;
    double peak_ns = NAN, median;
    struct stage_figures of;

    *stage = (struct run_stage){
        .name = arena_printf(out->arena, "%s", name), .n = n, .n_ranks = m->ranks};
    stage->sample = arena_alloc(out->arena, n * sizeof(*stage->sample));
    for (uint64_t k = 0; k < n; k++)
        stage->sample[k] = round(m->sample[k]);
    stage->rank = arena_alloc(out->arena, m->ranks * sizeof(*stage->rank));
    for (uint32_t r = 0; r < m->ranks; r++) {
        bool counts = r < count_timed_ranks(m) && has_record(m, r);

        stage->rank[r] = stats_of(m->rank_ns + r * n, counts ? n : 0, m->sorted);
    }
    of.ns = stats_of(m->sample, n, m->sorted);
    of.in_pair = in_pair;
    median = of.ns.median > 0 ? of.ns.median : NAN;
    if (traffic != NULL && run_has_links(out)) {
        struct run_limit limit = find_limit(out, traffic, all ? out->operation->n_phases : 1);

        peak_ns = run_limit_ns(&limit);
    }
    if (!(peak_ns > 0)) /* no traffic, and no known latency */
        peak_ns = NAN;
    if (experts || all) /* fmax() ignores NaN */
        peak_ns = fmax(peak_ns, fmax(out->compute.flops_ns, out->compute.weights_ns));
    if (experts)
        out->compute.expert_flops = out->compute.flops / median * 1e9;
    /* A limit above the measured rate is invalid: other load used the cores during its
     * measurement. */
    stage->beaten = peak_ns > BEATEN * median;
    of.goodput = traffic != NULL ? traffic->needed / median : NAN;
    of.wire = traffic != NULL ? traffic->wire / median : NAN;
    of.bottleneck = traffic != NULL ? traffic->bottleneck / median : NAN;
    of.peak_ns = stage->beaten ? NAN : peak_ns;
    of.of_peak = stage->beaten ? NAN : peak_ns / median;
    figures_round(&of);
    stage->figures = of;
}

/* Returns the traffic of all stages of a kind; NULL: unknown. */
static const struct run_traffic *kind_traffic(const struct making *m, enum epa_stage_kind kind)
{
    const struct operation *op = m->out->operation;

    if (kind == EPA_STAGE_WHOLE)
        return &m->out->total;
    for (uint32_t i = 0; i < op->n_phases; i++)
        if (op->phase[i].kind == kind)
            return &m->out->phase[i];
    return NULL;
}

/* Returns the traffic of one stage: known only if no other stage has its kind. */
static const struct run_traffic *stage_traffic(const struct making *m, uint32_t stage)
{
    const struct session *s = m->s;
    uint32_t alike = 0;

    for (uint32_t i = 0; i < s->notes->n_stages; i++)
        alike += s->notes->stage_kind[i] == s->notes->stage_kind[stage];
    if (alike != 1 || (stage > 0 && s->notes->stage_kind[stage - 1] == EPA_STAGE_SEND))
        return NULL;
    return kind_traffic(m, s->notes->stage_kind[stage]);
}

/* Returns the time of a row of graphs inside a pair on the slowest rank; NaN: not measured. */
static double find_in_pair(const struct making *m, const struct session_row *row)
{
    double ns = 0;

    if (m->s->notes->clock != CLOCK_GRAPH ||
        (row->kind != EPA_STAGE_DISPATCH && row->kind != EPA_STAGE_COMBINE))
        return NAN;
    for (uint32_t r = 0; r < m->ranks; r++)
        ns = fmax(ns, session_rank(m->s, r)->in_pair_ns[row->kind == EPA_STAGE_COMBINE]);
    return ns > 0 ? ns : NAN;
}

/* Fills a row for each stage; the last is of whole iterations. A queue moves no data. */
static void make_stages(struct making *m)
{
    const struct session_notes *notes = m->s->notes;
    struct run_figures *out = m->out;
    struct session_row row[SESSION_ROWS];

    out->n_stages = session_rows(m->s, notes->n_stages, row);
    out->stage = arena_alloc(out->arena, out->n_stages * sizeof(*out->stage));
    for (uint32_t i = 0; i < out->n_stages; i++) {
        bool measured = notes->clock != CLOCK_GRAPH || !notes->not_alone[row[i].first];
        uint64_t samples = measured ? m->n_samples : 0;

        gather_times(m, &row[i], samples);
        make_stage(m, row[i].name, samples,
                   row[i].is_stage ? stage_traffic(m, row[i].first) : kind_traffic(m, row[i].kind),
                   row[i].kind == EPA_STAGE_EXPERTS, find_in_pair(m, &row[i]), &out->stage[i]);
    }
}

/* Finds the skew from the times of whole iterations, which were gathered last. */
static void make_skew(struct making *m)
{
    struct run_skew *skew = &m->out->skew;
    uint64_t n = m->n_samples;
    uint32_t worst, first = 0;

    if (n == 0 || m->s->notes->clock == CLOCK_END_TO_END)
        return;
    while (!has_record(m, first))
        first++;
    worst = first;
    for (uint64_t k = 0; k < n; k++) {
        uint32_t slow = first, fast = first;

        for (uint32_t r = first + 1; r < m->ranks; r++) {
            if (!has_record(m, r))
                continue;
            slow = m->rank_ns[r * n + k] > m->rank_ns[slow * n + k] ? r : slow;
            fast = m->rank_ns[r * n + k] < m->rank_ns[fast * n + k] ? r : fast;
        }
        m->sample[k] = m->rank_ns[slow * n + k] - m->rank_ns[fast * n + k];
        m->wins[slow]++;
    }
    for (uint32_t r = first + 1; r < m->ranks; r++)
        worst = m->wins[r] > m->wins[worst] ? r : worst;
    skew->known = true;
    skew->median_ns = round(stats_of(m->sample, n, m->sorted).median);
    skew->straggler = worst;
    skew->straggler_share = (double)m->wins[worst] / (double)n;
}

/* ---- traffic and computation ---- */

/* Returns the means over ranks with counters, in phases `first` to `last - 1`. */
static struct run_traffic traffic_of(const struct making *m, uint32_t first, uint32_t last)
{
    struct run_traffic sum = {0, 0, 0, 0, 0};
    uint32_t counted = 0;

    for (uint32_t r = 0; r < m->ranks; r++)
        counted += session_rank(m->s, r)->traffic_n > 0;
    for (uint32_t r = 0; r < m->ranks; r++) {
        const struct session_rank *rank = session_rank(m->s, r);
        double times = (double)rank->traffic_n;
        struct op_bytes all = {0};

        for (uint32_t i = first; i < last; i++)
            op_bytes_add(&all, &rank->traffic.phase[i]);
        if (rank->traffic_n == 0)
            continue;
        sum.needed += (double)all.needed / times / counted;
        sum.wire += (double)all.sent / times / counted;
        sum.bottleneck = fmax(sum.bottleneck,
                              (double)(all.received > all.sent ? all.received : all.sent) / times);
        sum.least = fmax(sum.least, (double)all.least / times);
        sum.memory = fmax(sum.memory, (double)all.memory / times);
    }
    return sum;
}

/* Finds the best link and GEMM peak of all ranks, so that percentages of peak are not too high, and
 * the most operations of any rank. A single rank has no links. */
static void find_peaks(struct making *m)
{
    struct run_compute *c = &m->out->compute;
    struct peak *links = &m->out->links;
    double most = 0;

    m->out->launches_ns = NAN;
    for (uint32_t r = 0; r < m->ranks; r++) {
        const struct session_rank *rank = session_rank(m->s, r);
        double times = (double)rank->traffic_n, latency = rank->peak.latency_ns;

        if (m->ranks > 1)
            links->bytes_per_ns = fmax(links->bytes_per_ns, rank->peak.bytes_per_ns);
        if (m->ranks > 1 && latency > 0 &&
            (!(links->latency_ns > 0) || latency < links->latency_ns))
            links->latency_ns = latency;
        c->peaks.flops_per_ns = fmax(c->peaks.flops_per_ns, rank->peaks.flops_per_ns);
        c->peaks.bytes_per_ns = fmax(c->peaks.bytes_per_ns, rank->peaks.bytes_per_ns);
        c->peaks.cache_bytes = fmax(c->peaks.cache_bytes, rank->peaks.cache_bytes);
        if (rank->launches_ns > 0) /* fmin() ignores NaN */
            m->out->launches_ns = fmin(m->out->launches_ns, rank->launches_ns);
        if (rank->traffic_n == 0)
            continue;
        c->flops += rank->traffic.flops / times / m->ranks;
        most = fmax(most, rank->traffic.flops / times);
        c->weights = fmax(c->weights, (double)rank->traffic.weights / times);
    }
    c->flops_ns = c->weights_ns = c->expert_flops = NAN;
    c->links_ns = links->bytes_per_ns > 0 ? round(m->out->total.least / links->bytes_per_ns) : NAN;
    if (!(c->peaks.flops_per_ns > 0 && c->peaks.bytes_per_ns > 0))
        return;
    c->flops_ns = most / c->peaks.flops_per_ns;
    c->weights_ns = c->weights / c->peaks.bytes_per_ns;
}

/* Finds the medians of parts that ran alone, and the share of the shortest part that is hidden
 * behind the others. */
static void make_parts(struct making *m)
{
    struct run_compute *c = &m->out->compute;
    double total = run_total(m->out)->figures.ns.median, sum = 0, shorter = INFINITY;

    c->hidden = NAN;
    if (!(c->flops > 0) || session_rank(m->s, 0)->part_ns[0] <= 0)
        return;
    c->n_parts = m->s->notes->n_parts;
    for (uint32_t i = 0; i < c->n_parts; i++) {
        double ns = 0;

        for (uint32_t r = 0; r < m->ranks; r++)
            ns = fmax(ns, session_rank(m->s, r)->part_ns[i]);
        sum += ns;
        shorter = fmin(shorter, ns);
        c->part_ns[i] = round(ns);
    }
    if (total > 0 && shorter > 0)
        c->hidden = fmin(fmax((sum - total) / shorter, 0), 1);
}

static void make_compute(struct making *m)
{
    struct run_compute *c = &m->out->compute;
    double median = run_total(m->out)->figures.ns.median;

    c->flops_per_s = session_is_open(m->s) || !(median > 0) ? NAN : c->flops / median * 1e9;
    make_parts(m);
    c->flops_ns = round(c->flops_ns);
    c->weights_ns = round(c->weights_ns);
}

/* ---- clock, checks and end ---- */

/* Sums up the calls of the public interface and their overhead in single calls or in graphs: means
 * over ranks. */
static void make_api(const struct making *m, bool graphs, struct run_api *api)
{
    uint32_t calls = m->s->notes->api_calls;

    for (uint32_t r = 0; r < m->ranks && calls > 0; r++) {
        const struct session_rank *rank = session_rank(m->s, r);
        const struct session_overhead *o = graphs ? &rank->graph_overhead : &rank->overhead;

        api->public_ns += o->public_ns / m->ranks;
        api->direct_ns += o->direct_ns / m->ranks;
        api->overhead_ns += o->overhead_ns / m->ranks / calls;
        api->turns = r == 0 || o->turns < api->turns ? o->turns : api->turns;
    }
}

/* Returns the kind of a stage. The first half of a split stage is a separate stage, and counts with
 * the second half. */
static enum epa_stage_kind kind_of(const struct session *s, uint32_t stage)
{
    while (stage + 1 < s->notes->n_stages && s->notes->stage_kind[stage] == EPA_STAGE_SEND)
        stage++;
    return s->notes->stage_kind[stage];
}

/* Returns the median over samples of the slowest rank, of all stages of a kind together. */
static double median_of_kind(const struct session *s, enum epa_stage_kind kind, uint64_t n)
{
    double *sample = memory_alloc(n, sizeof(*sample)), median = NAN;
    bool any = false;

    for (uint32_t r = 0; n > 0 && r < s->experiment->problem.ranks; r++) {
        for (uint64_t k = 0; k < n; k++) {
            double sum = 0;

            for (uint32_t i = 0; i < s->notes->n_stages; i++) {
                if (kind_of(s, i) != kind)
                    continue;
                sum += session_times(s, r, i)[k];
                any = true;
            }
            sample[k] = fmax(sample[k], sum);
        }
    }
    if (any)
        median = stats_quantile(sample, n, 500);
    free(sample);
    return median;
}

static void make_kinds(const struct making *m)
{
    static const enum epa_stage_kind kind[] = {[RUN_DISPATCH] = EPA_STAGE_DISPATCH,
                                               [RUN_EXPERTS] = EPA_STAGE_EXPERTS,
                                               [RUN_COMBINE] = EPA_STAGE_COMBINE};
    static const char *const name[] = {[RUN_DISPATCH] = "dispatch",
                                       [RUN_EXPERTS] = "experts",
                                       [RUN_COMBINE] = "combine"}; /* rows of graphs */
    enum bench_clock clock = m->s->notes->clock;

    for (uint32_t i = 0; i < RUN_KINDS; i++) {
        double ns = NAN;

        if (clock == CLOCK_HOST || clock == CLOCK_EVENTS)
            ns = median_of_kind(m->s, kind[i], m->n_samples);
        for (uint32_t k = 0; k < m->out->n_stages; k++)
            if (clock == CLOCK_GRAPH &&
                strncmp(m->out->stage[k].name, name[i], strlen(name[i])) == 0)
                ns = m->out->stage[k].figures.ns.median;
        m->out->kind_ns[i] = ns;
    }
}

/* Finds the share of samples of an open loop that were due before the latest rank could begin. */
static void make_late(struct making *m)
{
    double late = 0;

    for (uint32_t r = 0; r < m->ranks; r++)
        late = fmax(late, (double)session_rank(m->s, r)->late);
    m->out->late = m->n_samples > 0 ? fmin(late / (double)m->n_samples, 1) : NAN;
}

/* Finds the reason why sampling ended, the width of the interval, and the lost records. Without a
 * stop rule and without a failure, the number of samples is the requested one. */
static void make_stop(struct making *m)
{
    const struct stats *total = &run_total(m->out)->figures.ns;
    struct run_stop *stop = &m->out->stop;
    bool any_lost = false;

    stop->reason = m->s->notes->stop;
    stop->samples = m->n_samples;
    if (stop->reason == STOP_NOT && m->s->verb != VERB_VERIFY && m->n_samples == m->s->iterations)
        stop->reason = STOP_ITERATIONS;
    stop->ci95 = total->median > 0 ? (total->high - total->low) / total->median : NAN;
    m->out->lost = arena_alloc(m->out->arena, m->ranks * sizeof(*m->out->lost));
    for (uint32_t r = 0; r < m->ranks; r++) {
        m->out->lost[r] = !has_record(m, r);
        any_lost = any_lost || m->out->lost[r];
    }
    m->out->partial = m->n_samples > 0 && (any_lost || stop_name(stop->reason) == NULL);
}

/* Sums up the iterations that all ranks checked, elements of all ranks, and bytes of puts that were
 * compared with the plan. */
static void make_verify(struct making *m)
{
    const struct session *s = m->s;
    struct run_verify *v = &m->out->verify;
    uint64_t checked = UINT64_MAX;

    for (uint32_t r = 0; r < m->ranks; r++) {
        const struct session_rank *rank = session_rank(s, r);

        v->compared += rank->compared;
        v->wrong += rank->wrong;
        v->share.outputs += rank->share.outputs;
        v->share.compared += rank->share.compared;
        v->share.overflowed += rank->share.overflowed;
        v->share.widths += rank->share.widths;
        v->share.widest = fmax(v->share.widest, rank->share.widest);
        v->put_bytes += rank->put_bytes;
        if (has_record(m, r))
            checked = rank->checked < checked ? rank->checked : checked;
    }
    v->iterations = checked != UINT64_MAX ? checked : 0;
    if (v->share.compared + v->share.overflowed < v->share.outputs)
        v->partly = m->out->operation->partly;
    if (s->verb == VERB_BENCH && v->compared == 0)
        v->unchecked = v->share.overflowed > 0 ? "the right values of all outputs may overflow"
                       : !s->experiment->bench.check ? "bench.check is false"
                                                     : m->out->facts.notes->unchecked;
}

static void make_fault(struct making *m)
{
    const struct fault_options *planted = &m->s->experiment->fault;
    struct run_fault *fault = &m->out->fault;
    text_auto what = {0};

    if (!fault_is_planted(m->s->experiment))
        return;
    fault_describe(planted, &what);
    fault->text = arena_printf(m->out->arena, "%s", what.data);
    fault->counted = planted->rank < m->ranks && has_record(m, planted->rank);
    if (fault->counted)
        fault->struck = session_rank(m->s, planted->rank)->faults;
}

static void make_end(struct run_figures *out, const struct result *result,
                     const struct session *session)
{
    out->status = result_outcome(result);
    out->exit_code = exit_code(result->status, result->signal != 0 ? result->signal : SIGINT);
    if (result->status == EPA_OK)
        return;
    out->error = status_name(result->status);
    out->error_text = result_message(result, session, out->arena);
}

/* ---- the figures ---- */

static void init_making(struct making *m, const struct session *s, struct arena *arena)
{
    *m = (struct making){.s = s, .ranks = s->experiment->problem.ranks};
    m->n_samples = count_samples(m);
    m->rank_ns = arena_alloc(arena, m->ranks * m->n_samples * sizeof(*m->rank_ns));
    m->sample = arena_alloc(arena, m->n_samples * sizeof(*m->sample));
    m->sorted = arena_alloc(arena, m->n_samples * sizeof(*m->sorted));
    m->wins = arena_alloc(arena, m->ranks * sizeof(*m->wins));
}

struct run_figures *result_make(const struct result *result, const struct session *session,
                                const struct machine_facts *machine)
{
    struct arena *arena = arena_create(), *scratch = arena_create();
    struct run_figures *out = arena_alloc(arena, sizeof(*out));
    struct making m;

    init_making(&m, session, scratch);
    m.out = out;
    out->arena = arena;
    out->operation = session_operation(m.s);
    out->ranks = m.ranks;
    run_facts_copy(session, arena, &out->facts);
    for (uint32_t i = 0; i < out->operation->n_phases; i++)
        out->phase[i] = traffic_of(&m, i, i + 1);
    out->total = traffic_of(&m, 0, out->operation->n_phases);
    find_peaks(&m);
    out->limit = find_limit(out, &out->total, out->operation->n_phases);
    make_stages(&m);
    make_skew(&m);
    make_compute(&m);
    make_api(&m, false, &m.out->api);
    make_api(&m, true, &m.out->api_graph);
    make_kinds(&m);
    make_late(&m);
    make_stop(&m);
    make_verify(&m);
    make_fault(&m);
    make_end(out, result, session);
    arena_destroy(scratch);
    verdicts_make(out, m.s);
    result_warn(out, result, session, machine);
    return out;
}

void result_free(struct run_figures *f)
{
    if (f != NULL)
        arena_destroy(f->arena);
}
