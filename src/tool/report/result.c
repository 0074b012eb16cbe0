/* Turns the raw times of a session into a result. A sample is the slowest rank of an iteration,
 * because a layer ends with its last rank. Statistics cover only iterations that all ranks
 * finished. */
#include "report/figures.h"
#include "report/result.h"

#include <math.h>
#include <signal.h>
#include <string.h>

#include "base/exit_code.h"
#include "base/memory.h"
#include "base/stats.h"
#include "base/sysfile.h"
#include "config/experiment.h"
#include "report/verdicts.h"
#include "report/warnings.h"
#include "report/outcome.h"
#include "report/origin.h"
#include "report/result_parts.h"
#include "session/rows.h"

/* A measured time this far below its limit shows that the limit was measured too high. */
static const double BEATEN = 1.03;

/* Bytes of one iteration. */
struct traffic {
    double needed, out; /* means over ranks: payload; sent bytes */
    double bottleneck;  /* of the busiest rank: the larger of sent and received bytes */
    double least;       /* of the busiest rank: lower bound for any algorithm */
};

/* The session, figures derived from it, and scratch memory. */
struct making {
    const struct session *s;
    const struct operation *op;
    uint32_t ranks;
    uint64_t n_samples; /* iterations that all ranks with a record finished */
    struct traffic phase[OP_PHASES], total;
    double flops;                /* of a rank in an iteration, mean; 0: no computation */
    double expert_flops;         /* per second, of experts with a stage; NaN: unknown */
    struct peak links;           /* of the fastest rank; 0: unknown */
    struct op_peaks peaks;       /* of the rank with the best computation; 0: unknown */
    double weights;              /* bytes that the busiest rank reads in an iteration */
    double flops_ns, weights_ns; /* lower bounds of the computation time */
    double *rank_ns;             /* [ranks][n_samples], of the current stage */
    double *sample, *sorted;     /* [n_samples] */
    uint32_t *wins;              /* [ranks]: samples in which the rank was slowest */
};

int result_exit_code(const json_t *result)
{
    return (int)json_integer_value(json_object_get(result, "exit_code"));
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

static bool links_known(const struct making *m)
{
    return m->links.latency_ns > 0 || m->links.bytes_per_ns > 0;
}

/* Returns a row of `n` gathered samples. Bytes per nanosecond are GB/s; a message costs the latency
 * of a link in each phase. `traffic` NULL: the traffic of the row is unknown. */
static json_t *stage_json(struct making *m, const char *name, uint64_t n,
                          const struct traffic *traffic, bool experts)
{
    bool all = traffic == &m->total, beaten;
    double peak_ns = NAN, median;
    json_t *samples = json_array(), *ranks = json_array(), *out;
    struct stage_figures of;

    for (uint64_t k = 0; k < n; k++)
        json_array_append_new(samples, json_whole(m->sample[k]));
    for (uint32_t r = 0; r < m->ranks; r++) {
        bool counts = r < count_timed_ranks(m) && has_record(m, r);
        struct stats rank = stats_of(m->rank_ns + r * n, counts ? n : 0, m->sorted);

        json_array_append_new(
            ranks, json_object_of("rank", json_count(r), "min_ns", json_whole(rank.min),
                                  "median_ns", json_whole(rank.median), "p95_ns",
                                  json_whole(rank.p95), "max_ns", json_whole(rank.max), NULL));
    }
    of.ns = stats_of(m->sample, n, m->sorted);
    median = of.ns.median > 0 ? of.ns.median : NAN;
    if (traffic != NULL && links_known(m))
        peak_ns = (all ? m->op->n_phases : 1) * m->links.latency_ns +
                  (m->links.bytes_per_ns > 0 ? traffic->least / m->links.bytes_per_ns : 0);
    if (!(peak_ns > 0)) /* no traffic, and no known latency */
        peak_ns = NAN;
    if (experts || all) /* fmax() ignores NaN */
        peak_ns = fmax(peak_ns, fmax(m->flops_ns, m->weights_ns));
    if (experts)
        m->expert_flops = m->flops / median * 1e9;
    /* A limit above the measured rate is invalid: other load used the cores during its
     * measurement. */
    beaten = peak_ns > BEATEN * median;
    of.goodput = traffic != NULL ? traffic->needed / median : NAN;
    of.wire = traffic != NULL ? traffic->out / median : NAN;
    of.bottleneck = traffic != NULL ? traffic->bottleneck / median : NAN;
    of.peak_ns = beaten ? NAN : peak_ns;
    of.of_peak = beaten ? NAN : peak_ns / median;
    out = json_object_of("name", json_text(name), NULL);
    figures_write(out, &of);
    json_object_set_new(out, "beaten", json_boolean(beaten));
    json_object_set_new(out, "ranks", ranks);
    json_object_set_new(out, "samples_ns", samples);
    return out;
}

/* Returns the traffic of all stages of a kind; NULL: unknown. */
static const struct traffic *kind_traffic(const struct making *m, enum epa_stage_kind kind)
{
    if (kind == EPA_STAGE_WHOLE)
        return &m->total;
    for (uint32_t i = 0; i < m->op->n_phases; i++)
        if (m->op->phase[i].kind == kind)
            return &m->phase[i];
    return NULL;
}

/* Returns the traffic of one stage: known only if no other stage has its kind. */
static const struct traffic *stage_traffic(const struct making *m, uint32_t stage)
{
    const struct session *s = m->s;
    uint32_t alike = 0;

    for (uint32_t i = 0; i < s->notes->n_stages; i++)
        alike += s->notes->stage_kind[i] == s->notes->stage_kind[stage];
    if (alike != 1 || (stage > 0 && s->notes->stage_kind[stage - 1] == EPA_STAGE_SEND))
        return NULL;
    return kind_traffic(m, s->notes->stage_kind[stage]);
}

/* Returns a row for each stage; the last is of whole iterations. A queue moves no data. */
static json_t *stages_json(struct making *m)
{
    const struct session_notes *notes = m->s->notes;
    struct session_row row[SESSION_ROWS];
    uint32_t n = session_rows(m->s, notes->n_stages, row);
    json_t *stages = json_array();

    for (uint32_t i = 0; i < n; i++) {
        bool measured = notes->clock != CLOCK_GRAPH || !notes->not_alone[row[i].first];
        uint64_t samples = measured ? m->n_samples : 0;

        gather_times(m, &row[i], samples);
        json_array_append_new(stages, stage_json(m, row[i].name, samples,
                                                 row[i].is_stage ? stage_traffic(m, row[i].first)
                                                                 : kind_traffic(m, row[i].kind),
                                                 row[i].kind == EPA_STAGE_EXPERTS));
    }
    return stages;
}

/* Returns the skew from the times of whole iterations, which were gathered last. */
static json_t *skew_json(struct making *m)
{
    uint64_t n = m->n_samples;
    uint32_t worst, first = 0;

    if (n == 0 || m->s->notes->clock == CLOCK_END_TO_END)
        return json_null();
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
    return json_object_of("median_ns", json_whole(stats_of(m->sample, n, m->sorted).median),
                          "straggler", json_count(worst), "straggler_share",
                          json_number((double)m->wins[worst] / (double)n), NULL);
}

/* ---- traffic and computation ---- */

/* Returns the means over ranks with counters, in phases `first` to `last - 1`. */
static struct traffic traffic_of(const struct making *m, uint32_t first, uint32_t last)
{
    struct traffic sum = {0, 0, 0, 0};
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
        sum.out += (double)all.sent / times / counted;
        sum.bottleneck = fmax(sum.bottleneck,
                              (double)(all.received > all.sent ? all.received : all.sent) / times);
        sum.least = fmax(sum.least, (double)all.least / times);
    }
    return sum;
}

/* Finds the best link and GEMM peak of all ranks, so that percentages of peak are not too high, and
 * the most operations of any rank. A single rank has no links. */
static void find_peaks(struct making *m)
{
    double most = 0;

    for (uint32_t r = 0; r < m->ranks; r++) {
        const struct session_rank *rank = session_rank(m->s, r);
        double times = (double)rank->traffic_n, latency = rank->peak.latency_ns;

        if (m->ranks > 1)
            m->links.bytes_per_ns = fmax(m->links.bytes_per_ns, rank->peak.bytes_per_ns);
        if (m->ranks > 1 && latency > 0 &&
            (!(m->links.latency_ns > 0) || latency < m->links.latency_ns))
            m->links.latency_ns = latency;
        m->peaks.flops_per_ns = fmax(m->peaks.flops_per_ns, rank->peaks.flops_per_ns);
        m->peaks.bytes_per_ns = fmax(m->peaks.bytes_per_ns, rank->peaks.bytes_per_ns);
        if (rank->traffic_n == 0)
            continue;
        m->flops += rank->traffic.flops / times / m->ranks;
        most = fmax(most, rank->traffic.flops / times);
        m->weights = fmax(m->weights, (double)rank->traffic.weights / times);
    }
    m->flops_ns = m->weights_ns = m->expert_flops = NAN;
    if (!(m->peaks.flops_per_ns > 0 && m->peaks.bytes_per_ns > 0))
        return;
    m->flops_ns = most / m->peaks.flops_per_ns;
    m->weights_ns = m->weights / m->peaks.bytes_per_ns;
}

static json_t *bytes_json(const struct traffic *t)
{
    return json_object_of("needed_bytes", json_number(t->needed), "wire_bytes", json_number(t->out),
                          "bottleneck_bytes", json_number(t->bottleneck), "least_bytes",
                          json_number(t->least), NULL);
}

static json_t *traffic_json(const struct making *m)
{
    json_t *out = json_object();

    for (uint32_t i = 0; i < m->op->n_phases; i++)
        json_object_set_new(out, m->op->phase[i].name, bytes_json(&m->phase[i]));
    json_object_set_new(out, "total", bytes_json(&m->total));
    return out;
}

static json_t *links_json(const struct making *m)
{
    if (!links_known(m))
        return json_null();
    return json_object_of(
        "rate", json_number(m->links.bytes_per_ns > 0 ? m->links.bytes_per_ns : NAN), "latency_ns",
        json_number(m->links.latency_ns > 0 ? m->links.latency_ns : NAN), NULL);
}

/* Returns the parts of the stage that ran alone: medians of the slowest rank. *hidden: share of the
 * shortest part that is hidden behind the others; NaN: unknown. */
static json_t *parts_json(const struct making *m, double total, double *hidden)
{
    json_t *parts = json_array();
    double sum = 0, shorter = INFINITY;

    *hidden = NAN;
    if (session_rank(m->s, 0)->part_ns[0] <= 0)
        return parts;
    for (uint32_t i = 0; i < m->s->notes->n_parts; i++) {
        double ns = 0;

        for (uint32_t r = 0; r < m->ranks; r++)
            ns = fmax(ns, session_rank(m->s, r)->part_ns[i]);
        sum += ns;
        shorter = fmin(shorter, ns);
        json_array_append_new(parts, json_object_of("name", json_text(m->s->notes->part[i]),
                                                    "median_ns", json_whole(ns), NULL));
    }
    if (total > 0 && shorter > 0)
        *hidden = fmin(fmax((sum - total) / shorter, 0), 1);
    return parts;
}

/* Returns the operations of an iteration, and lower bounds of their time; null: the algorithm
 * computes nothing. */
static json_t *compute_json(const struct making *m, const json_t *total)
{
    const struct session *s = m->s;
    json_t *experts = json_null(), *limit = json_null(), *parts;
    double median = json_number_at(total, "ns.median"), hidden;

    if (!(m->flops > 0))
        return json_null();
    if (session_is_open(s) || !(median > 0))
        median = NAN;
    if (s->notes->between_by[0] != '\0')
        experts = json_object_of("by", json_text(s->notes->between_by), "flops_per_s",
                                 json_number(m->expert_flops), NULL);
    if (!isnan(m->flops_ns))
        limit = json_object_of(
            "flops_per_s", json_number(m->peaks.flops_per_ns * 1e9), "flops_ns",
            json_whole(m->flops_ns), "weights_bytes", json_number(m->weights), "memory_bytes_per_s",
            json_number(m->peaks.bytes_per_ns * 1e9), "weights_ns", json_whole(m->weights_ns),
            "links_ns",
            json_whole(m->links.bytes_per_ns > 0 ? m->total.least / m->links.bytes_per_ns : NAN),
            NULL);
    parts = parts_json(m, json_number_at(total, "ns.median"), &hidden);
    return json_object_of(
        "flops", json_number(m->flops), "flops_per_s", json_number(m->flops / median * 1e9), "by",
        json_text_or_null(s->notes != NULL ? s->notes->products_by : NULL), "experts", experts,
        "limit", limit, "parts", parts, "hidden", json_number(hidden), NULL);
}

/* ---- clock, checks and end ---- */

/* Returns the calls of the public interface and their overhead: means over ranks. */
static json_t *api_json(const struct making *m)
{
    const struct session_notes *notes = m->s->notes;
    struct session_overhead sum = {.turns = 0};
    double n = m->ranks;

    for (uint32_t r = 0; r < m->ranks && notes->api_calls > 0; r++) {
        const struct session_overhead *o = &session_rank(m->s, r)->overhead;

        sum.public_ns += o->public_ns;
        sum.direct_ns += o->direct_ns;
        sum.overhead_ns += o->overhead_ns;
        sum.turns = r == 0 || o->turns < sum.turns ? o->turns : sum.turns;
    }
    if (sum.turns == 0)
        return json_null();
    return json_object_of("calls", json_count(notes->api_calls), "turns", json_count(sum.turns),
                          "api_ns", json_number(sum.public_ns / n), "direct_ns",
                          json_number(sum.direct_ns / n), "overhead_ns",
                          json_number(sum.overhead_ns / n / notes->api_calls), NULL);
}

/* Returns the method of time measurement; null without times. */
static json_t *timing_json(const struct making *m)
{
    static const char *const clock[] = {[CLOCK_HOST] = "host",
                                        [CLOCK_EVENTS] = "events",
                                        [CLOCK_GRAPH] = "graph",
                                        [CLOCK_END_TO_END] = "end_to_end"};
    const struct session *s = m->s;
    const struct bench_options *o = &s->experiment->bench;
    bool open = session_is_open(s), graph = s->notes->clock == CLOCK_GRAPH;
    bool cold = s->verb == VERB_BENCH && o->cache == CACHE_COLD;
    json_t *arrivals = json_null();
    double late = 0; /* samples that were due before the rank could begin, of the latest rank */

    if (clock[s->notes->clock] == NULL)
        return json_null();
    for (uint32_t r = 0; r < m->ranks; r++)
        late = fmax(late, (double)session_rank(s, r)->late);
    if (open)
        arrivals = json_object_of(
            "process", json_text(o->arrivals == ARRIVALS_POISSON ? "poisson" : "constant"), "rate",
            json_number(s->notes->arrivals.rate), "closed_rate",
            json_number(s->notes->arrivals.closed_rate), "late",
            json_number(m->n_samples > 0 ? fmin(late / (double)m->n_samples, 1) : NAN), NULL);
    return json_object_of(
        "clock", json_text(clock[s->notes->clock]), "calls",
        json_count(graph ? session_calls(s) : 1), "cache", json_text(cold ? "cold" : "warm"),
        "total",
        json_text(graph || s->notes->clock == CLOCK_END_TO_END || open ? "measured" : "sum"),
        "arrivals", arrivals, NULL);
}

/* Returns the reason why sampling ended, and the width of the 95 % interval of the last row's
 * median relative to the median. Without a stop rule and without a failure, the number of samples
 * is the requested one. */
static json_t *stop_json(const struct making *m, const json_t *total)
{
    double median = json_number_at(total, "ns.median");
    double width = json_number_at(total, "ns.ci95.1") - json_number_at(total, "ns.ci95.0");
    enum stop_reason stop = m->s->notes->stop;

    if (stop == STOP_NOT && m->s->verb != VERB_VERIFY && m->n_samples == m->s->iterations)
        stop = STOP_ITERATIONS;
    return json_object_of("reason", json_text_or_null(stop_name(stop)), "samples",
                          json_count(m->n_samples), "ci95",
                          json_number(median > 0 ? width / median : NAN), NULL);
}

/* Returns the remaining samples of a run that ended early or lost records; null: all samples exist,
 * or none. */
static json_t *partial_json(const struct making *m, const json_t *stop)
{
    bool early = json_is_null(json_object_get(stop, "reason"));
    json_t *lost;

    if (m->n_samples == 0)
        return json_null();
    lost = json_array();
    for (uint32_t r = 0; r < m->ranks; r++)
        if (!has_record(m, r))
            json_array_append_new(lost, json_count(r));
    if (early || json_array_size(lost) > 0)
        return json_object_of("samples", json_count(m->n_samples), "lost_ranks", lost, NULL);
    json_decref(lost);
    return json_null();
}

/* Returns the iterations that all ranks checked, elements of all ranks, and the reason if bench
 * checked none; bytes of puts that were compared with the plan, and the reason if none were. */
static json_t *verify_json(const struct making *m)
{
    const struct session *s = m->s;
    uint64_t checked = UINT64_MAX, compared = 0, wrong = 0, put = 0;
    struct op_share share = {0};
    bool counts = s->verb == VERB_VERIFY;
    const char *unchecked = NULL;

    for (uint32_t r = 0; r < m->ranks; r++) {
        const struct session_rank *rank = session_rank(s, r);

        compared += rank->compared;
        wrong += rank->wrong;
        share.outputs += rank->share.outputs;
        share.compared += rank->share.compared;
        share.overflowed += rank->share.overflowed;
        share.widths += rank->share.widths;
        share.widest = fmax(share.widest, rank->share.widest);
        put += rank->put_bytes;
        if (has_record(m, r))
            checked = rank->checked < checked ? rank->checked : checked;
    }
    checked = checked != UINT64_MAX ? checked : 0;
    if (s->verb == VERB_BENCH && compared == 0)
        unchecked = share.overflowed > 0          ? "the right values of all outputs may overflow"
                    : !s->experiment->bench.check ? "bench.check is false"
                                                  : s->notes->unchecked;
    return json_object_of(
        "iterations", json_count(checked), "compared", json_count(compared), "wrong",
        json_count(wrong), "outputs", json_count(share.outputs), "outputs_compared",
        json_count(share.compared), "outputs_overflowed", json_count(share.overflowed),
        "outputs_bound", json_number(share.compared > 0 ? share.widest : NAN), "outputs_mean_bound",
        json_number(share.compared > 0 ? share.widths / (double)share.compared : NAN),
        "outputs_partly",
        json_text_or_null(share.compared + share.overflowed < share.outputs ? m->op->partly : NULL),
        "unchecked", json_text_or_null(unchecked), "put_bytes",
        counts ? json_count(put) : json_null(), "uncounted",
        json_text_or_null(counts ? s->uncounted : NULL), NULL);
}

static json_t *quota_json(const struct cpu_quota *quota)
{
    if (!(quota->cores > 0))
        return json_null();
    return json_object_of("cores", json_number(quota->cores), "stops", json_count(quota->stops),
                          "stopped_ns", json_count(quota->stopped_ns), NULL);
}

/* ---- the result ---- */

static json_t *make_result(struct making *m, const struct result *result, const struct facts *facts)
{
    const struct session *s = m->s;
    const struct experiment *x = s->experiment;
    const struct epa_footprint *f = &s->footprint;
    json_t *out, *stages, *total, *machine;

    for (uint32_t i = 0; i < m->op->n_phases; i++)
        m->phase[i] = traffic_of(m, i, i + 1);
    m->total = traffic_of(m, 0, m->op->n_phases);
    find_peaks(m);
    stages = stages_json(m);
    total = json_array_get(stages, json_array_size(stages) - 1);
    out = json_object_of(
        "name", json_text(x->name), "file", json_text(x->file), "label",
        json_text(x->label != NULL ? x->label : x->name), "id", json_text_or_null(x->id), "run",
        json_text_or_null(x->run_name), "verb", json_text(session_verb(s)), "operation",
        json_text(m->op->name), "status", json_text(result_outcome(result)), "exit_code",
        json_integer(exit_code(result->status, result->signal != 0 ? result->signal : SIGINT)),
        "error", result_error(result), "started", result_time(result->started), "elapsed_s",
        json_number(result->elapsed_s), "warmup", json_count(s->warmup), "iterations",
        json_count(s->iterations), NULL);
    result_put_origin(out, s, facts);
    machine = json_object_get(out, "machine");
    json_object_set_new(machine, "device", result_facts(&session_rank(s, 0)->device));
    json_object_set_new(machine, "links", links_json(m));
    json_object_set_new(out, "world", result_world(s));
    json_object_set_new(out, "timing", timing_json(m));
    if (x->api != API_NONE)
        json_object_set_new(out, "api", api_json(m));
    json_object_set_new(out, "stop", stop_json(m, total));
    json_object_set_new(out, "partial", partial_json(m, json_object_get(out, "stop")));
    json_object_set_new(out, "stages", stages);
    json_object_set_new(out, "skew", skew_json(m));
    if (m->op->stats_json != NULL)
        json_object_set_new(out, m->op->stats_key, m->op->stats_json(s->stats, s->source));
    json_object_set_new(out, "delivers",
                        m->op->delivers != NULL ? m->op->delivers(&x->problem, f) : json_null());
    json_object_set_new(out, "traffic", traffic_json(m));
    json_object_set_new(out, "compute", compute_json(m, total));
    json_object_set_new(out, "memory",
                        json_object_of("heap_bytes", json_count(f->heap_bytes), "private_bytes",
                                       json_count(f->private_bytes), "device_bytes",
                                       json_count(f->device_bytes), NULL));
    json_object_set_new(out, "cpu_quota", quota_json(&result->quota));
    json_object_set_new(out, "verify", verify_json(m));
    json_object_set_new(out, "expect", json_array());
    json_object_set_new(out, "fault", result_fault(s));
    json_object_set_new(out, "profile", result_profile(&result->trace));
    json_object_set_new(out, "warnings", json_array());
    return out;
}

static void init_making(struct making *m, const struct session *s, struct arena *arena)
{
    *m = (struct making){.s = s, .op = session_operation(s), .ranks = s->experiment->problem.ranks};
    m->n_samples = count_samples(m);
    m->rank_ns = arena_alloc(arena, m->ranks * m->n_samples * sizeof(*m->rank_ns));
    m->sample = arena_alloc(arena, m->n_samples * sizeof(*m->sample));
    m->sorted = arena_alloc(arena, m->n_samples * sizeof(*m->sorted));
    m->wins = arena_alloc(arena, m->ranks * sizeof(*m->wins));
}

uint64_t result_samples(const struct session *s, struct arena *arena, double **out)
{
    struct session_row total = session_total(s);
    struct making m;

    init_making(&m, s, arena);
    gather_times(&m, &total, m.n_samples);
    *out = m.sample;
    return m.n_samples;
}

json_t *result_make(const struct result *result, const struct facts *facts)
{
    struct arena *arena = arena_create();
    struct making m;
    json_t *out;

    init_making(&m, result->session, arena);
    out = make_result(&m, result, facts);
    arena_destroy(arena);
    verdicts_make(out, result->session);
    result_warn(out, result->session);
    return out;
}
