/* A result as JSON: everything that the table says, all samples, and where they come from.
 * Numbers are numbers, times are whole nanoseconds, what was not measured is null, and text
 * that is no UTF-8 is made so: the document parses whatever happened.
 * share/epa2a-result.schema.json describes it. */
#include "report/report.h"
#include "report/report_plugins.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report/verdict.h"

/* Set once memory ran out anywhere: no document then, rather than one with holes. */
struct build {
    bool lost;
};

static void set(struct build *b, json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) != 0)
        b->lost = true;
}

static void append(struct build *b, json_t *array, json_t *value)
{
    if (json_array_append_new(array, value) != 0)
        b->lost = true;
}

/* Host names, paths and the environment may hold any bytes. */
static json_t *text(const char *bytes)
{
    json_t *value = json_string(bytes);
    char *clean;

    if (value != NULL || (clean = strdup(bytes)) == NULL)
        return value;
    for (char *c = clean; *c != 0; c++)
        *c = (unsigned char)*c >= 0x80 ? '?' : *c;
    value = json_string(clean);
    free(clean);
    return value;
}

static json_t *text_or_null(const char *bytes)
{
    return bytes != NULL && bytes[0] != 0 ? text(bytes) : json_null();
}

static json_t *count(uint64_t n)
{
    return json_integer((json_int_t)n);
}

/* 0 stands for "could not be read" in facts. */
static json_t *count_or_null(uint64_t n)
{
    return n != 0 ? count(n) : json_null();
}

static json_t *real(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *whole(double x)
{
    return isfinite(x) ? json_integer((json_int_t)llround(x)) : json_null();
}

/* The experiment: "moe.hidden" goes into the object "moe". */
struct nest {
    struct build *build;
    json_t *root;
};

/* A number, boolean or list of numbers as it stands in YAML is one in JSON too; anything
 * else, such as 5s or 64KiB, is told as text. */
static json_t *scalar(const char *value, bool quoted)
{
    json_t *parsed = quoted ? NULL : json_loads(value, JSON_DECODE_ANY, NULL);

    return parsed != NULL ? parsed : text(value);
}

static void nest_value(void *arg, const char *key, const char *value, bool quoted)
{
    struct nest *nest = arg;
    json_t *at = nest->root;
    const char *dot;

    for (; (dot = strchr(key, '.')) != NULL; key = dot + 1) {
        json_t *next = json_object_getn(at, key, (size_t)(dot - key));

        if (next == NULL) {
            next = json_object();
            if (json_object_setn_new(at, key, (size_t)(dot - key), next) != 0) {
                nest->build->lost = true;
                return;
            }
        }
        at = next;
    }
    set(nest->build, at, key, scalar(value, quoted));
}

static json_t *experiment_json(struct build *b, const struct experiment *x)
{
    struct nest nest = {b, json_object()};

    experiment_visit(x, nest_value, &nest);
    return nest.root;
}

static json_t *environment_json(struct build *b, const struct facts *f)
{
    json_t *o = json_object();

    for (uint32_t i = 0; i < f->n_environment; i++) {
        const char *equals = strchr(f->environment[i], '=');
        char name[256];

        snprintf(name, sizeof(name), "%.*s", (int)(equals - f->environment[i]),
                 f->environment[i]);
        set(b, o, name, text(equals + 1));
    }
    return o;
}

static json_t *build_json(struct build *b, const struct facts *f)
{
    json_t *o = json_object();

    set(b, o, "version", text(f->version));
    set(b, o, "git", text_or_null(f->git));
    set(b, o, "plugin_abi", count(EPA_ABI));
    set(b, o, "compiler", text(f->compiler));
    set(b, o, "type", text(f->build_type));
    set(b, o, "sanitizers", text(f->sanitizers));
    set(b, o, "debug", json_boolean(f->debug_build));
    set(b, o, "libc", text(f->libc));
    set(b, o, "isa", text(f->isa));
    return o;
}

/* What a rank said of its device or of its transport. */
static json_t *facts_json(struct build *b, const struct session_facts *facts)
{
    json_t *o;

    if (facts->n == 0)
        return json_null();
    o = json_object();
    for (uint32_t i = 0; i < facts->n; i++)
        set(b, o, facts->fact[i].key, text(facts->fact[i].value));
    return o;
}

static json_t *links_json(struct build *b, const struct result_limit *limit)
{
    json_t *o;

    if (!limit->known)
        return json_null();
    o = json_object();
    set(b, o, "rate", limit->bytes_per_ns > 0 ? real(limit->bytes_per_ns) : json_null());
    set(b, o, "latency_ns", real(limit->latency_ns));
    return o;
}

static json_t *machine_json(struct build *b, const struct result *result)
{
    const struct facts *f = result->facts;
    const struct session *s = result->session;
    json_t *o = json_object();

    set(b, o, "host", text_or_null(f->host));
    set(b, o, "kernel", text_or_null(f->kernel));
    set(b, o, "arch", text_or_null(f->arch));
    set(b, o, "cpu", text_or_null(f->cpu));
    set(b, o, "cores", count(f->cores));
    set(b, o, "sockets", count_or_null(f->sockets));
    set(b, o, "numa_nodes", count_or_null(f->numa_nodes));
    set(b, o, "threads_per_core", count_or_null(f->threads_per_core));
    set(b, o, "l1d_bytes", count_or_null(f->l1d_bytes));
    set(b, o, "l2_bytes", count_or_null(f->l2_bytes));
    set(b, o, "l3_bytes", count_or_null(f->l3_bytes));
    set(b, o, "memory_bytes", count_or_null(f->memory_bytes));
    set(b, o, "governor", text_or_null(f->governor));
    set(b, o, "clocksource", text_or_null(f->clocksource));
    set(b, o, "timer_ns", real(f->timer_ns));
    set(b, o, "huge_pages", text_or_null(f->huge_pages));
    set(b, o, "shmem_huge_pages", text_or_null(f->shmem_huge_pages));
    set(b, o, "load_average", real(f->load_average));
    set(b, o, "device",
        s->block != NULL ? facts_json(b, &session_rank(s, 0)->device) : json_null());
    set(b, o, "links", links_json(b, &result->limit));
    set(b, o, "build", build_json(b, f));
    set(b, o, "environment", environment_json(b, f));
    return o;
}

static json_t *rank_json(struct build *b, const struct session *s, uint32_t r)
{
    const struct session_rank *rank = session_rank(s, r);
    json_t *o = json_object();
    char words[sizeof(rank->text) + 1];

    snprintf(words, sizeof(words), "%.*s", (int)sizeof(rank->text), rank->text);
    set(b, o, "rank", count(r));
    set(b, o, "pid", count_or_null((uint64_t)rank->pid));
    set(b, o, "host", text_or_null(rank->host));
    set(b, o, "node", count(rank->node));
    set(b, o, "core", rank->core >= 0 ? count((uint64_t)rank->core) : json_null());
    set(b, o, "device", facts_json(b, &rank->device));
    set(b, o, "transport", facts_json(b, &rank->transport));
    set(b, o, "samples", count(rank->samples));
    set(b, o, "first_ns", rank->first_ns > 0 ? whole(rank->first_ns) : json_null());
    set(b, o, "status", text(result_status_name(rank->status)));
    set(b, o, "error", rank->status != EPA_OK ? text_or_null(words) : json_null());
    return o;
}

static json_t *world_json(struct build *b, const struct session *s)
{
    json_t *o = json_object(), *ranks = json_array();

    set(b, o, "size", count(s->experiment->ranks));
    set(b, o, "launcher", text(s->experiment->launcher.plugin->name));
    set(b, o, "started_by", text_or_null(s->place.how));
    for (uint32_t r = 0; s->block != NULL && r < s->experiment->ranks; r++)
        append(b, ranks, rank_json(b, s, r));
    set(b, o, "ranks", ranks);
    return o;
}

static json_t *stats_json(struct build *b, const struct stats *s)
{
    json_t *o = json_object();

    set(b, o, "n", count(s->n));
    set(b, o, "min", whole(s->min));
    set(b, o, "median", whole(s->median));
    set(b, o, "p95", whole(s->p95));
    set(b, o, "p99", whole(s->p99));
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
    set(b, rate, "bus", real(stage->bus));
    for (uint64_t i = 0; i < stage->slowest.n; i++)
        append(b, samples, whole(stage->sample[i]));
    for (uint32_t r = 0;
         result->session->block != NULL && r < result->session->experiment->ranks; r++) {
        json_t *rank = json_object();

        set(b, rank, "rank", count(r));
        set(b, rank, "min_ns", whole(stage->rank[r].min));
        set(b, rank, "median_ns", whole(stage->rank[r].median));
        set(b, rank, "p95_ns", whole(stage->rank[r].p95));
        set(b, rank, "max_ns", whole(stage->rank[r].max));
        append(b, ranks, rank);
    }
    set(b, o, "name", text(stage->name));
    set(b, o, "ns", stats_json(b, &stage->slowest));
    set(b, o, "rate", rate);
    set(b, o, "limit_ns", whole(stage->limit_ns));
    set(b, o, "of_limit", real(stage->limit_ns / stage->slowest.median));
    set(b, o, "ranks", ranks);
    set(b, o, "samples_ns", samples);
    return o;
}

static json_t *traffic_json(struct build *b, const struct result *result)
{
    const struct result_traffic *const part[] = {&result->dispatch, &result->combine,
                                                 &result->total};
    static const char *const name[] = {"dispatch", "combine", "total"};
    json_t *o = json_object();

    for (size_t i = 0; i < 3; i++) {
        json_t *bytes = json_object();

        set(b, bytes, "needed_bytes", real(part[i]->needed));
        set(b, bytes, "wire_bytes", real(part[i]->out));
        set(b, bytes, "bus_bytes", real(part[i]->bus));
        set(b, bytes, "least_bytes", real(part[i]->least));
        set(b, o, name[i], bytes);
    }
    return o;
}

static json_t *spread_json(struct build *b, uint64_t min, double mean, uint64_t max,
                           double imbalance)
{
    json_t *o = json_object();

    set(b, o, "min", count(min));
    set(b, o, "mean", real(mean));
    set(b, o, "max", count(max));
    set(b, o, "imbalance", real(imbalance));
    return o;
}

static json_t *routing_json(struct build *b, const struct session *s)
{
    const struct routing_stats *r = s->routing_stats;
    json_t *o;

    if (r == NULL || r->iterations == 0)
        return json_null();
    o = json_object();
    set(b, o, "iterations", count(r->iterations));
    set(b, o, "tokens", count(r->tokens));
    set(b, o, "choices", count(r->choices));
    set(b, o, "dropped", count(r->dropped));
    set(b, o, "tokens_per_expert",
        spread_json(b, r->expert_min, r->expert_mean, r->expert_max, r->expert_imbalance));
    set(b, o, "tokens_per_rank",
        spread_json(b, r->rank_min, r->rank_mean, r->rank_max, r->rank_imbalance));
    set(b, o, "file_tokens",
        s->routing != NULL ? count(routing_tokens(s->routing)) : json_null());
    return o;
}

static json_t *skew_json(struct build *b, const struct result *result)
{
    json_t *o;

    if (result->n_samples == 0 || result->session->clock == CLOCK_WALL_COLD)
        return json_null();
    o = json_object();
    set(b, o, "median_ns", whole(result->skew_ns));
    set(b, o, "straggler", count(result->straggler));
    set(b, o, "straggler_share", real(result->straggler_share));
    return o;
}

/* How times were taken; null where none were. */
static json_t *timing_json(struct build *b, const struct result *result)
{
    const struct session *s = result->session;
    bool wall = s->clock == CLOCK_WALL_COLD;
    bool cold = s->verb == VERB_BENCH && s->experiment->bench.cache == CACHE_COLD;
    json_t *o;

    if (result_clock_name(result) == NULL)
        return json_null();
    o = json_object();
    set(b, o, "clock", text(result_clock_name(result)));
    set(b, o, "calls", count(s->clock == CLOCK_GRAPH ? session_calls(s) : 1));
    set(b, o, "cache", text(cold || wall ? "cold" : "warm"));
    set(b, o, "total", text(s->clock == CLOCK_GRAPH || wall ? "measured" : "sum"));
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
    set(b, o, "file", text(t->path));
    set(b, o, "iterations", count(t->iterations));
    set(b, o, "slices", count(t->slices));
    set(b, o, "flows", count(t->flows));
    set(b, o, "dropped", count(t->dropped));
    set(b, o, "clock_error_ns", real(t->error_ns));
    set(b, o, "event_ns", real(t->event_ns));
    set(b, o, "overhead_ns", real(t->event_ns * t->busiest));
    return o;
}

static json_t *error_json(struct build *b, const struct result *result)
{
    json_t *o;

    if (result->status == EPA_OK && result->n_missed == 0)
        return json_null();
    o = json_object();
    set(b, o, "status",
        text(result->n_missed > 0 ? "missed" : result_status_name(result->status)));
    set(b, o, "text", text(result->error));
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
        append(b, warnings, text(result->warning[i]));
    set(b, o, "name", text(x->name));
    set(b, o, "file", text(x->file));
    set(b, o, "label", text(x->label != NULL ? x->label : x->name));
    set(b, o, "id", text_or_null(x->id));
    set(b, o, "verb", text(session_verb(s)));
    set(b, o, "status", text(outcome(result)));
    set(b, o, "exit_code", json_integer(result->exit_code));
    set(b, o, "error", error_json(b, result));
    set(b, o, "started", text_or_null(result->started));
    set(b, o, "elapsed_s", real(result->elapsed_s));
    set(b, o, "warmup", count(s->warmup));
    set(b, o, "iterations", count(s->iterations));
    set(b, o, "experiment", experiment_json(b, x));
    set(b, o, "machine", machine_json(b, result));
    set(b, o, "plugins", report_plugins(x));
    set(b, o, "world", world_json(b, s));
    set(b, o, "timing", timing_json(b, result));
    set(b, o, "stop", stop_json(b, result));
    set(b, o, "stages", stages);
    set(b, o, "skew", skew_json(b, result));
    set(b, o, "routing", routing_json(b, s));
    set(b, o, "traffic", traffic_json(b, result));
    set(b, o, "verify", verify_json(b, result));
    set(b, o, "expect", verdicts_json(result));
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
