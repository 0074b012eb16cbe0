/* Of a result's JSON: the experiment, the machine, and each rank. */
#include "report/report_json_parts.h"

#include <epa2a/plugin.h>

/* The experiment: "bench.warmup" goes into the object "bench". */
struct nest {
    struct build *build;
    json_t *root;
};

/* A number, boolean or list of numbers as it stands in YAML is one in JSON too; anything
 * else, such as 5s or 64KiB, is told as text. */
static json_t *scalar(const char *value, bool quoted)
{
    json_t *parsed = quoted ? NULL : json_loads(value, JSON_DECODE_ANY, NULL);

    return parsed != NULL ? parsed : json_text(value);
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

json_t *report_json_experiment(struct build *b, const struct experiment *x)
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

        snprintf(name, sizeof(name), "%.*s", (int)(equals - f->environment[i]), f->environment[i]);
        set(b, o, name, json_text(equals + 1));
    }
    return o;
}

json_t *report_json_context(struct build *b, const struct facts *f)
{
    json_t *o = json_object();

    for (uint32_t i = 0; i < f->n_context; i++) {
        const char *equals = strchr(f->context[i], '=');
        struct text name = {0};

        text_add_bytes(&name, f->context[i], (size_t)(equals - f->context[i]));
        set(b, o, name.data, json_text(equals + 1));
        text_free(&name);
    }
    return o;
}

static json_t *build_json(struct build *b, const struct facts *f)
{
    json_t *o = json_object();

    set(b, o, "version", json_text(f->version));
    set(b, o, "git", text_or_null(f->git));
    set(b, o, "plugin_abi", count(EPA_ABI));
    set(b, o, "compiler", json_text(f->compiler));
    set(b, o, "type", json_text(f->build_type));
    set(b, o, "sanitizers", json_text(f->sanitizers));
    set(b, o, "debug", json_boolean(f->debug_build));
    set(b, o, "libc", json_text(f->libc));
    set(b, o, "isa", json_text(f->isa));
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
        set(b, o, facts->fact[i].key, json_text(facts->fact[i].value));
    return o;
}

static json_t *links_json(struct build *b, const struct result_peak *peak)
{
    json_t *o;

    if (!peak->known)
        return json_null();
    o = json_object();
    set(b, o, "rate", peak->bytes_per_ns > 0 ? real(peak->bytes_per_ns) : json_null());
    set(b, o, "latency_ns", real(peak->latency_ns));
    return o;
}

json_t *report_json_machine(struct build *b, const struct result *result)
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
    set(b, o, "links", links_json(b, &result->peak));
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
    set(b, o, "status", json_text(result_status_name(rank->status)));
    set(b, o, "error", rank->status != EPA_OK ? text_or_null(words) : json_null());
    return o;
}

json_t *report_json_world(struct build *b, const struct session *s)
{
    json_t *o = json_object(), *ranks = json_array();

    set(b, o, "size", count(s->experiment->ranks));
    set(b, o, "launcher", json_text(s->experiment->launcher.plugin->name));
    set(b, o, "started_by", text_or_null(s->process_id.source));
    for (uint32_t r = 0; s->block != NULL && r < s->experiment->ranks; r++)
        append(b, ranks, rank_json(b, s, r));
    set(b, o, "ranks", ranks);
    return o;
}
