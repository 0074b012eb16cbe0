/* Checks between values. Each error stands at the value that is wrong, with a note where
 * the other was set; a value that was refused already is not complained about again. */
#include "config/experiment_table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "config/diag.h"
#include "config/expect.h"
#include "config/fault.h"
#include "config/node.h"
#include "config/options.h"
#include "op/op.h"

const char *check_value(const struct config_check *c, const char *key, uint64_t value)
{
    return arena_printf(c->x->arena, "%s (%llu%s)", key, (unsigned long long)value,
                        origin_find(c->x, key) == NULL ? ", the default" : "");
}

void check_conflict(const struct config_check *c, const char *wrong, const char *other,
                    const char *hint, const char *fmt, ...)
{
    const struct node *w = origin_find(c->x, wrong);
    const struct node *o = other == NULL ? NULL : origin_find(c->x, other);
    const struct source_location nowhere = {.file = c->x->file};
    char text[512];
    va_list args;

    if ((w != NULL && w->refused) || (o != NULL && o->refused))
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    diag_error(c->diag,
               w != NULL   ? &w->location
               : o != NULL ? &o->location
                           : &nowhere,
               hint, "%s", text);
    if (w != NULL && o != NULL)
        diag_note(c->diag, &o->location, "'%s' was set here", other);
}

const char *check_multiples(const struct config_check *c, uint32_t value, uint32_t of)
{
    uint32_t below = value / of * of;

    if (below == 0)
        return arena_printf(c->x->arena, "write %u", of);
    return arena_printf(c->x->arena, "write %u or %u", below, below + of);
}

static void check_shape(const struct config_check *c)
{
    uint32_t ranks = c->x->ranks, node = c->x->ranks_per_node;

    if (node != 0 && ranks % node != 0)
        check_conflict(c, "ranks_per_node", "ranks", "0: all ranks are on one",
                       "%s does not divide %s", check_value(c, "ranks_per_node", node),
                       check_value(c, "ranks", ranks));
    if (c->x->verify.straggle_ns >= c->x->timeout_ns)
        check_conflict(c, "verify.straggle", "timeout", "a rank that sleeps is waited for",
                       "verify.straggle is not shorter than timeout");
}

/* Ranks that are threads share what would be killed or stopped with the launcher. */
static void check_fault(const struct config_check *c)
{
    const struct fault_options *f = &c->x->fault;
    const struct epa_plugin *launcher = c->x->launcher.plugin;

    if (!fault_is_planted(c->x))
        return;
    if (f->rank >= c->x->ranks)
        check_conflict(c, "fault.rank", "ranks", "ranks count from 0",
                       "there is no rank %u: fault.rank is not below %s", f->rank,
                       check_value(c, "ranks", c->x->ranks));
    if (f->kind != FAULT_STRAGGLE && launcher != NULL && strcmp(launcher->name, "thread") == 0)
        check_conflict(
            c, "fault.kind", "launcher.name", "straggle, or launcher: fork",
            "fault.kind: %s would %s all ranks and the launcher, which are threads of one "
            "process",
            fault_name(f), fault_name(f));
}

static void check_kind(const struct config_check *c, const struct section *section)
{
    const struct node *map = node_find(c->x->origins->root, section->name);

    for (uint32_t i = 0; map != NULL && map->kind == NODE_MAP && i < map->n; i++) {
        const char *option = map->key[i]->text, *needs;
        const char *key = arena_printf(c->x->arena, "%s.%s", section->name, option);
        const char *main = arena_printf(c->x->arena, "%s.%s", section->name, section->main);

        if (option_applies(c->x, section, option, &needs))
            continue;
        check_conflict(c, key, main, "remove it, or set that kind", "%s needs %s", key, needs);
    }
}

static void check_tokens(const struct config_check *c, const struct operation *op)
{
    const struct tokens_options *t = &c->x->tokens;
    const struct node *max = origin_find(c->x, op->size_key);
    const struct node *each = origin_find(c->x, "tokens.per_rank");

    if (t->kind != TOKENS_LIST)
        return;
    if (each == NULL) {
        check_conflict(c, "tokens.kind", NULL, "such as tokens: [128, 0]",
                       "tokens.kind list needs 'per_rank', one number for each rank");
        return;
    }
    if (each->refused)
        return;
    if (t->per_rank.n != c->x->ranks)
        check_conflict(c, "tokens.per_rank", "ranks", "one number for each rank",
                       "tokens.per_rank has %u numbers for %s", t->per_rank.n,
                       check_value(c, "ranks", c->x->ranks));
    for (uint32_t i = 0; i < t->per_rank.n; i++) {
        if (t->per_rank.item[i] <= op->size(c->x) || (max != NULL && max->refused))
            continue;
        diag_error(c->diag, &each->item[i]->location, NULL,
                   "tokens.per_rank: %u tokens on rank %u are more than %s", t->per_rank.item[i], i,
                   check_value(c, op->size_key, op->size(c->x)));
        if (max != NULL)
            diag_note(c->diag, &max->location, "'%s' was set here", op->size_key);
    }
}

static void check_least(const struct config_check *c, const struct operation *op)
{
    uint32_t least = c->x->tokens.min;

    if (c->x->tokens.kind == TOKENS_RANDOM && least > op->size(c->x))
        check_conflict(c, "tokens.min", op->size_key, NULL, "%s is larger than %s",
                       check_value(c, "tokens.min", least),
                       check_value(c, op->size_key, op->size(c->x)));
}

/* An option that says nothing with another as it is; `needs` says with what it would. */
static void check_unused(const struct config_check *c, const char *section, const char *option,
                         const char *other, const char *hint)
{
    const char *key = arena_printf(c->x->arena, "%s.%s", section, option), *needs = "";

    if (origin_find(c->x, key) != NULL &&
        !option_applies(c->x, section_find(section), option, &needs))
        check_conflict(c, key, other, hint, "%s needs %s", key, needs);
}

static void check_profile(const struct config_check *c)
{
    const char *file = c->x->profile.file;

    check_unused(c, "profile", "iterations", "profile.file", "such as profile: out/run");
    if (file != NULL && (file[0] == '\0' || file[strlen(file) - 1] == '/'))
        check_conflict(c, "profile.file", NULL, "such as profile: out/run",
                       "profile.file is what files begin with that end in .json, and this is a "
                       "folder");
}

/* Stop rules of bench. */
static void check_stop(const struct config_check *c)
{
    const struct bench_options *b = &c->x->bench;

    check_unused(c, "bench", "min_iterations", NULL, "add ci95: 1%, or remove it");
    check_unused(c, "bench", "min_time", NULL, "add ci95: 1%, or remove it");
    if (b->max_time_ns != 0 && b->min_time_ns > b->max_time_ns)
        check_conflict(c, "bench.min_time", "bench.max_time", NULL,
                       "bench.min_time is longer than bench.max_time");
}

/* Texts of expect that cannot be read. Rows are known once there are ranks. */
static void check_expect(const struct config_check *c)
{
    for (uint32_t i = 0; i < EXPECT_FIGURES; i++) {
        const char *key = arena_printf(c->x->arena, "expect.%s", expect_name[i]);
        const struct node *node = origin_find(c->x, key);
        struct expectation all[EXPECT_MOST];
        struct value_error error = {"", ""};
        struct source_location location;
        const char *at;

        if (node == NULL || node->refused ||
            expect_read(&c->x->expect, i, all, &error) != UINT32_MAX)
            continue;
        at = node->text + all[0].at;
        location = node->location;
        location.column += node->quoted + all[0].at;
        location.width = (uint32_t)strcspn(at, ",");
        diag_error(c->diag, &location, error.hint[0] != '\0' ? error.hint : NULL, "%s: '%.*s' %s",
                   key, (int)strcspn(at, ","), at, error.what);
    }
}

/* Options of bench that exclude each other, or are for GPUs. */
static void check_bench(const struct config_check *c)
{
    const struct bench_options *b = &c->x->bench;
    const struct epa_backend_plugin *backend = (const void *)c->x->backend.plugin;
    bool host = backend != NULL && backend->memory == EPA_MEMORY_HOST;
    bool given = origin_find(c->x, "bench.calls_per_graph") != NULL;

    if (b->calls_per_graph % 2 != 0)
        check_conflict(c, "bench.calls_per_graph", NULL, check_multiples(c, b->calls_per_graph, 2),
                       "%s is odd: a graph must end with the buffer set that it began with",
                       check_value(c, "bench.calls_per_graph", b->calls_per_graph));
    if (given && b->cache == CACHE_COLD)
        check_conflict(c, "bench.calls_per_graph", "bench.cache", "leave bench.calls_per_graph out",
                       "with bench.cache: cold one call is timed at a time, as the next would "
                       "find a warm cache");
    check_unused(c, "bench", "barrier", "bench.clock", "remove it");
    if (given &&
        (b->clock == CLOCK_HOST || b->clock == CLOCK_EVENTS || b->clock == CLOCK_END_TO_END))
        check_conflict(c, "bench.calls_per_graph", "bench.clock",
                       "remove it, or set bench.clock: graph",
                       "bench.calls_per_graph needs bench.clock: graph");
    if (backend == NULL)
        return;
    if (given && host && b->clock == CLOCK_AUTO && b->cache == CACHE_WARM &&
        b->calls_per_graph % 2 == 0)
        check_conflict(c, "bench.calls_per_graph", "backend.name",
                       "leave bench.calls_per_graph out",
                       "bench.calls_per_graph is for graphs, which backend '%s' has not",
                       c->x->backend.plugin->name);
    if (host && (b->clock == CLOCK_EVENTS || b->clock == CLOCK_GRAPH))
        check_conflict(c, "bench.clock", "backend.name", "set bench.clock: host",
                       "bench.clock: events and graph are for GPUs; backend '%s' reads the host's "
                       "clock",
                       c->x->backend.plugin->name);
    if (!host && b->clock == CLOCK_HOST)
        check_conflict(c, "bench.clock", "backend.name", "set bench.clock: events",
                       "on backend '%s' stages only queue their work, and the host's clock does "
                       "not see them",
                       c->x->backend.plugin->name);
    if (host && b->cache == CACHE_COLD && b->clock != CLOCK_END_TO_END)
        check_conflict(c, "bench.cache", "backend.name", "set bench.clock: end_to_end",
                       "bench.cache: cold on backend '%s' needs bench.clock: end_to_end",
                       c->x->backend.plugin->name);
}

/* An open loop: by the host's clock, without anything that ranks wait for in between. */
static void check_arrivals(const struct config_check *c)
{
    const struct bench_options *b = &c->x->bench;
    const struct epa_backend_plugin *backend = (const void *)c->x->backend.plugin;

    check_unused(c, "bench", "load", "bench.arrivals", "set bench.arrivals: poisson");
    check_unused(c, "bench", "rate", "bench.arrivals", "set bench.arrivals: poisson");
    if (b->arrivals == ARRIVALS_CLOSED)
        return;
    if (!(b->load > 0) && !(b->rate > 0))
        check_conflict(c, "bench.arrivals", NULL, "add load: 0.8, or rate: 1000",
                       "an open loop needs to know how many are due: bench.load or bench.rate");
    if (b->load > 0 && b->rate > 0)
        check_conflict(c, "bench.load", "bench.rate", "keep one of them",
                       "bench.load and bench.rate both say how many are due");
    if (b->load > 0 && b->warmup == 0)
        check_conflict(c, "bench.load", "bench.warmup", "raise bench.warmup, or set bench.rate",
                       "bench.load is a part of what warm-up measures, and bench.warmup is 0");
    if (b->clock != CLOCK_AUTO && b->clock != CLOCK_HOST)
        check_conflict(c, "bench.clock", "bench.arrivals", "set bench.clock: host",
                       "an open loop is timed by the host's clock alone");
    if (b->ci95 > 0 || b->max_time_ns > 0)
        check_conflict(c, b->ci95 > 0 ? "bench.ci95" : "bench.max_time", "bench.arrivals",
                       "remove it, and set bench.iterations",
                       "ranks that check whether to stop exchange times, which would delay the "
                       "next arrival");
    if (backend != NULL && backend->memory != EPA_MEMORY_HOST)
        check_conflict(c, "bench.arrivals", "backend.name", "set bench.arrivals: closed",
                       "an open loop is for hosts; on backend '%s' stages only queue their work",
                       c->x->backend.plugin->name);
}

/* Whether the plugins chosen go together, by what they say of themselves. */
static enum epa_status check_plugins(const struct experiment *x, struct epa_error *err)
{
    const struct epa_algorithm_plugin *algorithm = (const void *)x->algorithm.plugin;
    const struct epa_transport_plugin *transport = (const void *)x->transport.plugin;
    const struct epa_backend_plugin *backend = (const void *)x->backend.plugin;
    bool host = backend->memory == EPA_MEMORY_HOST;
    uint32_t needs = host ? algorithm->needs_host : algorithm->needs_cuda;

    if (operation_of(algorithm->op) == NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "algorithm '%s' is for an operation that this program does not know",
                        x->algorithm.plugin->name);
    if ((algorithm->memory & backend->memory) == 0)
        return epa_fail(err, EPA_ERR_CONFIG, "algorithm '%s' has no code for backend '%s'",
                        x->algorithm.plugin->name, x->backend.plugin->name);
    if ((transport->memory & backend->memory) == 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "transport '%s' has no heap in the memory of backend '%s'",
                        x->transport.plugin->name, x->backend.plugin->name);
    if ((needs & ~transport->flags) != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "algorithm '%s' needs what transport '%s' cannot do; `epa2a list` "
                        "shows both",
                        x->algorithm.plugin->name, x->transport.plugin->name);
    if (x->ranks_per_node != 0 && x->ranks_per_node < x->ranks &&
        (transport->flags & EPA_TRANSPORT_NODES) == 0 &&
        (host || !operation_of(algorithm->op)->device_nodes))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "transport '%s' connects the ranks of one node, and ranks_per_node: "
                        "%u splits %u ranks into several",
                        x->transport.plugin->name, x->ranks_per_node, x->ranks);
    return EPA_OK;
}

/* What the algorithm itself says of the shape: the last word, so only where all else is
 * good. */
static enum epa_status check_plan(const struct experiment *x, struct epa_footprint *out,
                                  struct epa_error *err)
{
    const struct epa_algorithm_plugin *algorithm = (const void *)x->algorithm.plugin;
    const struct epa_transport_plugin *transport = (const void *)x->transport.plugin;
    const struct epa_world world = {.size = x->ranks,
                                    .local_size =
                                        x->ranks_per_node == 0 ? x->ranks : x->ranks_per_node,
                                    .local_cores = 1};
    struct epa_problem problem = operation_problem(x);
    enum epa_status status;

    *out = (struct epa_footprint){0};
    status = algorithm->plan(&problem, &world, transport->flags, x->algorithm.config, out, err);
    if (status != EPA_OK) /* in case it did not say why */
        epa_fail(err, status, "algorithm '%s' refuses this shape", x->algorithm.plugin->name);
    return status;
}

static void check_together(const struct config_check *c, const struct operation *op)
{
    const struct experiment *x = c->x;
    const struct node *at = origin_find(x, "algorithm.name");
    const struct source_location nowhere = {.file = x->file};
    struct epa_error err = {EPA_OK, ""};
    struct epa_footprint footprint;

    if (x->algorithm.plugin == NULL || x->backend.plugin == NULL || x->transport.plugin == NULL)
        return;
    if (check_plugins(x, &err) != EPA_OK || check_plan(x, &footprint, &err) != EPA_OK)
        diag_error(c->diag, at != NULL ? &at->location : &nowhere, NULL, "%s", err.text);
    else if (op->check_footprint != NULL)
        op->check_footprint(c, &footprint);
}

/* Sections of another operation than the algorithm's say nothing. */
static void check_section(const struct config_check *c, const struct section *section,
                          const struct operation *op)
{
    const struct node *root = c->x->origins->root;

    for (uint32_t i = 0; op != NULL && i < root->n; i++)
        if (strcmp(root->key[i]->text, section->name) == 0)
            diag_error(c->diag, &root->key[i]->location,
                       "remove it, or choose another algorithm; `epa2a list` shows them",
                       "'%s' is no section for algorithm '%s', whose operation is %s",
                       section->name, c->x->algorithm.plugin->name, op->name);
}

/* Without the algorithm that says which one: the one whose section the file has. */
static const struct operation *guess_operation(const struct experiment *x)
{
    const struct operation *op = operation_of_experiment(x);

    for (uint32_t i = 0; op == NULL && operation_at(i) != NULL; i++)
        if (node_find(x->origins->root, operation_at(i)->name) != NULL)
            op = operation_at(i);
    return op;
}

void experiment_check(const struct experiment *x, uint32_t before, struct diag *diag)
{
    const struct config_check c = {x, diag};
    const struct operation *op = guess_operation(x);

    check_shape(&c);
    if (op != NULL)
        op->check_options(&c);
    for (const struct section *s = experiment_sections; s->name != NULL; s++)
        if (!section_applies(s, x))
            check_section(&c, s, op);
        else if (s->main != NULL && !s->plugin)
            check_kind(&c, s);
    check_fault(&c);
    if (op != NULL && section_applies(section_find("tokens"), x)) {
        check_tokens(&c, op);
        check_least(&c, op);
    }
    check_unused(&c, "verify", "rtol", "verify.tolerance", "remove it, or set that");
    check_unused(&c, "verify", "atol", "verify.tolerance", "remove it, or set that");
    check_bench(&c);
    check_arrivals(&c);
    check_stop(&c);
    check_expect(&c);
    check_profile(&c);
    if (diag_errors(diag) == before)
        check_together(&c, op);
}
