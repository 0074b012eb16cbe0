/* Origin of a result as JSON: the machine, the build and the environment; the experiment, its plugins and ranks, and its injected fault.
 * These functions do not fail: unreadable values are null. */
#include "report/origin_json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/text.h"
#include "config/experiment.h"
#include "config/experiment_show.h"
#include "report/result_values.h"
#include "trace/write.h"

/* Adds a value to an object, and its object at VALUE_GROUP. */
static void add_result_value(void *arg, const struct result_value *v)
{
    switch (v->kind) {
    case VALUE_NONE:
        json_set_at(arg, v->path, json_null());
        break;
    case VALUE_TEXT:
        json_set_at(arg, v->path, json_text(v->text));
        break;
    case VALUE_COUNT:
        json_set_at(arg, v->path, json_count(v->count));
        break;
    case VALUE_REAL:
        json_set_at(arg, v->path, json_number(v->real));
        break;
    case VALUE_FLAG:
        json_set_at(arg, v->path, json_boolean(v->count != 0));
        break;
    case VALUE_GROUP:
        json_set_at(arg, v->path, json_object());
        break;
    }
}

json_t *build_json(const struct build_facts *b)
{
    json_t *out = json_object();

    build_visit(b, "", add_result_value, out);
    return out;
}

json_t *machine_json(const struct machine_facts *m)
{
    json_t *out = json_object();

    machine_visit(m, add_result_value, out);
    return out;
}

static json_t *plugins_json(const struct experiment *x)
{
    json_t *out = json_object();

    plugins_visit(x, add_result_value, out);
    return out;
}

json_t *result_timing(const struct run_figures *f)
{
    json_t *out = json_object();

    timing_visit(f, add_result_value, out);
    if (json_object_size(out) > 0)
        return out;
    json_decref(out);
    return json_null();
}

/* ---- experiment and plugins ---- */

/* Adds a value: a number, boolean or list of numbers of YAML has the same type in JSON; all else,
 * such as 5s or 64KiB, is text. "bench.warmup" belongs to the object "bench". */
static void add_value(void *arg, const struct experiment_value *v)
{
    json_t *parsed = v->quoted ? NULL : json_loads(v->value, JSON_DECODE_ANY, NULL);

    json_set_at(arg, v->path, parsed != NULL ? parsed : json_text(v->value));
}

static json_t *experiment_json(const struct experiment *x)
{
    json_t *out = json_object();

    experiment_visit(x, add_value, out);
    return out;
}

/* Parses "NAME=TEXT" pairs. */
static json_t *pairs_json(const char *const *pair, uint32_t n)
{
    json_t *out = json_object();

    for (uint32_t i = 0; i < n; i++) {
        const char *equals = strchr(pair[i], '=');
        json_object_setn_new(out, pair[i], (size_t)(equals - pair[i]), json_text(equals + 1));
    }
    return out;
}

void result_put_origin(json_t *result, const struct experiment *x, const struct facts *facts)
{
    json_object_set_new(result, "experiment", experiment_json(x));
    json_object_set_new(result, "context", pairs_json(facts->context, facts->n_context));
    json_object_set_new(result, "machine", machine_json(facts->machine));
    json_object_set_new(result, "plugins", plugins_json(x));
}

/* ---- ranks ---- */

json_t *result_facts(const struct session_facts *facts)
{
    json_t *out = facts->n == 0 ? json_null() : json_object();

    for (uint32_t i = 0; i < facts->n; i++)
        json_object_set_new(out, facts->fact[i].key, json_text(facts->fact[i].value));
    return out;
}

static json_t *rank_json(const struct run_rank *rank, uint32_t r)
{
    return json_object_of("rank", json_count(r), "pid", json_count_or_null((uint64_t)rank->pid),
                          "host", json_text_or_null(rank->host), "node", json_count(rank->node),
                          "core", rank->core >= 0 ? json_count((uint64_t)rank->core) : json_null(),
                          "device", result_facts(rank->device), "transport",
                          result_facts(rank->transport), "samples", json_count(rank->samples),
                          "first_ns", json_whole(rank->first_ns > 0 ? rank->first_ns : NAN),
                          "status", json_text(status_name(rank->status)), "error",
                          json_text_or_null(rank->status != EPA_OK ? rank->text : NULL), NULL);
}

json_t *result_world(const struct run_facts *s)
{
    json_t *ranks = json_array();

    for (uint32_t r = 0; r < s->experiment->problem.ranks; r++)
        json_array_append_new(ranks, rank_json(&s->rank[r], r));
    return json_object_of("size", json_count(s->experiment->problem.ranks), "launcher",
                          json_text(s->experiment->launcher.plugin->name), "started_by",
                          json_text_or_null(s->started_by), "ranks", ranks, NULL);
}

json_t *result_fault(const struct fault_options *planted, const struct run_fault *fault)
{
    if (fault->text == NULL)
        return json_null();
    return json_object_of("kind", json_text(fault_name(planted)), "rank", json_count(planted->rank),
                          "text", json_text(fault->text), "struck",
                          fault->counted ? json_count(fault->struck) : json_null(), NULL);
}

/* Describes the written trace, and the recording cost of the busiest thread in an iteration. */
json_t *result_profile(const struct trace_written *t)
{
    if (t == NULL || t->path[0] == '\0')
        return json_null();
    return json_object_of("file", json_text(t->path), "iterations", json_count(t->iterations),
                          "slices", json_count(t->slices), "flows", json_count(t->flows), "dropped",
                          json_count(t->dropped), "clock_error_ns", json_number(t->error_ns),
                          "event_ns", json_number(t->event_ns), "overhead_ns",
                          json_number(t->event_ns * t->busiest), NULL);
}

json_t *result_time(time_t started)
{
    struct tm utc;
    char text[40];

    if (started == 0 || gmtime_r(&started, &utc) == NULL)
        return json_null();
    strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc);
    return json_text(text);
}
