/* A result as JSON: everything that the table says, all samples, and where they come from.
 * Numbers are numbers, times are whole nanoseconds, what was not measured is null, and text
 * that is no UTF-8 is made so: the document parses whatever happened.
 * share/epa2a-result.schema.json describes it. */
#include <dlfcn.h>
#include <epa2a/plugin.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/exit_code.h"
#include "base/json.h"
#include "config/experiment.h"
#include "report/report.h"

/* ---- what ran ---- */

/* A number, boolean or list of numbers as it stands in YAML is one in JSON too; anything
 * else, such as 5s or 64KiB, is told as text. "bench.warmup" goes into the object "bench". */
static void add_value(void *arg, const char *key, const char *value, bool quoted)
{
    json_t **root = arg, *at = *root,
           *parsed = quoted ? NULL : json_loads(value, JSON_DECODE_ANY, NULL);
    const char *dot;

    for (; (dot = strchr(key, '.')) != NULL; key = dot + 1) {
        json_t *next = json_object_getn(at, key, (size_t)(dot - key));

        if (next == NULL) {
            next = json_object();
            (void)json_object_setn_new(at, key, (size_t)(dot - key), next);
        }
        at = next;
    }
    if (json_object_set_new(at, key, parsed != NULL ? parsed : json_text(value)) == 0)
        return;
    json_decref(*root);
    *root = NULL;
}

static json_t *experiment_json(const struct experiment *x)
{
    json_t *root = json_object();

    experiment_visit(x, add_value, &root);
    return root;
}

/* Of "NAME=TEXT". */
static json_t *pairs_json(const char *const *pair, uint32_t n)
{
    json_t *out = json_object();

    for (uint32_t i = 0; i < n; i++) {
        const char *equals = strchr(pair[i], '=');
        struct text name = {0};

        text_add_bytes(&name, pair[i], (size_t)(equals - pair[i]));
        json_put(&out, name.data, json_text(equals + 1));
        text_free(&name);
    }
    return out;
}

/* FNV-1a of a file's bytes; null: it cannot be read any more. */
static json_t *hash_json(const char *path)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    unsigned char piece[4096];
    char text[17];
    FILE *file = fopen(path, "re");
    bool good = file != NULL;
    size_t n;

    while (good && (n = fread(piece, 1, sizeof(piece), file)) > 0)
        for (size_t i = 0; i < n; i++)
            hash = (hash ^ piece[i]) * UINT64_C(1099511628211);
    good = good && ferror(file) == 0;
    if (file != NULL)
        fclose(file);
    snprintf(text, sizeof(text), "%016" PRIx64, hash);
    return good ? json_text(text) : json_null();
}

/* A plugin has no version beside that of its bytes. The file is null where it is built in. */
static json_t *plugin_json(const struct epa_plugin *plugin)
{
    static const char program = 0; /* something that is in the program */
    Dl_info of, own;
    bool module = dladdr(plugin, &of) != 0 && of.dli_fname != NULL &&
                  (dladdr(&program, &own) == 0 || own.dli_fbase != of.dli_fbase);

    return json_object_of("name", json_text(plugin->name), "file",
                          module ? json_text(of.dli_fname) : json_null(), "hash",
                          module ? hash_json(of.dli_fname) : json_null(), NULL);
}

/* ---- where ---- */

/* What a rank said of its device or of its transport. */
static json_t *facts_json(const struct session_facts *facts)
{
    json_t *out = facts->n == 0 ? json_null() : json_object();

    for (uint32_t i = 0; i < facts->n; i++)
        json_put(&out, facts->fact[i].key, json_text(facts->fact[i].value));
    return out;
}

static json_t *build_json(const struct facts *f)
{
    return json_object_of("version", json_text(f->version), "git", json_text_or_null(f->git),
                          "plugin_abi", json_count(EPA_ABI), "compiler", json_text(f->compiler),
                          "type", json_text(f->build_type), "sanitizers", json_text(f->sanitizers),
                          "debug", json_boolean(f->debug_build), "libc", json_text(f->libc), "isa",
                          json_text(f->isa), NULL);
}

static json_t *links_json(const struct result_peak *peak)
{
    if (!peak->known)
        return json_null();
    return json_object_of("rate",
                          peak->bytes_per_ns > 0 ? json_number(peak->bytes_per_ns) : json_null(),
                          "latency_ns", json_number(peak->latency_ns), NULL);
}

static json_t *machine_json(const struct result *result)
{
    const struct facts *f = result->facts;
    const struct session *s = result->session;

    return json_object_of(
        "host", json_text_or_null(f->host), "kernel", json_text_or_null(f->kernel), "arch",
        json_text_or_null(f->arch), "cpu", json_text_or_null(f->cpu), "cores", json_count(f->cores),
        "sockets", json_count_or_null(f->sockets), "numa_nodes", json_count_or_null(f->numa_nodes),
        "threads_per_core", json_count_or_null(f->threads_per_core), "l1d_bytes",
        json_count_or_null(f->l1d_bytes), "l2_bytes", json_count_or_null(f->l2_bytes), "l3_bytes",
        json_count_or_null(f->l3_bytes), "memory_bytes", json_count_or_null(f->memory_bytes),
        "governor", json_text_or_null(f->governor), "clocksource",
        json_text_or_null(f->clocksource), "timer_ns", json_number(f->timer_ns), "huge_pages",
        json_text_or_null(f->huge_pages), "shmem_huge_pages",
        json_text_or_null(f->shmem_huge_pages), "load_average", json_number(f->load_average),
        "device", s->block != NULL ? facts_json(&session_rank(s, 0)->device) : json_null(), "links",
        links_json(&result->peak), "build", build_json(f), "environment",
        pairs_json((const char *const *)f->environment, f->n_environment), NULL);
}

static json_t *rank_json(const struct session *s, uint32_t r)
{
    const struct session_rank *rank = session_rank(s, r);
    char words[sizeof(rank->text) + 1];

    snprintf(words, sizeof(words), "%.*s", (int)sizeof(rank->text), rank->text);
    return json_object_of("rank", json_count(r), "pid", json_count_or_null((uint64_t)rank->pid),
                          "host", json_text_or_null(rank->host), "node", json_count(rank->node),
                          "core", rank->core >= 0 ? json_count((uint64_t)rank->core) : json_null(),
                          "device", facts_json(&rank->device), "transport",
                          facts_json(&rank->transport), "samples", json_count(rank->samples),
                          "first_ns", json_whole(rank->first_ns > 0 ? rank->first_ns : NAN),
                          "status", json_text(status_name(rank->status)), "error",
                          json_text_or_null(rank->status != EPA_OK ? words : NULL), NULL);
}

static json_t *world_json(const struct session *s)
{
    json_t *ranks = json_array();

    for (uint32_t r = 0; s->block != NULL && r < s->experiment->ranks; r++)
        json_add(&ranks, rank_json(s, r));
    return json_object_of("size", json_count(s->experiment->ranks), "launcher",
                          json_text(s->experiment->launcher.plugin->name), "started_by",
                          json_text_or_null(s->process_id.source), "ranks", ranks, NULL);
}

/* ---- what was measured ---- */

static json_t *stats_json(const struct stats *s)
{
    json_t *ci95 = json_null();

    if (!isnan(s->low)) {
        ci95 = json_array();
        json_add(&ci95, json_whole(s->low));
        json_add(&ci95, json_whole(s->high));
    }
    return json_object_of(
        "n", json_count(s->n), "min", json_whole(s->min), "median", json_whole(s->median), "p95",
        json_whole(s->p95), "p99", json_whole(s->p99), "p999", json_whole(s->p999), "max",
        json_whole(s->max), "mean", json_whole(s->mean), "stdev", json_whole(s->stdev), "mad",
        json_whole(s->mad), "ci95", ci95, "outliers", json_count(s->outliers), NULL);
}

static json_t *stage_json(const struct result *result, const struct result_stage *stage)
{
    const struct session *s = result->session;
    json_t *samples = json_array(), *ranks = json_array();

    for (uint64_t i = 0; i < stage->slowest.n; i++)
        json_add(&samples, json_whole(stage->sample[i]));
    for (uint32_t r = 0; s->block != NULL && r < s->experiment->ranks; r++)
        json_add(&ranks,
                 json_object_of("rank", json_count(r), "min_ns", json_whole(stage->rank[r].min),
                                "median_ns", json_whole(stage->rank[r].median), "p95_ns",
                                json_whole(stage->rank[r].p95), "max_ns",
                                json_whole(stage->rank[r].max), NULL));
    return json_object_of("name", json_text(stage->name), "ns", stats_json(&stage->slowest), "cv",
                          json_number(stage->slowest.cv), "rate",
                          json_object_of("goodput", json_number(stage->goodput), "wire",
                                         json_number(stage->wire), "bottleneck",
                                         json_number(stage->bottleneck), NULL),
                          "peak_ns", json_whole(stage->peak_ns), "of_peak",
                          json_number(stage->peak_ns / stage->slowest.median), "ranks", ranks,
                          "samples_ns", samples, NULL);
}

static json_t *bytes_json(const struct result_traffic *t)
{
    return json_object_of("needed_bytes", json_number(t->needed), "wire_bytes", json_number(t->out),
                          "bottleneck_bytes", json_number(t->bottleneck), "least_bytes",
                          json_number(t->least), NULL);
}

static json_t *traffic_json(const struct result *result)
{
    const struct operation *op = session_operation(result->session);
    json_t *out = json_object();

    for (uint32_t i = 0; i < op->n_phases; i++)
        json_put(&out, op->phase[i].name, bytes_json(&result->phase[i]));
    json_put(&out, "total", bytes_json(&result->total));
    return out;
}

/* Experts that have a stage of their own: what computes them, and at which rate. */
static json_t *experts_json(const struct result *result)
{
    const struct session *s = result->session;
    double flops = NAN;

    if (s->notes == NULL || s->notes->between_by[0] == '\0')
        return json_null();
    for (uint32_t i = 0; i < result->n_stages && i < s->n_stages; i++)
        if (s->stage_kind[i] == EPA_STAGE_EXPERTS)
            flops = result->stage[i].flops;
    return json_object_of("by", json_text(s->notes->between_by), "flops_per_s", json_number(flops),
                          NULL);
}

/* What is computed, and what its products and weights take at least; null: nothing. */
static json_t *compute_json(const struct result *result)
{
    const struct result_computing *c = &result->computing;
    json_t *parts = json_array(), *limit = json_null();

    for (uint32_t i = 0; i < result->n_parts; i++)
        json_add(&parts, json_object_of("name", json_text(result->session->notes->part[i]),
                                        "median_ns", json_whole(result->part_ns[i]), NULL));
    if (c->known)
        limit = json_object_of("flops_per_s", json_number(c->flops_per_ns * 1e9), "flops_ns",
                               json_whole(c->flops_ns), "weights_bytes", json_number(c->weights),
                               "memory_bytes_per_s", json_number(c->bytes_per_ns * 1e9),
                               "weights_ns", json_whole(c->weights_ns), NULL);
    if (!(result->flops > 0)) {
        json_decref(parts);
        json_decref(limit);
        return json_null();
    }
    return json_object_of("flops", json_number(result->flops), "flops_per_s",
                          json_number(result->stage[result->n_stages - 1].flops), "experts",
                          experts_json(result), "limit", limit, "parts", parts, "hidden",
                          json_number(result->n_parts > 0 ? result->hidden : NAN), NULL);
}

static json_t *skew_json(const struct result *result)
{
    if (result->n_samples == 0 || result->session->clock == CLOCK_END_TO_END)
        return json_null();
    return json_object_of("median_ns", json_whole(result->skew_ns), "straggler",
                          json_count(result->straggler), "straggler_share",
                          json_number(result->straggler_share), NULL);
}

/* How times were taken; null where none were. */
static json_t *timing_json(const struct result *result)
{
    const struct session *s = result->session;
    const struct bench_options *o = &s->experiment->bench;
    bool open = session_is_open(s), graph = s->clock == CLOCK_GRAPH;
    bool cold = s->verb == VERB_BENCH && o->cache == CACHE_COLD;
    json_t *arrivals = json_null();

    if (result_clock_name(result) == NULL)
        return json_null();
    if (open)
        arrivals = json_object_of(
            "process", json_text(o->arrivals == ARRIVALS_POISSON ? "poisson" : "constant"), "rate",
            json_number(s->arrivals.rate), "closed_rate", json_number(s->arrivals.closed_rate),
            "late", json_number(result_late(result)), NULL);
    return json_object_of(
        "clock", json_text(result_clock_name(result)), "calls",
        json_count(graph ? session_calls(s) : 1), "cache", json_text(cold ? "cold" : "warm"),
        "total", json_text(graph || s->clock == CLOCK_END_TO_END || open ? "measured" : "sum"),
        "arrivals", arrivals, NULL);
}

/* The trace that was written, and what noting it takes the busiest thread of an iteration. */
static json_t *profile_json(const struct result *result)
{
    const struct trace_written *t = &result->trace;

    if (t->path[0] == '\0')
        return json_null();
    return json_object_of("file", json_text(t->path), "iterations", json_count(t->iterations),
                          "slices", json_count(t->slices), "flows", json_count(t->flows), "dropped",
                          json_count(t->dropped), "clock_error_ns", json_number(t->error_ns),
                          "event_ns", json_number(t->event_ns), "overhead_ns",
                          json_number(t->event_ns * t->busiest), NULL);
}

/* What `fault` planted and whether it struck; null: the run is a normal one. */
static json_t *fault_json(const struct result *result)
{
    const struct fault_options *f = &result->session->experiment->fault;
    uint64_t struck = 0;
    bool known = result_fault_struck(result, &struck);
    struct text what = {0};
    json_t *out;

    if (!fault_is_planted(result->session->experiment))
        return json_null();
    fault_describe(f, &what);
    out = json_object_of("kind", json_text(fault_name(f)), "rank", json_count(f->rank), "text",
                         json_text(what.data), "struck", known ? json_count(struck) : json_null(),
                         NULL);
    text_free(&what);
    return out;
}

/* ---- how it ended ---- */

static json_t *verdicts_json(const struct result *result)
{
    static const char *const unit[] = {
        [EXPECT_NS] = "ns", [EXPECT_RATE] = "GB/s", [EXPECT_SHARE] = "part"};
    json_t *all = json_array();

    for (uint32_t i = 0; i < result->n_verdicts; i++) {
        const struct verdict *v = &result->verdict[i];
        bool wrong = v->figure == EXPECT_FIGURES;
        enum expect_unit of = wrong ? EXPECT_NS : expect_unit_of(v->figure);
        bool most = of == EXPECT_NS;

        json_add(&all,
                 json_object_of("stage", json_text_or_null(v->row), "figure",
                                json_text(wrong ? "wrong" : expect_name[v->figure]), "unit",
                                json_text(wrong ? "elements" : unit[of]), most ? "most" : "least",
                                most ? json_whole(v->bound) : json_number(v->bound), "measured",
                                most ? json_whole(v->measured) : json_number(v->measured), "met",
                                json_boolean(v->met), NULL));
    }
    return all;
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
        return status_name(result->status);
    default:
        return "failed";
    }
}

static json_t *result_json(const struct result *result)
{
    const struct session *s = result->session;
    const struct experiment *x = s->experiment;
    const struct operation *op = session_operation(s);
    const struct epa_footprint *f = &s->footprint;
    json_t *out, *stages = json_array(), *warnings = json_array(), *error = json_null();

    for (uint32_t i = 0; i < result->n_stages; i++)
        json_add(&stages, stage_json(result, &result->stage[i]));
    for (uint32_t i = 0; i < result->n_warnings; i++)
        json_add(&warnings, json_text(result->warning[i]));
    if (result->status != EPA_OK || result->n_missed > 0)
        error = json_object_of(
            "status", json_text(result->n_missed > 0 ? "missed" : status_name(result->status)),
            "text", json_text(result->error), NULL);
    out = json_object_of("name", json_text(x->name), "file", json_text(x->file), "label",
                         json_text(x->label != NULL ? x->label : x->name), "id",
                         json_text_or_null(x->id), "run", json_text_or_null(x->run_name), "verb",
                         json_text(session_verb(s)), "operation", json_text(op->name), "status",
                         json_text(outcome(result)), "exit_code", json_integer(result->exit_code),
                         "error", error, "started", json_text_or_null(result->started), "elapsed_s",
                         json_number(result->elapsed_s), "warmup", json_count(s->warmup),
                         "iterations", json_count(s->iterations), "experiment", experiment_json(x),
                         "context", pairs_json(result->facts->context, result->facts->n_context),
                         "machine", machine_json(result), "plugins",
                         json_object_of("launcher", plugin_json(x->launcher.plugin), "backend",
                                        plugin_json(x->backend.plugin), "transport",
                                        plugin_json(x->transport.plugin), "algorithm",
                                        plugin_json(x->algorithm.plugin), NULL),
                         "world", world_json(s), "timing", timing_json(result), "stop",
                         json_object_of("reason", json_text_or_null(stop_name(result->stop)),
                                        "samples", json_count(result->n_samples), "ci95",
                                        json_number(result_ci95(result)), NULL),
                         "stages", stages, "skew", skew_json(result), NULL);
    if (op->stats_json != NULL)
        json_put(&out, op->stats_key,
                 s->stats != NULL ? op->stats_json(s->stats, s->source) : json_null());
    json_put(&out, "delivers", op->delivers != NULL ? op->delivers(x, f) : json_null());
    json_put(&out, "traffic", traffic_json(result));
    json_put(&out, "compute", compute_json(result));
    json_put(&out, "memory",
             json_object_of("heap_bytes", json_count(f->heap_bytes), "private_bytes",
                            json_count(f->private_bytes), "device_bytes",
                            json_count(f->device_bytes), NULL));
    json_put(&out, "verify",
             json_object_of("iterations", json_count(result->checked), "compared",
                            json_count(result->compared), "wrong", json_count(result->wrong),
                            "unchecked", json_text_or_null(result->unchecked), NULL));
    json_put(&out, "expect", verdicts_json(result));
    json_put(&out, "fault", fault_json(result));
    json_put(&out, "profile", profile_json(result));
    json_put(&out, "warnings", warnings);
    return out;
}

enum epa_status report_json_add(struct text *out, const struct result *result,
                                struct epa_error *err)
{
    text_add(out, "%s", out->bytes == 0 ? "" : ",\n");
    if (!json_write(out, result_json(result), JSON_INDENT(1)))
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for a result as JSON");
    return EPA_OK;
}
