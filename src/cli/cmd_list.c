/* `epa2a list`: every plugin by kind with its summary, requirements and file, or the reason why it
 * cannot be loaded. */
#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <epa2a/plugin.h>

#include "base/file.h"
#include "base/fold.h"
#include "base/text.h"
#include "cli/cli.h"
#include "session/status.h"
#include "config/options.h"
#include "base/json.h"
#include "config/experiment.h"
#include "doctor/doctor.h"
#include "doctor/machine.h"
#include "op/op.h"
#include "plugin/registry.h"
#include "plugin/check.h"
#include "report/result.h"
#include "report/origin.h"
#include "report/summary.h"
#include "report/fill.h"

static const struct words {
    uint32_t bit;
    const char *text;
} memory_words[] = {
    {EPA_MEMORY_HOST, "host memory"},
    {EPA_MEMORY_CUDA, "CUDA memory"},
    {0},
};
static const struct words transport_words[] = {
    {EPA_TRANSPORT_HOST, "puts by the CPU"},
    {EPA_TRANSPORT_DEVICE, "puts by GPU kernels"},
    {EPA_TRANSPORT_LOAD_STORE, "loads and stores"},
    {EPA_TRANSPORT_SIGNAL_ADD, "adding signals"},
    {EPA_TRANSPORT_ANY_SOURCE, "puts from outside the heap"},
    {EPA_TRANSPORT_NODES, "several nodes"},
    {EPA_TRANSPORT_THREADS, "several threads"},
    {0},
};

static json_t *words_json(const struct words *words, uint32_t bits)
{
    json_t *out = json_array();

    for (; words->text != NULL; words++)
        if ((bits & words->bit) != 0)
            json_array_append_new(out, json_text(words->text));
    return out;
}

/* Returns the facts of a plugin: memory, and the capabilities that it needs or provides. */
static json_t *entry_json(const struct registry_entry *entry)
{
    const struct epa_algorithm_plugin *algorithm = (const void *)entry->plugin;
    const struct epa_transport_plugin *transport = (const void *)entry->plugin;
    char way[256];
    const struct epa_backend_plugin *backend = (const void *)entry->plugin;
    json_t *out = json_object_of(
        "kind", json_text(plugin_kind_name(entry->kind)), "name", json_text(entry->name), "file",
        json_text_or_null(entry->file), "hides", json_text_or_null(entry->hides), "why_not",
        json_text_or_null(entry->plugin == NULL ? entry->why : NULL), "summary",
        json_text_or_null(entry->plugin != NULL ? entry->plugin->summary : NULL), NULL);

    if (entry->plugin == NULL)
        return out;
    if (entry->kind == EPA_PLUGIN_ALGORITHM) {
        const struct operation *op = operation_of(algorithm->op);

        json_object_set_new(out, "solves", json_text_or_null(op != NULL ? op->name : NULL));
        json_object_set_new(out, "memory", words_json(memory_words, algorithm->memory));
        json_object_set_new(out, "needs_host", words_json(transport_words, algorithm->needs_host));
        json_object_set_new(out, "needs_cuda", words_json(transport_words, algorithm->needs_cuda));
    } else if (entry->kind == EPA_PLUGIN_TRANSPORT) {
        json_object_set_new(out, "memory", words_json(memory_words, transport->memory));
        json_object_set_new(out, "gives", words_json(transport_words, transport->flags));
        json_object_set_new(out, "between_nodes", json_boolean(transport->between_nodes != NULL));
        json_object_set_new(
            out, "data_of_gpus",
            json_text_or_null(doctor_gpu_data(transport, way, sizeof(way)) ? way : NULL));
    } else if (entry->kind == EPA_PLUGIN_BACKEND) {
        json_object_set_new(out, "memory", words_json(memory_words, backend->memory));
    }
    return out;
}

static json_t *plugins_json(const struct registry_entry *entry, uint32_t n, int only)
{
    json_t *plugins = json_array();

    for (uint32_t i = 0; i < n; i++)
        if (only < 0 || entry[i].kind == (enum epa_plugin_kind)only)
            json_array_append_new(plugins, entry_json(&entry[i]));
    return json_object_of("schema", json_integer(1), "program", json_text("epa2a"), "plugin_abi",
                          json_integer(EPA_ABI), "plugins", plugins, "libraries",
                          only < 0 ? libraries_json() : json_array(), NULL);
}

#define NEEDS_CUDA "needs on CUDA memory: a transport with [{needs_cuda}|nothing in particular]"

/* Lines about a plugin in the table. The first line follows its name. */
static const char *const facts[] = {
    "[{summary}|cannot be loaded: {why_not}]",
    "{kind=algorithm}solves: [{solves}|?]",
    "{kind=algorithm}{memory.0=host memory}needs on host memory: a transport with "
    "[{needs_host}|nothing in particular]",
    "{kind=algorithm}[{memory.0=CUDA memory}" NEEDS_CUDA "|{memory.1=CUDA memory}" NEEDS_CUDA "]",
    "{kind=transport}in: [{memory}|nothing in particular]",
    "{kind=transport}gives: [{gives}|nothing in particular]",
    "{between_nodes=true}between nodes (between_nodes): any transport that moves data of GPUs "
    "direct or staged",
    "{kind=transport}data of GPUs: {data_of_gpus}",
    "{kind=backend}gives: [{memory}|nothing in particular]",
    "[{file}|built in]",
    "hides {hides}",
};

static void add_plugins(struct text *text, const json_t *plugins)
{
    const char *last = "";
    int indent = 0;

    for (struct json_walk it = {plugins}; json_next(&it);) {
        int width = (int)strlen(json_text_at(it.value, "name")) + 4;

        indent = width > indent ? width : indent;
    }
    for (struct json_walk it = {plugins}; json_next(&it);) {
        const char *kind = json_text_at(it.value, "kind");

        if (strcmp(kind, last) != 0)
            text_add(text, "%s%ss\n", it.n == 1 ? "" : "\n", kind);
        last = kind;
        text_add(text, "  %-*s", indent - 2, json_text_at(it.value, "name"));
        for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++) {
            text_auto line = {0};

            if (fill_add(&line, facts[i], it.value, NULL))
                text_add(text, "%*s%s\n", i == 0 ? 0 : indent, "", line.data);
        }
    }
}

static void add_libraries(struct text *text, const json_t *libraries)
{
    if (json_array_size(libraries) > 0)
        text_add(text, "\nlibraries\n");
    for (struct json_walk it = {libraries}; json_next(&it);) {
        text_add(text, "  %-12s  ", json_text_at(it.value, "name"));
        fill_add(text, "{version}, {path}, {use}", it.value, NULL);
        text_add(text, "\n");
    }
}

/* Returns the kind of the argument; -1: all kinds. */
static enum epa_status find_kind(const struct cli *cli, int *out, struct epa_error *err)
{
    struct nearest nearest = {.want = cli->n_args == 0 ? "" : cli->arg[0]};
    char hint[NEAREST_ROOM];

    *out = -1;
    nearest_try(&nearest, "models");
    nearest_try(&nearest, "configs");
    for (int kind = 0; kind < PLUGIN_KINDS && cli->n_args > 0; kind++) {
        const char *name = plugin_kind_name((enum epa_plugin_kind)kind);

        nearest_try(&nearest, name);
        if (strcmp(cli->arg[0], name) == 0)
            *out = kind;
    }
    if (cli->n_args == 0 || *out >= 0)
        return EPA_OK;
    return epa_fail(
        err, EPA_ERR_CONFIG, "list has no kind '%s'; %s", cli->arg[0],
        nearest_hint(&nearest, hint,
                     "kinds are backend, launcher, transport, algorithm, models, configs"));
}

int cmd_list(const struct cli *cli)
{
    struct epa_error err = {EPA_OK, ""};
    struct registry *registry = NULL;
    const struct registry_entry *entry;
    text_auto text = {0};
    json_t *document;
    FILE *own;
    uint32_t n;
    int only, code = EXIT_OK;
    enum epa_status status;

    if (cli->n_args > 0 && strcmp(cli->arg[0], "models") == 0)
        return list_models(cli);
    if (cli->n_args > 0 && strcmp(cli->arg[0], "configs") == 0)
        return list_configs(cli);
    status = find_kind(cli, &only, &err);
    if (status == EPA_OK)
        status = registry_create(cli->plugin_path, &registry, &err);
    if (status != EPA_OK)
        return cli_fail(&err);
    n = registry_list(registry, &entry);
    own = stdout_lend(); /* plugins describe their devices, and libraries their version */
    document = plugins_json(entry, n, only);
    stdout_take_back(own);
    add_plugins(&text, json_object_get(document, "plugins"));
    add_libraries(&text, json_object_get(document, "libraries"));
    if (text.bytes == 0)
        fprintf(stderr, "epa2a: no %s found\n",
                only < 0 ? "plugin" : plugin_kind_name((enum epa_plugin_kind)only));
    else if (!cli_has_stdout(cli))
        fold_print(stdout, text.data, FOLD_LINES);
    if (cli_write_json(cli, document, &err) != EPA_OK)
        code = cli_fail(&err);
    if (registry_empty(registry) != NULL) {
        fprintf(stderr, "epa2a: %s\n", registry_empty(registry));
        code = EXIT_RESOURCE;
    }
    registry_destroy(registry);
    return code;
}

/* ---- epa2a doctor ---- */

/* Succeeds if the transport shm works, whatever else is missing. */
int cmd_doctor(const struct cli *cli)
{
    struct epa_error err = {EPA_OK, ""}, shm = {EPA_OK, ""};
    json_t *document = NULL;
    enum epa_status status = doctor_examine(cli->plugin_path, cli->quick, &document, &shm, &err);

    if (status != EPA_OK)
        return cli_fail(&err);
    if (!cli_has_stdout(cli))
        doctor_print(stdout, document);
    status = cli_write_json(cli, document, &err);
    if (status == EPA_OK && shm.status != EPA_OK)
        (void)epa_fail(&err, shm.status, "transport shm cannot be used: %s", shm.text);
    return err.status != EPA_OK ? cli_fail(&err) : EXIT_OK;
}

/* ---- epa2a status [PID]: state of the ranks of running commands. Reads their status pages through
 * /proc without their help, so it also works for a command that hangs or is stopped. ---- */

static json_t *number_or_null(uint32_t n)
{
    return n == EPA_WAIT_NOBODY ? json_null() : json_integer(n);
}

static json_t *waiting_json(const struct status *s, uint32_t rank)
{
    static const char *const kind[] = {
        [EPA_WAIT_SIGNAL] = "signal", [EPA_WAIT_BARRIER] = "barrier", [EPA_WAIT_SET_UP] = "set-up",
        [EPA_WAIT_DATA] = "data",     [EPA_WAIT_PUTS] = "puts",       [EPA_WAIT_CALL] = "call",
        [EPA_WAIT_DEVICE] = "device",
    };
    const struct session_wait *w = &s->rank[rank].said.waiting;
    bool counts =
        w->kind != EPA_WAIT_PUTS && w->kind != EPA_WAIT_CALL && w->kind != EPA_WAIT_DEVICE;
    double since = s->now_ns > w->since_ns ? (double)(s->now_ns - w->since_ns) / 1e9 : 0;

    if (!s->rank[rank].waits || w->kind > EPA_WAIT_DEVICE)
        return json_null();
    return json_pack("{s:s,s:o,s:o,s:o,s:o,s:o,s:f}", "kind", kind[w->kind], "what",
                     json_text_or_null(w->what), "rank", number_or_null(w->peer), "signal",
                     number_or_null(w->number), "seen", counts ? json_count(w->seen) : json_null(),
                     "wanted", counts ? json_count(w->wanted) : json_null(), "waited_s", since);
}

static json_t *rank_json(const struct status *s, uint32_t r)
{
    const struct status_rank *rank = &s->rank[r];
    bool here = rank->state != STATUS_ABSENT;

    return json_pack(
        "{s:i,s:s,s:o,s:o,s:o,s:o,s:o,s:o}", "rank", (int)r, "state",
        status_state_name(rank->state), "pid", here ? json_integer(rank->said.pid) : json_null(),
        "host", here ? json_text(rank->said.host) : json_null(), "stage",
        here ? json_text(status_stage(s, r)) : json_null(), "iteration",
        here ? json_count(rank->said.iteration) : json_null(), "samples",
        here ? json_count(rank->said.samples) : json_null(), "waits_for", waiting_json(s, r));
}

static json_t *run_json(const struct status *s)
{
    const struct status_page_run *run = &s->head.run;
    json_t *ranks = json_array();

    if (run->began_ns == 0) {
        json_decref(ranks);
        return json_null();
    }
    for (uint32_t r = 0; r < s->n; r++)
        json_array_append_new(ranks, rank_json(s, r));
    return json_pack(
        "{s:s,s:o,s:o,s:i,s:i,s:f,s:i,s:i,s:o,s:o}", "verb", status_verb(s), "file",
        json_text(run->file), "label", json_text_or_null(run->label), "number", (int)run->number,
        "of", (int)run->of, "elapsed_s", (double)(s->now_ns - run->began_ns) / 1e9, "warmup",
        (int)run->warmup, "iterations", (int)run->iterations, "process_of_rank",
        run->place_size > 1 ? json_integer(run->place_rank) : json_null(), "ranks", ranks);
}

static void add_command_json(void *to, const struct status *s)
{
    json_array_append_new(to, json_pack("{s:i,s:s,s:f,s:o}", "pid", (int)s->head.pid, "version",
                                        s->head.version, "elapsed_s",
                                        (double)(s->now_ns - s->head.began_ns) / 1e9, "run",
                                        run_json(s)));
}

struct shown {
    json_t *commands;
    struct text *text;
};

static void add_command_head(void *arg, const struct status *s)
{
    struct shown *to = arg;

    add_command_json(to->commands, s);
    status_print_head(s, to->text);
    text_add(to->text, "\n");
}

static enum epa_status read_process(const char *word, struct shown *out, struct epa_error *err)
{
    struct value_error why;
    enum epa_status status;
    struct status s;
    uint64_t pid = 0;

    if (!value_u64(word, &pid, &why) || pid == 0 || pid > INT32_MAX)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "'%s' is not the number of a process; 'epa2a status' lists the processes "
                        "that run an experiment",
                        word);
    status = status_read_pid((pid_t)pid, &s, err);
    if (status != EPA_OK)
        return status;
    add_command_json(out->commands, &s);
    status_print(&s, "", out->text);
    status_finish(&s);
    return EPA_OK;
}

int cmd_status(const struct cli *cli)
{
    struct epa_error err = {EPA_OK, ""};
    text_auto text = {0};
    struct shown shown = {json_array(), &text};
    enum epa_status status = EPA_OK;

    if (cli->n_args == 1)
        status = read_process(cli->arg[0], &shown, &err);
    else
        status = status_each(add_command_head, &shown, &err);
    if (status == EPA_OK)
        status = cli_write_json(
            cli, json_pack("{s:s,s:O}", "schema", "epa2a-status-1", "commands", shown.commands),
            &err);
    if (status == EPA_OK && !cli_has_stdout(cli)) {
        if (text.bytes > 0)
            fputs(text.data, stdout);
        else
            fputs("epa2a: no command of this user runs an experiment here\n", stderr);
    }
    json_decref(shown.commands);
    return status == EPA_OK ? EXIT_OK : cli_fail(&err);
}

/* ---- epa2a --version ---- */

/* Converts EPA2A_WITH ("hwloc ucx ...") to an object of booleans. */
static json_t *features_json(void)
{
    static const char *const name[] = {"cuda", "hwloc", "mpi", "ucx", "verbs"};
    json_t *o = json_object();

    for (size_t i = 0; i < sizeof(name) / sizeof(name[0]); i++) {
        const char *at = strstr(EPA2A_WITH, name[i]);

        json_object_set_new(o, name[i], json_boolean(at != NULL));
    }
    return o;
}

static json_t *version_json(void)
{
    json_t *machine = facts_collect(""), *out = json_deep_copy(json_object_get(machine, "build"));
    char folder[PATH_MAX];

    json_decref(machine);
    registry_installed_folder(folder, sizeof(folder));
    json_object_del(out, "isa_refused");
    json_object_set_new(out, "program", json_text("epa2a"));
    json_object_set_new(out, "experiment_version", json_integer(EXPERIMENT_VERSION));
    json_object_set_new(out, "result_schema", json_integer(RESULT_SCHEMA));
    json_object_set_new(out, "plugin_folder", json_text(folder));
    json_object_set_new(out, "with", features_json());
    return out;
}

int cmd_version(const struct cli *cli)
{
    struct epa_error err = {EPA_OK, ""};

    if (cli->json == NULL) {
        printf("epa2a %s (plugin ABI %u)\n", EPA2A_VERSION, EPA_ABI);
        return EXIT_OK;
    }
    return cli_write_json(cli, version_json(), &err) == EPA_OK ? EXIT_OK : cli_fail(&err);
}
