/* Writes the result of a run as JSON. Unmeasured values are null, and invalid UTF-8 is replaced: the
 * document always parses. */
#include "report/result_json.h"

#include <math.h>
#include <string.h>

#include "config/experiment.h"
#include "report/figures_json.h"
#include "report/origin_json.h"
#include "result/verdicts.h"

static json_t *samples_json(const struct run_stage *stage)
{
    json_t *out = json_array();

    for (uint64_t k = 0; k < stage->n; k++)
        json_array_append_new(out, json_whole(stage->sample[k]));
    return out;
}

static json_t *stage_json(const struct run_stage *stage, uint32_t ranks)
{
    json_t *out = json_object_of("name", json_text(stage->name), NULL), *list = json_array();

    for (uint32_t r = 0; r < ranks; r++) {
        const struct stats *rank = &stage->rank[r];

        json_array_append_new(
            list, json_object_of("rank", json_count(r), "min_ns", json_whole(rank->min),
                                 "median_ns", json_whole(rank->median), "p95_ns",
                                 json_whole(rank->p95), "max_ns", json_whole(rank->max), NULL));
    }
    figures_write(out, &stage->figures);
    json_object_set_new(out, "beaten", json_boolean(stage->beaten));
    json_object_set_new(out, "ranks", list);
    json_object_set_new(out, "samples_ns", samples_json(stage));
    return out;
}

static json_t *stages_json(const struct run_figures *f)
{
    json_t *out = json_array();

    for (uint32_t i = 0; i < f->n_stages; i++)
        json_array_append_new(out, stage_json(&f->stage[i], f->ranks));
    return out;
}

static json_t *skew_json(const struct run_skew *skew)
{
    if (!skew->known)
        return json_null();
    return json_object_of("median_ns", json_whole(skew->median_ns), "straggler",
                          json_count(skew->straggler), "straggler_share",
                          json_number(skew->straggler_share), NULL);
}

static json_t *bytes_json(const struct run_traffic *t)
{
    return json_object_of("needed_bytes", json_number(t->needed), "wire_bytes",
                          json_number(t->wire), "bottleneck_bytes", json_number(t->bottleneck),
                          "least_bytes", json_number(t->least), NULL);
}

static json_t *traffic_json(const struct run_figures *f)
{
    json_t *out = json_object();

    for (uint32_t i = 0; i < f->operation->n_phases; i++)
        json_object_set_new(out, f->operation->phase[i].name, bytes_json(&f->phase[i]));
    json_object_set_new(out, "total", bytes_json(&f->total));
    return out;
}

static json_t *links_json(const struct run_figures *f)
{
    if (!run_has_links(f))
        return json_null();
    return json_object_of(
        "rate", json_number(f->links.bytes_per_ns > 0 ? f->links.bytes_per_ns : NAN), "latency_ns",
        json_number(f->links.latency_ns > 0 ? f->links.latency_ns : NAN), NULL);
}

/* Returns the lower bounds of an iteration; null: the links are unknown. */
static json_t *limit_json(const struct run_figures *f)
{
    const struct run_limit *l = &f->limit;

    if (!run_has_links(f))
        return json_null();
    return json_object_of("hops_ns", json_whole(l->hops_ns), "launches_ns",
                          json_whole(l->launches_ns), "links_ns", json_whole(l->links_ns),
                          "memory_ns", json_whole(l->memory_ns), "memory_bytes",
                          json_number(l->memory > 0 ? l->memory : NAN), "cache_bytes",
                          json_number(l->cache > 0 ? l->cache : NAN), "memory_bytes_per_s",
                          json_number(l->memory_per_ns * 1e9), NULL);
}

/* Returns the operations of an iteration, and lower bounds of their time; null: the algorithm
 * computes nothing. */
static json_t *compute_json(const struct run_figures *f, const struct session_notes *notes)
{
    const struct run_compute *c = &f->compute;
    json_t *experts = json_null(), *limit = json_null(), *parts = json_array();

    for (uint32_t i = 0; i < c->n_parts; i++)
        json_array_append_new(parts, json_object_of("name", json_text(notes->part[i]), "median_ns",
                                                    json_whole(c->part_ns[i]), NULL));
    if (notes->between_by[0] != '\0')
        experts = json_object_of("by", json_text(notes->between_by), "flops_per_s",
                                 json_number(c->expert_flops), NULL);
    if (!isnan(c->flops_ns))
        limit = json_object_of("flops_per_s", json_number(c->peaks.flops_per_ns * 1e9), "flops_ns",
                               json_whole(c->flops_ns), "weights_bytes", json_number(c->weights),
                               "memory_bytes_per_s", json_number(c->peaks.bytes_per_ns * 1e9),
                               "weights_ns", json_whole(c->weights_ns), "links_ns",
                               json_whole(c->links_ns), NULL);
    return json_object_of("flops", json_number(c->flops), "flops_per_s",
                          json_number(c->flops_per_s), "by", json_text_or_null(notes->products_by),
                          "experts", experts, "limit", limit, "parts", parts, "hidden",
                          json_number(c->hidden), NULL);
}

static json_t *api_json(const struct run_api *api, uint32_t calls)
{
    if (api->turns == 0)
        return json_null();
    return json_object_of("calls", json_count(calls), "turns", json_count(api->turns), "api_ns",
                          json_number(api->public_ns), "direct_ns", json_number(api->direct_ns),
                          "overhead_ns", json_number(api->overhead_ns), NULL);
}

/* Returns the overhead of single calls, and in it the overhead in graphs. */
static json_t *all_api_json(const struct run_figures *f, uint32_t calls)
{
    json_t *out = api_json(&f->api, calls);

    if (json_is_object(out))
        json_object_set_new(out, "graph", api_json(&f->api_graph, calls));
    return out;
}

static json_t *stop_json(const struct run_stop *stop)
{
    return json_object_of("reason", json_text_or_null(stop_name(stop->reason)), "samples",
                          json_count(stop->samples), "ci95", json_number(stop->ci95), NULL);
}

/* Returns the remaining samples of a run that ended early or lost records; null: all samples exist,
 * or none. */
static json_t *partial_json(const struct run_figures *f)
{
    json_t *lost;

    if (!f->partial)
        return json_null();
    lost = json_array();
    for (uint32_t r = 0; r < f->ranks; r++)
        if (f->lost[r])
            json_array_append_new(lost, json_count(r));
    return json_object_of("samples", json_count(f->stop.samples), "lost_ranks", lost, NULL);
}

/* Returns the compared elements; reasons: why elements were not compared, or puts not counted. */
static json_t *verify_json(const struct run_verify *v, const struct run_facts *s)
{
    const struct op_share *share = &v->share;
    bool counts = s->verb == VERB_VERIFY;

    return json_object_of(
        "iterations", json_count(v->iterations), "compared", json_count(v->compared), "wrong",
        json_count(v->wrong), "outputs", json_count(share->outputs), "outputs_compared",
        json_count(share->compared), "outputs_overflowed", json_count(share->overflowed),
        "outputs_bound", json_number(share->compared > 0 ? share->widest : NAN),
        "outputs_mean_bound",
        json_number(share->compared > 0 ? share->widths / (double)share->compared : NAN),
        "outputs_partly", json_text_or_null(v->partly), "unchecked",
        json_text_or_null(v->unchecked), "put_bytes",
        counts ? json_count(v->put_bytes) : json_null(), "uncounted",
        json_text_or_null(counts ? s->uncounted : NULL), NULL);
}

static json_t *quota_json(const struct cpu_quota *quota)
{
    if (!(quota->cores > 0))
        return json_null();
    return json_object_of("cores", json_number(quota->cores), "stops", json_count(quota->stops),
                          "stopped_ns", json_count(quota->stopped_ns), NULL);
}

static json_t *verdicts_json(const struct run_figures *f)
{
    json_t *out = json_array();

    for (uint32_t i = 0; i < f->n_verdicts; i++) {
        const struct run_verdict *v = &f->verdict[i];

        json_array_append_new(
            out, json_object_of(
                     "stage", json_text_or_null(v->stage), "figure", json_text(verdict_name(v)),
                     "unit", json_text(verdict_unit(v)), v->is_most ? "most" : "least",
                     v->is_most ? json_whole(v->bound) : json_number(v->bound), "measured",
                     v->is_most ? json_whole(v->measured) : json_number(v->measured), "met",
                     json_boolean(v->met), NULL));
    }
    return out;
}

static json_t *warnings_json(const struct run_figures *f)
{
    json_t *out = json_array();

    for (uint32_t i = 0; i < f->n_warnings; i++)
        json_array_append_new(out, json_text(f->warning[i]));
    return out;
}

static json_t *error_json(const struct run_figures *f)
{
    if (f->error == NULL)
        return json_null();
    return json_object_of("status", json_text(f->error), "text", json_text(f->error_text), NULL);
}

/* Returns the statistics of inputs; null: no iterations. */
static json_t *statistics_json(const struct run_facts *s)
{
    json_t *out = s->n_inputs > 0 ? json_object() : json_null();

    for (uint32_t i = 0; i < s->n_inputs; i++) {
        const struct op_statistic *of = &s->input[i];

        json_set_at(out, of->path, of->is_count ? json_whole(of->number) : json_number(of->number));
    }
    return out;
}

/* Returns the output properties; null: all algorithms have the same. */
static json_t *outputs_json(const struct run_facts *s)
{
    const struct operation *op = s->operation;
    struct op_property list[OP_PROPERTIES];
    json_t *out;

    if (op->delivers == NULL)
        return json_null();
    out = json_object();
    for (uint32_t i = 0, n = op->delivers(&s->experiment->problem, &s->footprint, list); i < n; i++)
        json_object_set_new(out, list[i].name,
                            list[i].is_flag ? json_boolean(strcmp(list[i].value, "true") == 0)
                            : list[i].value != NULL ? json_text(list[i].value)
                                                    : json_null());
    return out;
}

json_t *result_json(const struct result *result, const struct facts *facts)
{
    const struct run_figures *f = result->figures;
    const struct run_facts *s = &f->facts;
    const struct experiment *x = s->experiment;
    const struct operation *op = f->operation;
    const struct epa_footprint *need = &s->footprint;
    json_t *out, *machine;

    out = json_object_of("name", json_text(x->name), "file", json_text(x->file), "label",
                         json_text(x->label != NULL ? x->label : x->name), "id",
                         json_text_or_null(x->id), "run", json_text_or_null(x->run_name), "verb",
                         json_text(session_verb_name(s->verb)), "operation", json_text(op->name),
                         "status", json_text(f->status), "exit_code", json_integer(f->exit_code),
                         "error", error_json(f), "started", result_time(result->started),
                         "elapsed_s", json_number(result->elapsed_s), "warmup",
                         json_count(s->warmup), "iterations", json_count(s->iterations), NULL);
    result_put_origin(out, x, facts);
    machine = json_object_get(out, "machine");
    json_object_set_new(machine, "device", result_facts(s->rank[0].device));
    json_object_set_new(machine, "links", links_json(f));
    json_object_set_new(out, "world", result_world(s));
    json_object_set_new(out, "timing", result_timing(f));
    if (x->api != API_NONE)
        json_object_set_new(out, "api", all_api_json(f, s->notes->api_calls));
    json_object_set_new(out, "stop", stop_json(&f->stop));
    json_object_set_new(out, "partial", partial_json(f));
    json_object_set_new(out, "stages", stages_json(f));
    json_object_set_new(out, "skew", skew_json(&f->skew));
    if (op->stats_list != NULL)
        json_object_set_new(out, op->stats_key, statistics_json(s));
    json_object_set_new(out, "delivers", outputs_json(s));
    json_object_set_new(out, "traffic", traffic_json(f));
    json_object_set_new(out, "limit", limit_json(f));
    json_object_set_new(out, "compute",
                        f->compute.flops > 0 ? compute_json(f, s->notes) : json_null());
    json_object_set_new(out, "memory",
                        json_object_of("heap_bytes", json_count(need->heap_bytes), "private_bytes",
                                       json_count(need->private_bytes), "device_bytes",
                                       json_count(need->device_bytes), NULL));
    json_object_set_new(out, "cpu_quota", quota_json(&result->quota));
    json_object_set_new(out, "verify", verify_json(&f->verify, s));
    json_object_set_new(out, "expect", verdicts_json(f));
    json_object_set_new(out, "fault", result_fault(&x->fault, &f->fault));
    json_object_set_new(out, "profile", result_profile(&result->trace));
    json_object_set_new(out, "warnings", warnings_json(f));
    return out;
}
