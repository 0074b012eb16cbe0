/* Origin of a result as JSON: the machine, the build and the environment; the experiment, its plugins and ranks, and its injected fault.
 * These functions do not fail: unreadable values are null. */
#include "report/origin_json.h"

#include "report/recorded_variables.h"
#include "report/result_parts.h"

#include <dlfcn.h>
#include <errno.h>
#include <epa2a/plugin.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/sysfile.h"
#include "base/text.h"
#include "config/experiment.h"
#include "config/experiment_show.h"
#include "trace/write.h"

json_t *build_json(const struct build_facts *b)
{
    return json_object_of("version", json_text(b->version), "git", json_text_or_null(b->git),
                          "plugin_abi", json_count(EPA_ABI), "compiler", json_text(b->compiler),
                          "type", json_text(b->type), "sanitizers", json_text(b->sanitizers),
                          "debug", json_boolean(b->debug), "libc",
                          json_sprintf("glibc %s", b->libc), "isa", json_text(b->isa),
                          "isa_refused", json_text_or_null(b->isa_refused), NULL);
}

static void add_variable(void *arg, const char *name, size_t bytes, const char *value)
{
    json_object_setn_new(arg, name, bytes, json_text(value));
}

static json_t *environment_json(void)
{
    json_t *out = json_object();

    recorded_variables_each(add_variable, out);
    return out;
}

json_t *machine_json(const struct machine_facts *m)
{
    return json_object_of(
        "host", json_text_or_null(m->host), "kernel", json_text(m->kernel), "arch",
        json_text_or_null(m->arch), "cpu", json_text_or_null(m->cpu), "cores", json_count(m->cores),
        "sockets", json_count_or_null(m->sockets), "numa_nodes", json_count_or_null(m->numa_nodes),
        "memory_bytes", json_count_or_null(m->memory_bytes), "clocksource",
        json_text_or_null(m->clocksource), "timer_ns", json_number(m->timer_ns), "huge_pages",
        json_text_or_null(m->huge_pages), "shmem_huge_pages",
        json_text_or_null(m->shmem_huge_pages), "load_average", json_real(m->load_average), "build",
        build_json(&m->build), "environment", environment_json(), "threads_per_core",
        json_count_or_null(m->threads_per_core), "governor", json_text_or_null(m->governor),
        "l1d_bytes", json_count_or_null(m->cache_bytes[1]), "l2_bytes",
        json_count_or_null(m->cache_bytes[2]), "l3_bytes", json_count_or_null(m->cache_bytes[3]),
        NULL);
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

/* Returns FNV-1a of a file's bytes; null: the file is no longer readable. */
static json_t *hash_json(const char *path)
{
    struct epa_error ignored = {EPA_OK, ""};
    uint64_t hash = HASH_BEGIN, bytes;
    char piece[1 << 14];
    ssize_t n = 1;
    int fd;

    if (file_open(path, &fd, &bytes, &ignored) != EPA_OK)
        return json_null();
    while (n > 0 || (n < 0 && errno == EINTR)) {
        n = read(fd, piece, sizeof(piece));
        hash_add(&hash, piece, n > 0 ? (size_t)n : 0);
    }
    close(fd);
    return n == 0 ? json_sprintf("%016" PRIx64, hash) : json_null();
}

/* The hash of its bytes is the version of a plugin. The file is null for a built-in plugin. */
static json_t *plugin_json(const struct epa_plugin *plugin)
{
    static const char program = 0; /* an object inside the program */
    Dl_info of, own;
    bool module = dladdr(plugin, &of) != 0 && of.dli_fname != NULL &&
                  (dladdr(&program, &own) == 0 || own.dli_fbase != of.dli_fbase);

    return json_object_of("name", json_text(plugin->name), "file",
                          module ? json_text(of.dli_fname) : json_null(), "hash",
                          module ? hash_json(of.dli_fname) : json_null(), NULL);
}

void result_put_origin(json_t *result, const struct experiment *x, const struct facts *facts)
{
    json_object_set_new(result, "experiment", experiment_json(x));
    json_object_set_new(result, "context", pairs_json(facts->context, facts->n_context));
    json_object_set_new(result, "machine", machine_json(facts->machine));
    json_object_set_new(result, "plugins",
                        json_object_of("launcher", plugin_json(x->launcher.plugin), "backend",
                                       plugin_json(x->backend.plugin), "transport",
                                       plugin_json(x->transport.plugin), "algorithm",
                                       plugin_json(x->algorithm.plugin), NULL));
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
