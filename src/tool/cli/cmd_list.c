/* `epa2a list`: every plugin by kind with its summary, requirements and file, or the reason why it
 * cannot be loaded. */
#include "cli/cmd_list.h"

#include <stdio.h>
#include <string.h>

#include <epa2a/plugin.h>

#include "base/exit_code.h"
#include "base/fold.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/cli_fail.h"
#include "cli/documents.h"
#include "cli/list_configs.h"
#include "cli/list_models.h"
#include "doctor/doctor.h"
#include "doctor/doctor_json.h"
#include "op/operations.h"
#include "registry/check.h"
#include "launch/program_registry.h"
#include "report/fill_json.h"
#include "result/result.h"

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
    struct library_found library[LIBRARY_IDS];
    uint32_t n_libraries = only < 0 ? machine_libraries(library) : 0;
    json_t *plugins = json_array();

    for (uint32_t i = 0; i < n; i++)
        if (only < 0 || entry[i].kind == (enum epa_plugin_kind)only)
            json_array_append_new(plugins, entry_json(&entry[i]));
    return json_object_of("schema", json_integer(1), "program", json_text("epa2a"), "plugin_abi",
                          json_integer(EPA_ABI), "plugins", plugins, "libraries",
                          libraries_json(library, n_libraries), NULL);
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
        status = program_registry_create(cli->plugin_path, &registry, &err);
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
