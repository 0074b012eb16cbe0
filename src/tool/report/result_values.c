/* Visits the values of a result in the order of JSON. */
#include "report/result_values.h"

#include <dlfcn.h>
#include <errno.h>
#include <epa2a/plugin.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "config/experiment.h"
#include "report/recorded_variables.h"

struct visitor {
    const char *before; /* prefix of paths */
    void (*fn)(void *arg, const struct result_value *);
    void *arg;
};

static void visit(const struct visitor *v, const char *path, struct result_value value)
{
    text_auto whole = {0};

    text_add(&whole, "%s%s", v->before, path);
    value.path = whole.data;
    v->fn(v->arg, &value);
}

static void visit_text(const struct visitor *v, const char *path, const char *text)
{
    visit(v, path, (struct result_value){.kind = VALUE_TEXT, .text = text});
}

/* NULL or "": unknown. */
static void visit_text_or_none(const struct visitor *v, const char *path, const char *text)
{
    bool known = text != NULL && text[0] != '\0';

    visit(v, path, (struct result_value){.kind = known ? VALUE_TEXT : VALUE_NONE, .text = text});
}

static void visit_count(const struct visitor *v, const char *path, uint64_t count)
{
    visit(v, path, (struct result_value){.kind = VALUE_COUNT, .count = count});
}

/* 0: unknown. */
static void visit_count_or_none(const struct visitor *v, const char *path, uint64_t count)
{
    visit(v, path,
          (struct result_value){.kind = count > 0 ? VALUE_COUNT : VALUE_NONE, .count = count});
}

static void visit_real(const struct visitor *v, const char *path, double real)
{
    visit(v, path, (struct result_value){.kind = VALUE_REAL, .real = real});
}

static void visit_flag(const struct visitor *v, const char *path, bool flag)
{
    visit(v, path, (struct result_value){.kind = VALUE_FLAG, .count = flag});
}

/* ---- machine ---- */

void build_visit(const struct build_facts *b, const char *before,
                 void (*fn)(void *arg, const struct result_value *), void *arg)
{
    const struct visitor v = {before, fn, arg};
    text_auto libc = {0};

    text_add(&libc, "glibc %s", b->libc);
    visit_text(&v, "version", b->version);
    visit_text_or_none(&v, "git", b->git);
    visit_count(&v, "plugin_abi", EPA_ABI);
    visit_text(&v, "compiler", b->compiler);
    visit_text(&v, "type", b->type);
    visit_text(&v, "sanitizers", b->sanitizers);
    visit_flag(&v, "debug", b->debug);
    visit_text(&v, "libc", libc.data);
    visit_text(&v, "isa", b->isa);
    visit_text_or_none(&v, "isa_refused", b->isa_refused);
}

static void visit_variable(void *arg, const char *name, size_t bytes, const char *value)
{
    text_auto own = {0};

    text_add(&own, "%.*s", (int)bytes, name);
    visit_text(arg, own.data, value);
}

void machine_visit(const struct machine_facts *m,
                   void (*fn)(void *arg, const struct result_value *), void *arg)
{
    const struct visitor v = {"", fn, arg};
    struct visitor environment = {"environment.", fn, arg};

    visit_text_or_none(&v, "host", m->host);
    visit_text(&v, "kernel", m->kernel);
    visit_text_or_none(&v, "arch", m->arch);
    visit_text_or_none(&v, "cpu", m->cpu);
    visit_count(&v, "cores", m->cores);
    visit_count_or_none(&v, "sockets", m->sockets);
    visit_count_or_none(&v, "numa_nodes", m->numa_nodes);
    visit_count_or_none(&v, "memory_bytes", m->memory_bytes);
    visit_text_or_none(&v, "clocksource", m->clocksource);
    visit_real(&v, "timer_ns", m->timer_ns);
    visit_text_or_none(&v, "huge_pages", m->huge_pages);
    visit_text_or_none(&v, "shmem_huge_pages", m->shmem_huge_pages);
    visit_real(&v, "load_average", m->load_average);
    build_visit(&m->build, "build.", fn, arg);
    visit(&v, "environment", (struct result_value){.kind = VALUE_GROUP});
    recorded_variables_each(visit_variable, &environment);
    visit_count_or_none(&v, "threads_per_core", m->threads_per_core);
    visit_text_or_none(&v, "governor", m->governor);
    visit_count_or_none(&v, "l1d_bytes", m->cache_bytes[1]);
    visit_count_or_none(&v, "l2_bytes", m->cache_bytes[2]);
    visit_count_or_none(&v, "l3_bytes", m->cache_bytes[3]);
}

/* ---- plugins ---- */

/* Writes FNV-1a of a file's bytes as text; "": the file is no longer readable. */
static void hash_file(const char *path, char out[17])
{
    struct epa_error ignored = {EPA_OK, ""};
    uint64_t hash = HASH_BEGIN, bytes;
    char piece[1 << 14];
    ssize_t n = 1;
    int fd;

    out[0] = '\0';
    if (file_open(path, &fd, &bytes, &ignored) != EPA_OK)
        return;
    while (n > 0 || (n < 0 && errno == EINTR)) {
        n = read(fd, piece, sizeof(piece));
        hash_add(&hash, piece, n > 0 ? (size_t)n : 0);
    }
    close(fd);
    if (n == 0)
        snprintf(out, 17, "%016" PRIx64, hash);
}

/* The hash of its bytes is the version of a plugin. A built-in plugin has no file. */
static void visit_plugin(const struct visitor *v, const struct epa_plugin *plugin)
{
    static const char program = 0; /* an object inside the program */
    Dl_info of, own;
    bool module = dladdr(plugin, &of) != 0 && of.dli_fname != NULL &&
                  (dladdr(&program, &own) == 0 || own.dli_fbase != of.dli_fbase);
    char hash[17] = "";

    if (module)
        hash_file(of.dli_fname, hash);
    visit_text(v, "name", plugin->name);
    visit(v, "file",
          (struct result_value){.kind = module ? VALUE_TEXT : VALUE_NONE,
                                .text = module ? of.dli_fname : NULL});
    visit_text_or_none(v, "hash", hash);
}

void plugins_visit(const struct experiment *x, void (*fn)(void *arg, const struct result_value *),
                   void *arg)
{
    visit_plugin(&(struct visitor){"launcher.", fn, arg}, x->launcher.plugin);
    visit_plugin(&(struct visitor){"backend.", fn, arg}, x->backend.plugin);
    visit_plugin(&(struct visitor){"transport.", fn, arg}, x->transport.plugin);
    visit_plugin(&(struct visitor){"algorithm.", fn, arg}, x->algorithm.plugin);
}

/* ---- measurement of time ---- */

void timing_visit(const struct run_figures *f, void (*fn)(void *arg, const struct result_value *),
                  void *arg)
{
    static const char *const clock[] = {[CLOCK_HOST] = "host",
                                        [CLOCK_EVENTS] = "events",
                                        [CLOCK_GRAPH] = "graph",
                                        [CLOCK_END_TO_END] = "end_to_end"};
    const struct run_facts *s = &f->facts;
    const struct bench_options *o = &s->experiment->bench;
    const struct visitor v = {"", fn, arg}, arrivals = {"arrivals.", fn, arg};
    bool graph = s->notes->clock == CLOCK_GRAPH;
    bool cold = s->verb == VERB_BENCH && o->cache == CACHE_COLD;
    bool whole = graph || s->notes->clock == CLOCK_END_TO_END || s->open;

    if (clock[s->notes->clock] == NULL)
        return;
    visit_text(&v, "clock", clock[s->notes->clock]);
    visit_count(&v, "calls", graph ? s->calls : 1);
    visit_text(&v, "cache", cold ? "cold" : "warm");
    visit_text(&v, "total", whole ? "measured" : "sum");
    if (!s->open) {
        visit(&v, "arrivals", (struct result_value){.kind = VALUE_NONE});
        return;
    }
    visit_text(&arrivals, "process", o->arrivals == ARRIVALS_POISSON ? "poisson" : "constant");
    visit_real(&arrivals, "rate", s->notes->arrivals.rate);
    visit_real(&arrivals, "closed_rate", s->notes->arrivals.closed_rate);
    visit_real(&arrivals, "late", f->late);
}
