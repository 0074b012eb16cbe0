/* A result as JSON: everything that the table says, all samples, and where they come from.
 * Numbers are numbers, times are whole nanoseconds, what was not measured is null, and text
 * that is no UTF-8 is made so: the document parses whatever happened.
 * share/epa2a-result.schema.json describes it. */
#include "report/report.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/experiment.h"
#include "report/report_json_parts.h"
#include "report/report_plugins.h"
#include "report/verdict.h"

static json_t *stats_json(struct build *b, const struct stats *s)
{
    json_t *o = json_object();

    set(b, o, "n", count(s->n));
    set(b, o, "min", whole(s->min));
    set(b, o, "median", whole(s->median));
    set(b, o, "p95", whole(s->p95));
    set(b, o, "p99", whole(s->p99));
    set(b, o, "p999", whole(s->p999));
    set(b, o, "max", whole(s->max));
    set(b, o, "mean", whole(s->mean));
    set(b, o, "stdev", whole(s->stdev));
    set(b, o, "mad", whole(s->mad));
    set(b, o, "ci95",
        isnan(s->low) ? json_null() : json_pack("[oo]", whole(s->low), whole(s->high)));
    set(b, o, "outliers", count(s->outliers));
    return o;
}

static json_t *stage_json(struct build *b, const struct result *result,
                          const struct result_stage *stage)
{
    json_t *o = json_object(), *samples = json_array(), *ranks = json_array(),
           *rate = json_object();

    set(b, rate, "goodput", real(stage->goodput));
    set(b, rate, "wire", real(stage->wire));
    set(b, rate, "bottleneck", real(stage->bottleneck));
    for (uint64_t i = 0; i < stage->slowest.n; i++)
        append(b, samples, whole(stage->sample[i]));
    for (uint32_t r = 0; result->session->block != NULL && r < result->session->experiment->ranks;
         r++) {
        json_t *rank = json_object();

        set(b, rank, "rank", count(r));
        set(b, rank, "min_ns", whole(stage->rank[r].min));
        set(b, rank, "median_ns", whole(stage->rank[r].median));
        set(b, rank, "p95_ns", whole(stage->rank[r].p95));
        set(b, rank, "max_ns", whole(stage->rank[r].max));
        append(b, ranks, rank);
    }
    set(b, o, "name", json_text(stage->name));
    set(b, o, "ns", stats_json(b, &stage->slowest));
    set(b, o, "cv", real(stage->slowest.cv));
    set(b, o, "rate", rate);
    set(b, o, "peak_ns", whole(stage->peak_ns));
    set(b, o, "of_peak", real(stage->peak_ns / stage->slowest.median));
    set(b, o, "ranks", ranks);
    set(b, o, "samples_ns", samples);
    return o;
}

static json_t *bytes_json(struct build *b, const struct result_traffic *t)
{
    json_t *o = json_object();

    set(b, o, "needed_bytes", real(t->needed));
    set(b, o, "wire_bytes", real(t->out));
    set(b, o, "bottleneck_bytes", real(t->bottleneck));
    set(b, o, "least_bytes", real(t->least));
    return o;
}

static json_t *traffic_json(struct build *b, const struct result *result)
{
    const struct operation *op = session_operation(result->session);
    json_t *o = json_object();

    for (uint32_t i = 0; i < op->n_phases; i++)
        set(b, o, op->phase[i].name, bytes_json(b, &result->phase[i]));
    set(b, o, "total", bytes_json(b, &result->total));
    return o;
}

/* Experts that have a stage of their own: what computes them, and at which rate. */
static json_t *experts_json(struct build *b, const struct result *result)
{
    const struct session *s = result->session;
    json_t *o;

    if (s->notes == NULL || s->notes->between_by[0] == '\0')
        return json_null();
    o = json_object();
    set(b, o, "by", json_text(s->notes->between_by));
    for (uint32_t i = 0; i < result->n_stages; i++)
        if (i < s->n_stages && s->stage_kind[i] == EPA_STAGE_EXPERTS)
            set(b, o, "flops_per_s", real(result->stage[i].flops));
    if (json_object_get(o, "flops_per_s") == NULL)
        set(b, o, "flops_per_s", json_null());
    return o;
}

/* What products and weights of an iteration take at least. */
static json_t *limit_json(struct build *b, const struct result_computing *c)
{
    json_t *o;

    if (!c->known)
        return json_null();
    o = json_object();
    set(b, o, "flops_per_s", real(c->flops_per_ns * 1e9));
    set(b, o, "flops_ns", whole(c->flops_ns));
    set(b, o, "weights_bytes", real(c->weights));
    set(b, o, "memory_bytes_per_s", real(c->bytes_per_ns * 1e9));
    set(b, o, "weights_ns", whole(c->weights_ns));
    return o;
}

/* Parts of the stage that ran alone. */
static json_t *parts_json(struct build *b, const struct result *result)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < result->n_parts; i++) {
        json_t *o = json_object();

        set(b, o, "name", json_string(result->session->notes->part[i]));
        set(b, o, "median_ns", whole(result->part_ns[i]));
        append(b, list, o);
    }
    return list;
}

/* What is computed; null: nothing. */
static json_t *compute_json(struct build *b, const struct result *result)
{
    json_t *o;

    if (!(result->flops > 0))
        return json_null();
    o = json_object();
    set(b, o, "flops", real(result->flops));
    set(b, o, "flops_per_s", real(result->stage[result->n_stages - 1].flops));
    set(b, o, "experts", experts_json(b, result));
    set(b, o, "limit", limit_json(b, &result->computing));
    set(b, o, "parts", parts_json(b, result));
    set(b, o, "hidden", result->n_parts > 0 ? real(result->hidden) : json_null());
    return o;
}

/* What a rank needs, by the algorithm's plan. */
static json_t *memory_json(struct build *b, const struct epa_footprint *f)
{
    json_t *o = json_object();

    set(b, o, "heap_bytes", count(f->heap_bytes));
    set(b, o, "private_bytes", count(f->private_bytes));
    set(b, o, "device_bytes", count(f->device_bytes));
    return o;
}

static json_t *skew_json(struct build *b, const struct result *result)
{
    json_t *o;

    if (result->n_samples == 0 || result->session->clock == CLOCK_END_TO_END)
        return json_null();
    o = json_object();
    set(b, o, "median_ns", whole(result->skew_ns));
    set(b, o, "straggler", count(result->straggler));
    set(b, o, "straggler_share", real(result->straggler_share));
    return o;
}

static json_t *arrivals_json(struct build *b, const struct result *result)
{
    const struct session *s = result->session;
    const struct bench_options *o = &s->experiment->bench;
    json_t *arrivals;

    if (!session_is_open(s))
        return json_null();
    arrivals = json_object();
    set(b, arrivals, "process",
        json_text(o->arrivals == ARRIVALS_POISSON ? "poisson" : "constant"));
    set(b, arrivals, "rate", real(s->arrivals.rate));
    set(b, arrivals, "closed_rate", real(s->arrivals.closed_rate));
    set(b, arrivals, "late", real(result_late(result)));
    return arrivals;
}

/* How times were taken; null where none were. */
static json_t *timing_json(struct build *b, const struct result *result)
{
    const struct session *s = result->session;
    bool wall = s->clock == CLOCK_END_TO_END;
    bool cold = s->verb == VERB_BENCH && s->experiment->bench.cache == CACHE_COLD;
    json_t *o;

    if (result_clock_name(result) == NULL)
        return json_null();
    o = json_object();
    set(b, o, "clock", json_text(result_clock_name(result)));
    set(b, o, "calls", count(s->clock == CLOCK_GRAPH ? session_calls(s) : 1));
    set(b, o, "cache", json_text(cold ? "cold" : "warm"));
    set(b, o, "total",
        json_text(s->clock == CLOCK_GRAPH || wall || session_is_open(s) ? "measured" : "sum"));
    set(b, o, "arrivals", arrivals_json(b, result));
    return o;
}

/* Why there are no more samples, and how sure their median is. */
static json_t *stop_json(struct build *b, const struct result *result)
{
    json_t *o = json_object();

    set(b, o, "reason", text_or_null(stop_name(result->stop)));
    set(b, o, "samples", count(result->n_samples));
    set(b, o, "ci95", real(result_ci95(result)));
    return o;
}

static json_t *verify_json(struct build *b, const struct result *result)
{
    json_t *o = json_object();

    set(b, o, "iterations", count(result->checked));
    set(b, o, "compared", count(result->compared));
    set(b, o, "wrong", count(result->wrong));
    set(b, o, "unchecked", text_or_null(result->unchecked));
    return o;
}

/* The trace that was written, and what noting it takes the busiest thread of an iteration. */
static json_t *profile_json(struct build *b, const struct result *result)
{
    const struct trace_written *t = &result->trace;
    json_t *o;

    if (t->path[0] == '\0')
        return json_null();
    o = json_object();
    set(b, o, "file", json_text(t->path));
    set(b, o, "iterations", count(t->iterations));
    set(b, o, "slices", count(t->slices));
    set(b, o, "flows", count(t->flows));
    set(b, o, "dropped", count(t->dropped));
    set(b, o, "clock_error_ns", real(t->error_ns));
    set(b, o, "event_ns", real(t->event_ns));
    set(b, o, "overhead_ns", real(t->event_ns * t->busiest));
    return o;
}

/* What `fault` planted and whether it struck; null: the run is a normal one. */
static json_t *fault_json(struct build *b, const struct result *result)
{
    const struct fault_options *f = &result->session->experiment->fault;
    uint64_t struck = 0;
    bool known = result_fault_struck(result, &struck);
    struct text what = {0};
    json_t *o;

    if (!fault_is_planted(result->session->experiment))
        return json_null();
    o = json_object();
    fault_describe(f, &what);
    set(b, o, "kind", json_text(fault_name(f)));
    set(b, o, "rank", count(f->rank));
    set(b, o, "text", json_text(what.data));
    set(b, o, "struck", known ? count(struck) : json_null());
    text_free(&what);
    return o;
}

static json_t *error_json(struct build *b, const struct result *result)
{
    json_t *o;

    if (result->status == EPA_OK && result->n_missed == 0)
        return json_null();
    o = json_object();
    set(b, o, "status",
        json_text(result->n_missed > 0 ? "missed" : result_status_name(result->status)));
    set(b, o, "text", json_text(result->error));
    return o;
}

/* What a script asks first, in words that do not grow with the causes. */
static const char *outcome(const struct result *result)
{
    if (result->n_missed > 0)
        return "missed";
    switch (result->status) {
    case EPA_OK:
    case EPA_ERR_MISMATCH:
    case EPA_ERR_TIMEOUT:
    case EPA_ERR_DIED:
    case EPA_ERR_INTERRUPTED:
        return result_status_name(result->status);
    default:
        return "failed";
    }
}

static json_t *result_json(struct build *b, const struct result *result)
{
    const struct session *s = result->session;
    const struct experiment *x = s->experiment;
    json_t *o = json_object(), *stages = json_array(), *warnings = json_array();

    for (uint32_t i = 0; i < result->n_stages; i++)
        append(b, stages, stage_json(b, result, &result->stage[i]));
    for (uint32_t i = 0; i < result->n_warnings; i++)
        append(b, warnings, json_text(result->warning[i]));
    set(b, o, "name", json_text(x->name));
    set(b, o, "file", json_text(x->file));
    set(b, o, "label", json_text(x->label != NULL ? x->label : x->name));
    set(b, o, "id", text_or_null(x->id));
    set(b, o, "verb", json_text(session_verb(s)));
    set(b, o, "operation", json_text(session_operation(s)->name));
    set(b, o, "status", json_text(outcome(result)));
    set(b, o, "exit_code", json_integer(result->exit_code));
    set(b, o, "error", error_json(b, result));
    set(b, o, "started", text_or_null(result->started));
    set(b, o, "elapsed_s", real(result->elapsed_s));
    set(b, o, "warmup", count(s->warmup));
    set(b, o, "iterations", count(s->iterations));
    set(b, o, "experiment", report_json_experiment(b, x));
    set(b, o, "context", report_json_context(b, result->facts));
    set(b, o, "machine", report_json_machine(b, result));
    set(b, o, "plugins", report_plugins(x));
    set(b, o, "world", report_json_world(b, s));
    set(b, o, "timing", timing_json(b, result));
    set(b, o, "stop", stop_json(b, result));
    set(b, o, "stages", stages);
    set(b, o, "skew", skew_json(b, result));
    if (session_operation(s)->stats_json != NULL)
        set(b, o, session_operation(s)->stats_key,
            s->stats != NULL ? session_operation(s)->stats_json(s->stats, s->source) : json_null());
    set(b, o, "traffic", traffic_json(b, result));
    set(b, o, "compute", compute_json(b, result));
    set(b, o, "memory", memory_json(b, &s->footprint));
    set(b, o, "verify", verify_json(b, result));
    set(b, o, "expect", verdicts_json(result));
    set(b, o, "fault", fault_json(b, result));
    set(b, o, "profile", profile_json(b, result));
    set(b, o, "warnings", warnings);
    return o;
}

enum epa_status report_json_add(struct text *out, const struct result *result,
                                struct epa_error *err)
{
    struct build b = {false};
    json_t *o = result_json(&b, result);
    char *dump = b.lost ? NULL : json_dumps(o, JSON_INDENT(1) | JSON_REAL_PRECISION(9));

    json_decref(o);
    if (dump == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for a result as JSON");
    text_add(out, "%s%s", out->bytes == 0 ? "" : ",\n", dump);
    free(dump);
    return EPA_OK;
}
