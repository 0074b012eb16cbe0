/* Converts a tree to the struct, section by section in the file's order, then runs the checks
 * between values. All errors are collected; only a syntax error ends the reading. */
#include "experiment/read.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/text.h"
#include "config/experiment.h"
#include "config/check.h"
#include "config/diag.h"
#include "config/expect.h"
#include "config/node.h"
#include "config/options.h"
#include "config/origin.h"
#include "experiment/batch_keys.h"
#include "experiment/check_operation.h"
#include "experiment/points.h"
#include "boot/process_id.h"
#include "experiment/operation.h"

struct building {
    struct experiment *x;
    struct registry *registry;
    struct arena *arena;
    struct diag *diag;
    struct node *root;
    uint32_t unloadable;     /* errors outside the file */
    uint32_t absent;         /* those errors, and missing plugins */
    struct epa_error reason; /* of `absent` */
};

/* Returns the launcher that `launcher: auto` selects here; NULL: ambiguous, which is reported. */
static const char *find_launcher(struct building *b, const struct source_location *location)
{
    struct epa_error err = {EPA_OK, ""}, ignored = {EPA_OK, ""};
    const struct epa_plugin *plugin;
    struct process_job job;

    if (process_id_find(&job, &err) != EPA_OK) {
        diag_error(b->diag, location, NULL, "launcher: auto: %s", err.text);
        return NULL;
    }
    if (job.process_id.size <= 1)
        return "fork";
    if (job.mpi &&
        registry_find(b->registry, EPA_PLUGIN_LAUNCHER, "mpi", &plugin, &ignored) == EPA_OK)
        return "mpi";
    return "env";
}

/* Returns a plugin; NULL: the plugin is missing, which is reported. */
static const struct epa_plugin *find_plugin(struct building *b, enum epa_plugin_kind kind,
                                            const char *name,
                                            const struct source_location *location)
{
    struct epa_error err = {EPA_OK, ""};
    const struct epa_plugin *plugin;

    if (registry_find(b->registry, kind, name, &plugin, &err) == EPA_OK)
        return plugin;
    b->unloadable += err.status == EPA_ERR_UNSUPPORTED;
    /* An unknown name precedes a plugin that cannot be loaded here. */
    if (b->absent++ == 0 || b->reason.status == EPA_ERR_UNSUPPORTED)
        b->reason = err;
    diag_error(b->diag, location, NULL, "%s", err.text);
    return NULL;
}

/* Replaces a nested section of `map` by the name of its plugin, which is the value of an option, and
 * returns the section; NULL: `map` has none. */
static struct node *take_nested(struct building *b, const struct section *section,
                                struct node **map)
{
    struct node *own, *nested = node_find(*map, section_key(section)), *name;

    if (nested == NULL || nested->refused)
        return NULL;
    nested = tree_whole(b->arena, section, nested);
    if (nested->kind != NODE_MAP)
        return NULL;
    name = node_find(nested, section->main);
    if (name == NULL || name->kind != NODE_SCALAR) {
        diag_error(b->diag, name == NULL ? &nested->location : &name->location,
                   "such as {name: ucx, tls: tcp}", "%s.%s: a plugin's name is expected",
                   section->name, section->main);
        nested->refused = true;
    }
    own = node_make(b->arena, NODE_MAP, &(*map)->location);
    for (uint32_t i = 0; i < (*map)->n; i++) {
        if (strcmp((*map)->key[i]->text, section_key(section)) != 0)
            node_append(b->arena, own, (*map)->key[i], (*map)->item[i]);
        else if (!nested->refused)
            node_append(b->arena, own, (*map)->key[i], name);
        else
            name = NULL;
    }
    node_set(b->arena, *map, tree_word(b->arena, section_key(section), &nested->location), nested);
    *map = own;
    return nested;
}

/* Reads the transport to other nodes that between_nodes names, and its options. `map`: the section
 * of its options, NULL: none. */
static void read_between(struct building *b, const struct section *section, const struct node *map)
{
    const struct source_location nowhere = {.file = b->x->file}, *location = &nowhere;
    const struct epa_transport_plugin *transport = (const void *)b->x->transport.plugin;
    const struct node *at = node_find(map, section->main);
    struct epa_error err = {EPA_OK, ""};
    const struct epa_plugin *plugin;
    const char *name = NULL;
    void *config;

    if (transport->between_nodes != NULL)
        name = transport->between_nodes(b->x->transport.config);
    if (at != NULL)
        location = &at->location;
    if (name == NULL && map != NULL && map->n > 1 && !map->refused &&
        transport->between_nodes != NULL)
        diag_error(b->diag, location, "such as {name: ucx, tls: tcp}",
                   "%s has options and names no plugin", section->name);
    plugin = name != NULL ? find_plugin(b, section->kind, name, location) : NULL;
    if (plugin == NULL)
        return;
    if (selection_check_between((const void *)plugin, &err) != EPA_OK) {
        diag_error(b->diag, location, "take one that `epa2a list transport` shows with host memory",
                   "%s", err.text);
        return;
    }
    config = arena_alloc(b->arena, plugin->options.size);
    options_read(&plugin->options, section->name, section->main, map, b->arena, b->diag, config);
    b->x->between = (struct ep_choice){plugin, config};
}

static void read_plugin(struct building *b, const struct section *section, struct node *map)
{
    const struct source_location nowhere = {.file = b->x->file}, *location = &nowhere;
    struct node *name = node_find(map, "name"), *nested = NULL;
    struct ep_choice *chosen = (void *)((char *)b->x + section->offset);
    const struct epa_plugin *plugin;
    const char *wanted;
    void *config;

    if (name != NULL && (name->kind != NODE_SCALAR || *name->text == 0)) {
        name->refused = true;
        diag_error(b->diag, &name->location, NULL, "%s.name: a plugin's name is expected",
                   section->name);
        return;
    }
    wanted = name == NULL ? section->chosen : name->text;
    if (name != NULL)
        location = &name->location;
    if (section->kind == EPA_PLUGIN_LAUNCHER && strcmp(wanted, "auto") == 0)
        wanted = find_launcher(b, location);
    plugin = wanted != NULL ? find_plugin(b, section->kind, wanted, location) : NULL;
    if (plugin == NULL)
        return;
    if (section->nested != NULL && map != NULL)
        nested = take_nested(b, section->nested, &map);
    config = arena_alloc(b->arena, plugin->options.size);
    options_read(&plugin->options, section->name, "name", map, b->arena, b->diag, config);
    *chosen = (struct ep_choice){plugin, config};
    if (section->nested != NULL)
        read_between(b, section->nested, nested);
}

static void read_section(struct building *b, const struct section *section, struct node *value)
{
    if (value != NULL && value->refused)
        return;
    if (value != NULL && value->kind != NODE_MAP) {
        bool empty = value->kind == NODE_SCALAR && *value->text == 0;

        value->refused = true;
        diag_error(b->diag, &value->location, "such as bench: {warmup: 10, iterations: 100}",
                   "'%s' %s", section->name,
                   empty ? "is empty; it is a map of keys" : "must be a map of keys");
        return;
    }
    if (section->plugin)
        read_plugin(b, section, value);
    else if (value != NULL && strcmp(section->name, "expect") == 0)
        expect_read(value, b->arena, b->diag, &b->x->expect);
    else
        options_read(&section->options, section->name, NULL, value, b->arena, b->diag,
                     (char *)b->x + section->offset);
}

/* Rejects a key at the top that belongs to a section, and names the section. */
static void reject_key(struct building *b, const struct node *key)
{
    struct nearest nearest = {.want = key->text};
    text_auto places = {0};
    char hint[NEAREST_ROOM];

    nearest_try_table(&nearest, experiment_options.table, sizeof(struct epa_option));
    nearest_try_table(&nearest, experiment_sections, sizeof(struct section));
    nearest_try_table(&nearest, batch_keys, sizeof(struct batch_key));
    for (const struct section *s = experiment_sections; s->name != NULL; s++)
        if (nearest.name == NULL && option_find(&s->options, key->text) != NULL)
            text_add(&places, "%s%s.%s", places.bytes == 0 ? "did you mean " : " or ", s->name,
                     key->text);
    if (places.bytes != 0)
        text_add(&places, "?");
    diag_error(b->diag, &key->location,
               places.bytes != 0 ? places.data
                                 : nearest_hint(&nearest, hint, "`epa2a help` lists the keys"),
               "unknown key '%.64s'", key->text);
}

static void read_version(struct building *b)
{
    struct source_location top = {
        .file = b->x->file, .source = b->root->location.source, .line = 1, .column = 1, .width = 1};
    struct node *version = node_find(b->root, "version");

    if (version == NULL)
        diag_error(b->diag, &top, "add the line", "no 'version: %d'", EXPERIMENT_VERSION);
    else if (!version->refused && b->x->version != EXPERIMENT_VERSION)
        diag_error(b->diag, &version->location, "newer files need a newer epa2a",
                   "version %u is not known; this program reads version %d", b->x->version,
                   EXPERIMENT_VERSION);
}

static void read_root(struct building *b)
{
    struct experiment *x = b->x;
    struct node *root = b->root;

    for (uint32_t i = 0; i < root->n; i++) {
        const char *key = root->key[i]->text;
        const struct section *section = section_find(key);
        const struct epa_option *option = option_find(&experiment_options, key);

        if (section != NULL) {
            root->item[i] = tree_whole(b->arena, section, root->item[i]);
            if (strcmp(section->name, "expect") == 0 && root->item[i]->kind == NODE_MAP)
                root->item[i] = expect_flatten(b->arena, root->item[i]);
            read_section(b, section, root->item[i]);
        } else if (option != NULL) {
            option_read(option, option->name, root->item[i], b->arena, b->diag, x);
        } else if (!option_is_note(key) && !batch_is_key(key)) {
            reject_key(b, root->key[i]);
        }
    }
    for (const struct section *s = experiment_sections; s->name != NULL; s++)
        if (s->plugin && node_find(root, s->name) == NULL)
            read_section(b, s, NULL);
    read_version(b);
}

/* If mpirun, srun or torchrun started the processes, `ranks` must be their number. If this process
 * is not one of them, the launcher reports this at launch: the file may still be valid. */
static void count_ranks(struct building *b)
{
    const struct epa_launcher_plugin *launcher = launcher_of(b->x);
    const struct source_location nowhere = {.file = b->x->file}, found = {.file = "launcher"};
    const struct epa_option *option = option_find(&experiment_options, "ranks");
    const struct node *ranks = node_find(b->root, "ranks");
    struct epa_process_id at;
    char size[16];

    if (launcher == NULL || launcher->process_id == NULL || (ranks != NULL && ranks->refused) ||
        launcher->process_id(b->x->launcher.config, &at, NULL) != EPA_OK)
        return;
    if (at.size > option->max)
        diag_error(b->diag, &nowhere, NULL, "%u ranks are too many (%s); %llu are the most",
                   at.size, at.source, (unsigned long long)option->max);
    else if (ranks != NULL && b->x->problem.ranks != at.size)
        diag_error(b->diag, &ranks->location, "leave ranks out",
                   "ranks is %u, and %u have been started (%s)", b->x->problem.ranks, at.size,
                   at.source);
    if (ranks != NULL || at.size > option->max)
        return;
    b->x->problem.ranks = at.size;
    snprintf(size, sizeof(size), "%u", at.size);
    node_set(b->arena, b->root, tree_word(b->arena, "ranks", &found),
             tree_word(b->arena, arena_strndup(b->arena, size, strlen(size)), &found));
}

/* Returns an absolute path, relative to the folder of the file that names it, or for --set to the
 * current folder. So the output of `config show` is valid in any folder. */
static const char *absolute_path(struct building *b, const char *key, const char *path)
{
    const struct node *node = origin_find(b->x, key);
    char *cwd;

    if (path == NULL || *path == '/')
        return path;
    while (strncmp(path, "./", 2) == 0)
        path += 2;
    path = tree_beside(b->arena, node != NULL ? node->location.file : "", path);
    cwd = *path == '/' ? NULL : getcwd(NULL, 0);
    if (cwd != NULL)
        path = arena_printf(b->arena, "%s/%s", cwd, path);
    free(cwd);
    return path;
}

static const char *name_of_file(struct arena *arena, const char *file)
{
    const char *slash = strrchr(file, '/'), *base = slash == NULL ? file : slash + 1;
    const char *dot = strrchr(base, '.');

    return arena_strndup(arena, base,
                         dot == NULL || dot == base ? strlen(base) : (size_t)(dot - base));
}

/* ---- checks between values: each error points to the wrong value, with a note at the other value
 * ---- */

/* Suggests "such as tokens: [8, 0]", a list that is valid here. */
static const char *suggest_tokens(const struct config_check *c, uint64_t most)
{
    enum { RANKS_SHOWN = 8 };
    text_auto list = {0};

    text_add(&list, "%llu", (unsigned long long)most);
    for (uint32_t rank = 1; rank < c->x->problem.ranks && rank < RANKS_SHOWN; rank++)
        text_add(&list, ", 0");
    return arena_printf(c->x->arena, "such as tokens: [%s%s", list.data,
                        c->x->problem.ranks <= RANKS_SHOWN ? "]"
                                                           : ", ...], a number for each rank");
}

static void check_tokens(const struct config_check *c, const struct operation *op)
{
    const struct tokens_options *t = &c->x->problem.tokens;
    const struct node *max = origin_find(c->x, op->size_key);
    const struct node *each = origin_find(c->x, "tokens.per_rank");

    if (t->kind != TOKENS_LIST)
        return;
    if (each == NULL) {
        check_conflict(c, "tokens.kind", NULL, suggest_tokens(c, op->size(&c->x->problem)),
                       "tokens.kind list needs 'per_rank', one number for each rank");
        return;
    }
    if (each->refused)
        return;
    if (t->per_rank.n != c->x->problem.ranks)
        check_conflict(c, "tokens.per_rank", "ranks", "one number for each rank",
                       "tokens.per_rank has %u numbers for %s", t->per_rank.n,
                       check_value(c, "ranks", c->x->problem.ranks));
    for (uint32_t i = 0; i < t->per_rank.n; i++) {
        if (t->per_rank.item[i] <= op->size(&c->x->problem) || (max != NULL && max->refused))
            continue;
        diag_error(c->diag, &each->item[i]->location, NULL,
                   "tokens.per_rank: %u tokens on rank %u are more than %s", t->per_rank.item[i], i,
                   check_value(c, op->size_key, op->size(&c->x->problem)));
        if (max != NULL)
            diag_note(c->diag, &max->location, "'%s' was set here", op->size_key);
    }
}

/* A check of two mutually exclusive values: the condition, their keys, and the message. */
struct conflict {
    bool wrong;
    const char *key, *other; /* other NULL: no other key */
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
    const char *ranks = check_value(c, "ranks", x->problem.ranks);
    const struct conflict all[] = {
        {x->problem.ranks_per_node != 0 && x->problem.ranks % x->problem.ranks_per_node != 0,
         "ranks_per_node", "ranks", "0: all ranks are on one",
         arena_printf(x->arena, "%s does not divide %s",
                      check_value(c, "ranks_per_node", x->problem.ranks_per_node), ranks)},
        {x->verify.straggle_ns >= x->timeout_ns, "verify.straggle", "timeout",
         "a rank that sleeps is waited for", "verify.straggle is not shorter than timeout"},
        {fault_is_planted(x) && f->rank >= x->problem.ranks, "fault.rank", "ranks",
         "ranks count from 0",
         arena_printf(x->arena, "there is no rank %u: fault.rank is not below %s", f->rank, ranks)},
        /* Ranks that are threads share the process, which a fault would kill or stop with the
         * launcher. */
        {fault_is_planted(x) && f->kind != FAULT_STRAGGLE && strcmp(launcher, "thread") == 0,
         "fault.kind", "launcher.name", "straggle, or launcher: fork",
         arena_printf(
             x->arena,
             "fault.kind: %s would %s all ranks and the launcher, which are threads of one process",
             fault_name(f), fault_name(f))},
        {tokens && x->problem.tokens.kind == TOKENS_RANDOM &&
             x->problem.tokens.min > op->size(&x->problem),
         "tokens.min", size, NULL,
         arena_printf(x->arena, "%s is larger than %s",
                      check_value(c, "tokens.min", x->problem.tokens.min),
                      check_value(c, size, op != NULL ? op->size(&x->problem) : 0))},
        {file != NULL && (*file == 0 || file[strlen(file) - 1] == '/'), "profile.file", NULL,
         "such as profile: trace",
         "profile.file is the prefix of the trace files, and this is a folder"},
    };

    CHECK(c, all);
}

static void check_bench(const struct config_check *c)
{
    const struct bench_options *b = &c->x->bench;
    const struct epa_backend_plugin *backend = backend_of(c->x);
    const char *name = backend != NULL ? backend->plugin.name : "";
    bool host = backend != NULL && backend->memory == EPA_MEMORY_HOST;
    bool gpu = backend != NULL && !host, odd = b->calls_per_graph % 2 != 0;
    bool calls = origin_find(c->x, "bench.calls_per_graph") != NULL;
    bool open = b->arrivals != ARRIVALS_CLOSED, cold = b->cache == CACHE_COLD;
    const struct conflict all[] = {
        {odd, "bench.calls_per_graph", NULL,
         odd ? check_multiples(c, "bench.calls_per_graph", 2) : NULL,
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
         arena_printf(c->x->arena, "bench.calls_per_graph needs graphs, which backend '%s' lacks",
                      name)},
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
        /* An open loop: by the host's clock, without waits of ranks between iterations. */
        {open && !(b->load > 0) && !(b->rate > 0), "bench.arrivals", NULL,
         "add load: 0.8, or rate: 1000", "an open loop needs a rate: bench.load or bench.rate"},
        {open && b->load > 0 && b->rate > 0, "bench.load", "bench.rate", "keep one of them",
         "bench.load and bench.rate both set the rate of arrivals"},
        {open && b->load > 0 && b->warmup == 0, "bench.load", "bench.warmup",
         "raise bench.warmup, or set bench.rate",
         "bench.load is relative to the rate of the warm-up, and bench.warmup is 0"},
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

/* Checks that the selected plugins are compatible, by their descriptors. */
static enum epa_status check_plugins(const struct experiment *x, struct epa_error *err)
{
    const struct selection selected = experiment_selection(x);
    const struct operation *op = operation_of(selected.algorithm->op);
    bool nodes = x->problem.ranks_per_node != 0 && x->problem.ranks_per_node < x->problem.ranks;
    enum epa_status status;

    if (op == NULL)
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.name",
                            "algorithm '%s' is for an operation that this program does not know",
                            x->algorithm.plugin->name);
    status = selection_check_memory(&selected, err);
    if (status == EPA_OK)
        status = selection_check_flags(&selected, err);
    if (status == EPA_OK && nodes && !selection_spans_nodes(&selected, op->device_nodes))
        return epa_fail_key(err, EPA_ERR_CONFIG, "ranks_per_node",
                            "transport '%s' connects the ranks of one node, and ranks_per_node: "
                            "%u splits %u ranks into several",
                            x->transport.plugin->name, x->problem.ranks_per_node, x->problem.ranks);
    return status;
}

/* Checks that the stage of a fault is a stage of the algorithm or of the core. */
static void check_fault_stage(const struct config_check *c, const struct operation *op)
{
    const struct experiment *x = c->x;
    const char *const *name = x->footprint.stages;
    struct nearest nearest = {.want = x->fault.stage};
    bool timed = op->between_is_timed != NULL && op->between_is_timed(&x->problem, &x->footprint);
    struct text stages = {0};
    char hint[NEAREST_ROOM];

    if (x->fault.stage == NULL || !fault_is_planted(x) || name == NULL ||
        (timed && strcmp(op->between_name, x->fault.stage) == 0))
        return;
    for (; *name != NULL && strcmp(*name, x->fault.stage) != 0; name++) {
        nearest_try(&nearest, *name);
        text_add(&stages, "%s%s", stages.bytes == 0 ? "" : ", ", *name);
    }
    if (*name == NULL)
        check_conflict(c, "fault.stage", "algorithm.name", nearest_hint(&nearest, hint, NULL),
                       "fault.stage: algorithm '%s' has no stage '%s', it has %s",
                       x->algorithm.plugin->name, x->fault.stage, stages.data);
    text_free(&stages);
}

static void check_workers(const struct config_check *c)
{
    const struct experiment *x = c->x;
    const struct selection selected = experiment_selection(x);
    struct epa_error err = {EPA_OK, ""};

    if (selection_check_workers(&selected, x->backend.config, &x->footprint, &err) != EPA_OK)
        check_conflict(c, "backend.workers", "algorithm.name",
                       "or leave out the options that keep workers for one task", "%s", err.text);
}

/* Calls the algorithm's plan(), after all other checks have passed. */
static void check_plan(const struct config_check *c, const struct operation *op,
                       struct experiment *x)
{
    struct epa_error err = {EPA_OK, ""};
    struct source_location at;
    enum epa_status status;

    if (algorithm_of(x) == NULL || x->backend.plugin == NULL || transport_of(x) == NULL)
        return;
    status = check_plugins(x, &err);
    if (status == EPA_OK)
        status = experiment_plan(x, experiment_transport_flags(x), &err);
    if (status == EPA_OK && op->refuse_footprint != NULL)
        status = op->refuse_footprint(&x->problem, &x->footprint, &err);
    if (status != EPA_OK) {
        error_add_remedy(&err);
        at = origin_of_error(x, &err);
        diag_error(c->diag, &at, NULL, "%s", err.text);
        return;
    }
    if (operation_checks_of(op->op)->check_footprint != NULL)
        operation_checks_of(op->op)->check_footprint(c, &x->footprint);
    check_workers(c);
    check_fault_stage(c, op);
}

/* Reports sections of another operation than the algorithm's. */
static void check_section(const struct config_check *c, const struct section *section,
                          const struct operation *op)
{
    const struct node *root = c->x->origin;

    for (uint32_t i = 0; op != NULL && i < root->n; i++)
        if (strcmp(root->key[i]->text, section->name) == 0 && !root->key[i]->from_model)
            diag_error(c->diag, &root->key[i]->location,
                       "remove it, or choose another algorithm; `epa2a list` shows them",
                       "section '%s' does not belong to algorithm '%s', whose operation is %s",
                       section->name, c->x->algorithm.plugin->name, op->name);
}

/* Returns the operation for an unknown algorithm: the operation whose section the file has. */
static const struct operation *guess_operation(const struct experiment *x)
{
    const struct operation *op = operation_of_experiment(x);

    for (uint32_t i = 0; op == NULL && operation_at(i) != NULL; i++)
        if (node_find(x->origin, operation_at(i)->name) != NULL)
            op = operation_at(i);
    return op;
}

/* Runs all checks. The checks of plugins and plan() follow only without errors, and unless the file
 * is `flawed`. */
static void check_experiment(struct experiment *x, bool flawed, struct diag *diag)
{
    const struct operation *op = guess_operation(x);
    const struct operation_checks *checks = op != NULL ? operation_checks_of(op->op) : NULL;
    const struct config_check c = {x, diag, checks != NULL ? checks->check_options : NULL, NULL};
    uint32_t before = diag_errors(diag);

    if (op != NULL)
        checks->check_options(&c);
    for (const struct section *s = experiment_sections; s->name != NULL; s++)
        if (section_is_for(s, (const void *)x->algorithm.plugin))
            check_rules(&c, s);
        else
            check_section(&c, s, op);
    if (op != NULL && section_is_for(section_find("tokens"), (const void *)x->algorithm.plugin))
        check_tokens(&c, op);
    check_shape(&c, op);
    check_bench(&c);
    if (!flawed && diag_errors(diag) == before)
        check_plan(&c, op, x);
}

enum epa_status experiment_build(const char *file, struct tree *tree, bool flawed,
                                 struct registry *registry, struct epa_error *absent,
                                 struct experiment **out)
{
    struct experiment *x = arena_alloc(tree->arena, sizeof(*x));
    struct building b = {
        .x = x, .registry = registry, .arena = tree->arena, .diag = tree->diag, .root = tree->root};
    uint32_t before = diag_errors(tree->diag), errors;

    memcpy(x, experiment_options.defaults, sizeof(*x));
    x->arena = tree->arena;
    x->file = arena_strndup(x->arena, file, strlen(file));
    x->origin = tree->root;
    read_root(&b);
    count_ranks(&b);
    if (x->name == NULL)
        x->name = name_of_file(b.arena, x->file);
    x->problem.routing.path = absolute_path(&b, "routing.path", x->problem.routing.path);
    x->problem.routing.hidden_states =
        absolute_path(&b, "routing.hidden_states", x->problem.routing.hidden_states);
    check_experiment(x, flawed || diag_errors(tree->diag) != before, tree->diag);
    errors = diag_errors(tree->diag) - before;
    if (errors == 0) {
        *out = x;
        return EPA_OK;
    }
    if (errors == b.absent)
        *absent = b.reason;
    return errors == b.unloadable ? EPA_ERR_UNSUPPORTED : EPA_ERR_CONFIG;
}
