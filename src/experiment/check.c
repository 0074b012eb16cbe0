/* Checks between values. Each error stands at the value that is wrong, with a note where
 * the other was set; a value that was refused already is not complained about again. */
#include "experiment/read.h"

#include <string.h>

#include "base/arena.h"
#include "config/expect.h"
#include "config/options.h"
#include "op/op.h"

/* Options that say nothing with others as they are; of one the first reason is told. */
static void check_rules(const struct config_check *c, const struct section *section)
{
    const char *last = "";

    for (const struct option_rule *r = option_rules; r->section != NULL; r++) {
        const char *key = arena_printf(c->x->arena, "%s.%s", r->section, r->option);

        if (strcmp(r->section, section->name) != 0 || strcmp(r->option, last) == 0 ||
            origin_find(c->x, key) == NULL || option_rule_holds(r, c->x))
            continue;
        check_conflict(c, key, arena_printf(c->x->arena, "%s.%s", r->section, r->other),
                       "remove it, or set that", "%s needs %s", key, r->needs);
        last = r->option;
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

/* Two values that exclude each other: whether they do, where, and what is said. */
struct conflict {
    bool wrong;
    const char *key, *other; /* other NULL: of itself */
    const char *hint, *what;
};

static void check_conflicts(const struct config_check *c, const struct conflict *all, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (all[i].wrong)
            check_conflict(c, all[i].key, all[i].other, all[i].hint, "%s", all[i].what);
}
#define CHECK(c, all) check_conflicts(c, all, sizeof(all) / sizeof((all)[0]))

static void check_shape(const struct config_check *c, const struct operation *op)
{
    const struct experiment *x = c->x;
    const struct fault_options *f = &x->fault;
    const char *file = x->profile.file, *size = op != NULL ? op->size_key : "";
    bool tokens =
        op != NULL && section_is_for(section_find("tokens"), (const void *)x->algorithm.plugin);
    const char *launcher = x->launcher.plugin != NULL ? x->launcher.plugin->name : "";
    const char *ranks = check_value(c, "ranks", x->ranks);
    const struct conflict all[] = {
        {x->ranks_per_node != 0 && x->ranks % x->ranks_per_node != 0, "ranks_per_node", "ranks",
         "0: all ranks are on one",
         arena_printf(x->arena, "%s does not divide %s",
                      check_value(c, "ranks_per_node", x->ranks_per_node), ranks)},
        {x->verify.straggle_ns >= x->timeout_ns, "verify.straggle", "timeout",
         "a rank that sleeps is waited for", "verify.straggle is not shorter than timeout"},
        {fault_is_planted(x) && f->rank >= x->ranks, "fault.rank", "ranks", "ranks count from 0",
         arena_printf(x->arena, "there is no rank %u: fault.rank is not below %s", f->rank, ranks)},
        /* Ranks that are threads share what would be killed or stopped with the launcher. */
        {fault_is_planted(x) && f->kind != FAULT_STRAGGLE && strcmp(launcher, "thread") == 0,
         "fault.kind", "launcher.name", "straggle, or launcher: fork",
         arena_printf(
             x->arena,
             "fault.kind: %s would %s all ranks and the launcher, which are threads of one process",
             fault_name(f), fault_name(f))},
        {tokens && x->tokens.kind == TOKENS_RANDOM && x->tokens.min > op->size(x), "tokens.min",
         size, NULL,
         arena_printf(x->arena, "%s is larger than %s", check_value(c, "tokens.min", x->tokens.min),
                      check_value(c, size, op != NULL ? op->size(x) : 0))},
        {file != NULL && (*file == 0 || file[strlen(file) - 1] == '/'), "profile.file", NULL,
         "such as profile: out/run",
         "profile.file is what files begin with that end in .json, and this is a folder"},
    };

    CHECK(c, all);
}

static void check_bench(const struct config_check *c)
{
    const struct bench_options *b = &c->x->bench;
    const struct epa_backend_plugin *backend = (const void *)c->x->backend.plugin;
    const char *name = backend != NULL ? backend->plugin.name : "";
    bool host = backend != NULL && backend->memory == EPA_MEMORY_HOST;
    bool gpu = backend != NULL && !host, odd = b->calls_per_graph % 2 != 0;
    bool calls = origin_find(c->x, "bench.calls_per_graph") != NULL;
    bool open = b->arrivals != ARRIVALS_CLOSED, cold = b->cache == CACHE_COLD;
    const struct conflict all[] = {
        {odd, "bench.calls_per_graph", NULL, check_multiples(c, b->calls_per_graph, 2),
         arena_printf(c->x->arena,
                      "%s is odd: a graph must end with the buffer set that it began with",
                      check_value(c, "bench.calls_per_graph", b->calls_per_graph))},
        {calls && cold, "bench.calls_per_graph", "bench.cache", "leave bench.calls_per_graph out",
         "with bench.cache: cold one call is timed at a time, as the next would find a warm cache"},
        {calls &&
             (b->clock == CLOCK_HOST || b->clock == CLOCK_EVENTS || b->clock == CLOCK_END_TO_END),
         "bench.calls_per_graph", "bench.clock", "remove it, or set bench.clock: graph",
         "bench.calls_per_graph needs bench.clock: graph"},
        {calls && host && b->clock == CLOCK_AUTO && !cold && !odd, "bench.calls_per_graph",
         "backend.name", "leave bench.calls_per_graph out",
         arena_printf(c->x->arena,
                      "bench.calls_per_graph is for graphs, which backend '%s' has not", name)},
        {host && (b->clock == CLOCK_EVENTS || b->clock == CLOCK_GRAPH), "bench.clock",
         "backend.name", "set bench.clock: host",
         arena_printf(
             c->x->arena,
             "bench.clock: events and graph are for GPUs; backend '%s' reads the host's clock",
             name)},
        {gpu && b->clock == CLOCK_HOST, "bench.clock", "backend.name", "set bench.clock: events",
         arena_printf(
             c->x->arena,
             "on backend '%s' stages only queue their work, and the host's clock does not see them",
             name)},
        {host && cold && b->clock != CLOCK_END_TO_END, "bench.cache", "backend.name",
         "set bench.clock: end_to_end",
         arena_printf(c->x->arena,
                      "bench.cache: cold on backend '%s' needs bench.clock: end_to_end", name)},
        {b->max_time_ns != 0 && b->min_time_ns > b->max_time_ns, "bench.min_time", "bench.max_time",
         NULL, "bench.min_time is longer than bench.max_time"},
        /* An open loop: by the host's clock, without anything that ranks wait for in between. */
        {open && !(b->load > 0) && !(b->rate > 0), "bench.arrivals", NULL,
         "add load: 0.8, or rate: 1000",
         "an open loop needs to know how many are due: bench.load or bench.rate"},
        {open && b->load > 0 && b->rate > 0, "bench.load", "bench.rate", "keep one of them",
         "bench.load and bench.rate both say how many are due"},
        {open && b->load > 0 && b->warmup == 0, "bench.load", "bench.warmup",
         "raise bench.warmup, or set bench.rate",
         "bench.load is a part of what warm-up measures, and bench.warmup is 0"},
        {open && b->clock != CLOCK_AUTO && b->clock != CLOCK_HOST, "bench.clock", "bench.arrivals",
         "set bench.clock: host", "an open loop is timed by the host's clock alone"},
        {open && (b->ci95 > 0 || b->max_time_ns > 0), b->ci95 > 0 ? "bench.ci95" : "bench.max_time",
         "bench.arrivals", "remove it, and set bench.iterations",
         "ranks that check whether to stop exchange times, which would delay the next arrival"},
        {open && gpu, "bench.arrivals", "backend.name", "set bench.arrivals: closed",
         arena_printf(c->x->arena,
                      "an open loop is for hosts; on backend '%s' stages only queue their work",
                      name)},
    };

    CHECK(c, all);
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
        (transport->flags & EPA_TRANSPORT_NODES) == 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "transport '%s' connects the ranks of one node, and ranks_per_node: "
                        "%u splits %u ranks into several",
                        x->transport.plugin->name, x->ranks_per_node, x->ranks);
    return EPA_OK;
}

/* What the algorithm itself says of the shape: the last word, so only where all else is good. */
static void check_plan(const struct config_check *c, const struct operation *op,
                       struct experiment *x)
{
    const struct epa_algorithm_plugin *algorithm = (const void *)x->algorithm.plugin;
    const struct epa_transport_plugin *transport = (const void *)x->transport.plugin;
    const struct node *at = origin_find(x, "algorithm.name");
    const struct source_location nowhere = {.file = x->file};
    uint32_t local = x->ranks_per_node == 0 ? x->ranks : x->ranks_per_node;
    const struct epa_world world = {.size = x->ranks, .local_size = local, .local_cores = 1};
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status;

    if (algorithm == NULL || x->backend.plugin == NULL || transport == NULL)
        return;
    status = check_plugins(x, &err);
    if (status == EPA_OK) {
        struct epa_problem problem = operation_problem(x);

        status = algorithm->plan(&problem, &world, transport->flags, x->algorithm.config,
                                 &x->footprint, &err);
        if (status != EPA_OK) /* in case it did not say why */
            epa_fail(&err, status, "algorithm '%s' refuses this shape", algorithm->plugin.name);
    }
    if (status != EPA_OK)
        diag_error(c->diag, at != NULL ? &at->location : &nowhere, NULL, "%s", err.text);
    else if (op->check_footprint != NULL)
        op->check_footprint(c, &x->footprint);
}

/* Sections of another operation than the algorithm's say nothing. */
static void check_section(const struct config_check *c, const struct section *section,
                          const struct operation *op)
{
    const struct node *root = c->x->origin;

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
        if (node_find(x->origin, operation_at(i)->name) != NULL)
            op = operation_at(i);
    return op;
}

void experiment_check(struct experiment *x, bool flawed, struct diag *diag)
{
    const struct config_check c = {x, diag};
    const struct operation *op = guess_operation(x);
    uint32_t before = diag_errors(diag);

    if (op != NULL)
        op->check_options(&c);
    for (const struct section *s = experiment_sections; s->name != NULL; s++)
        if (section_is_for(s, (const void *)x->algorithm.plugin))
            check_rules(&c, s);
        else
            check_section(&c, s, op);
    if (op != NULL && section_is_for(section_find("tokens"), (const void *)x->algorithm.plugin))
        check_tokens(&c, op);
    check_shape(&c, op);
    check_bench(&c);
    check_expect(&c);
    if (!flawed && diag_errors(diag) == before)
        check_plan(&c, op, x);
}
