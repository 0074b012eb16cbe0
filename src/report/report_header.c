/* The comment lines that a table begins with: what ran, and where. */
#include "report/report_header.h"

#include <string.h>

#include "base/text.h"
#include "config/experiment.h"

/* "0-3, 6, 7": runs of neighbours shortened, order kept. */
static void add_cores(struct text *out, const struct session *s)
{
    uint32_t ranks = s->experiment->ranks, last;

    for (uint32_t r = 0; r < ranks; r = last + 1) {
        int32_t core = session_rank(s, r)->core;

        for (last = r; last + 1 < ranks && core >= 0; last++) {
            if (session_rank(s, last + 1)->core != session_rank(s, last)->core + 1)
                break;
        }
        text_add(out, r == 0 ? "" : ", ");
        if (core < 0)
            text_add(out, "any");
        else if (last > r)
            text_add(out, "%d-%d", core, session_rank(s, last)->core);
        else
            text_add(out, "%d", core);
    }
}

static void print_pins(FILE *file, const struct session *s)
{
    const struct experiment *x = s->experiment;
    const char *plural = x->ranks == 1 ? "" : "s";
    struct text cores = {0};
    uint32_t pinned = 0;

    for (uint32_t r = 0; s->block != NULL && r < x->ranks; r++)
        pinned += session_rank(s, r)->core >= 0;
    if (pinned > 0)
        add_cores(&cores, s);
    if (cores.data != NULL)
        text_comment(file, "%u rank%s by %s, pinned in order to cores %s; seed %llu", x->ranks,
                     plural, x->launcher.plugin->name, cores.data, (unsigned long long)x->seed);
    else
        text_comment(file, "%u rank%s by %s, not pinned; seed %llu", x->ranks, plural,
                     x->launcher.plugin->name, (unsigned long long)x->seed);
    text_free(&cores);
}

/* "hosta (ranks 0, 2, 4)"; false: no rank is on that node. */
static bool add_node(struct text *out, const struct session *s, uint32_t node)
{
    uint32_t ranks = s->block != NULL ? s->experiment->ranks : 0, n = 0;

    for (uint32_t r = 0; r < ranks; r++) {
        const struct session_rank *rank = session_rank(s, r);

        if (rank->node != node)
            continue;
        if (n++ == 0)
            text_add(out, "%s%s (ranks ", node == 0 ? "" : ", ", rank->host);
        text_add(out, "%s%u", n == 1 ? "" : ", ", r);
    }
    if (n > 0)
        text_add(out, ")");
    return n > 0;
}

static void print_nodes(FILE *file, const struct session *s)
{
    struct text line = {0};
    uint32_t nodes = 0;

    while (add_node(&line, s, nodes))
        nodes++;
    if (s->process_id.source[0] != '\0')
        text_comment(file, "found: %s", s->process_id.source);
    if (nodes > 1)
        text_comment(file, "%u nodes: %s", nodes, line.data);
    text_free(&line);
}

/* One section of the experiment: "ll_v2 (dispatch_dtype fp8, buffers 2)". */
struct description {
    const char *section;
    struct text main, options;
};

static void add_value(void *arg, const char *key, const char *value, bool quoted)
{
    struct description *d = arg;
    size_t n = strlen(d->section);

    (void)quoted;
    if (strncmp(key, d->section, n) != 0 || key[n] != '.')
        return;
    key += n + 1;
    if (strcmp(key, "name") == 0 || strcmp(key, "kind") == 0)
        text_add(&d->main, "%s", value);
    else
        text_add(&d->options, "%s%s %s", d->options.data == NULL ? "" : ", ", key, value);
}

/* "algorithm: ll_v2 (dispatch_dtype fp8, buffers 2); transport: shm; ..." */
static void print_sections(FILE *file, const struct experiment *x, const char *const *section,
                           uint32_t n)
{
    struct text line = {0};

    for (uint32_t i = 0; i < n; i++) {
        struct description d = {.section = section[i]};

        experiment_visit(x, add_value, &d);
        text_add(&line, "%s%s: %s", i == 0 ? "" : "; ", d.section,
                 d.main.data != NULL ? d.main.data : "");
        if (d.options.data != NULL)
            text_add(&line, d.main.data != NULL ? " (%s)" : "%s", d.options.data);
        text_free(&d.main);
        text_free(&d.options);
    }
    if (line.data != NULL)
        text_comment(file, "%s", line.data);
    text_free(&line);
}

static void print_machine(FILE *file, const struct facts *f)
{
    char memory[32];

    text_comment(file, "machine: %s, %u core%s, %s, %s, %s", f->cpu, f->cores,
                 f->cores == 1 ? "" : "s", text_size(memory, sizeof(memory), f->memory_bytes),
                 f->kernel, f->host);
    text_comment(file, "build: epa2a %s, %s, %s%s%s, %s kernels", f->version, f->compiler,
                 f->build_type, strcmp(f->sanitizers, "none") != 0 ? ", sanitizers: " : "",
                 strcmp(f->sanitizers, "none") != 0 ? f->sanitizers : "", f->isa);
}

static void print_context(FILE *file, const struct facts *f)
{
    struct text line = {0};

    for (uint32_t i = 0; i < f->n_context; i++)
        text_add(&line, "%s%s", i == 0 ? "" : ", ", f->context[i]);
    if (line.data != NULL)
        text_comment(file, "context: %s", line.data);
    text_free(&line);
}

static void print_facts(FILE *file, const struct session_facts *facts)
{
    struct text line = {0};

    for (uint32_t i = 0; i < facts->n; i++)
        text_add(&line, "%s%s %s", i == 0 ? "" : ", ", facts->fact[i].key, facts->fact[i].value);
    if (line.data != NULL)
        text_comment(file, "rank 0's %s", line.data);
    text_free(&line);
}

/* What rank 0 said of its device and its links, in a line each. */
static void print_device(FILE *file, const struct result *result)
{
    const struct session *s = result->session;

    if (s->block != NULL) {
        print_facts(file, &session_rank(s, 0)->device);
        print_facts(file, &session_rank(s, 0)->transport);
    }
    if (result->peak.known && !(result->peak.bytes_per_ns > 0))
        text_comment(file, "link peak: %.2f us for a signal; the rate is not known and left out",
                     result->peak.latency_ns / 1e3);
    else if (result->peak.known)
        text_comment(file,
                     "link peak: %.1f GB/s out of a rank while all send, %.2f us for a signal",
                     result->peak.bytes_per_ns, result->peak.latency_ns / 1e3);
}

static void print_fault(FILE *file, const struct experiment *x)
{
    struct text what = {0};

    if (!fault_is_planted(x))
        return;
    fault_describe(&x->fault, &what);
    text_comment(file, "PLANTED FAULT, no measurement: %s", what.data);
    text_free(&what);
}

/* "expert: mlp (ffn 2048, ...)", and what computes it. */
static void print_operation_section(FILE *file, const struct session *s)
{
    const struct operation *op = session_operation(s);
    const char *section = op->head_also != NULL ? op->head_also(s->experiment) : NULL;

    if (section == NULL)
        return;
    print_sections(file, s->experiment, &section, 1);
    if (s->notes != NULL && s->notes->between_by[0] != '\0')
        text_comment(file, "%s by %s", op->between_name, s->notes->between_by);
}

void report_header(FILE *file, const struct result *result)
{
    static const char *const plugins[] = {"algorithm", "transport", "backend"};
    const struct session *s = result->session;
    const struct experiment *x = s->experiment;

    text_comment(file, "epa2a %s: %s", session_verb(s), x->name);
    if (x->label != NULL)
        text_comment(file, "run: %s; id %s", x->label, x->id);
    print_sections(file, x, plugins, 3);
    for (const char *const *line = session_operation(s)->head; *line != NULL;) {
        uint32_t n = 0;

        while (line[n] != NULL)
            n++;
        print_sections(file, x, line, n);
        line += n + 1;
    }
    print_operation_section(file, s);
    print_fault(file, x);
    print_pins(file, s);
    print_nodes(file, s);
    print_machine(file, result->facts);
    print_context(file, result->facts);
    print_device(file, result);
}
