/* `epa2a list`: every plugin by kind with its summary, requirements and file, or the reason why it
 * cannot be loaded. */
#include "cli/cmd_list.h"

#include <stdio.h>
#include <string.h>

#include <epa2a/algorithm.h>

#include "base/exit_code.h"
#include "base/fold.h"
#include "base/memory.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/cli_fail.h"
#include "cli/documents.h"
#include "cli/list_configs.h"
#include "cli/list_json.h"
#include "cli/list_models.h"
#include "doctor/doctor.h"
#include "doctor/machine.h"
#include "launch/program_registry.h"
#include "op/operations.h"
#include "registry/check.h"

/* Adds the words of a set, or "nothing in particular". */
static void add_words(struct text *out, const struct list_words *words, uint32_t bits)
{
    size_t before = out->bytes;

    for (; words->text != NULL; words++)
        if ((bits & words->bit) != 0)
            text_add(out, "%s%s", out->bytes > before ? ", " : "", words->text);
    if (out->bytes == before)
        text_add(out, "nothing in particular");
}

/* Adds a line of words with its indentation. */
static void add_words_line(struct text *out, int indent, const char *head,
                           const struct list_words *words, uint32_t bits)
{
    text_add(out, "%*s%s", indent, "", head);
    add_words(out, words, bits);
    text_add(out, "\n");
}

static void add_algorithm(struct text *out, int indent, const struct epa_algorithm_plugin *a)
{
    static const char host[] = "needs on host memory: a transport with ";
    static const char cuda[] = "needs on CUDA memory: a transport with ";
    const struct operation *op = a != NULL ? operation_of(a->op) : NULL;

    text_add(out, "%*ssolves: %s\n", indent, "", op != NULL ? op->name : "?");
    if (a != NULL && (a->memory & EPA_MEMORY_HOST) != 0)
        add_words_line(out, indent, host, list_transport_words, a->needs_host);
    if (a != NULL && (a->memory & EPA_MEMORY_CUDA) != 0)
        add_words_line(out, indent, cuda, list_transport_words, a->needs_cuda);
}

static void add_transport(struct text *out, int indent, const struct epa_transport_plugin *t,
                          const char *gpu_data)
{
    add_words_line(out, indent, "in: ", list_memory_words, t != NULL ? t->memory : 0);
    add_words_line(out, indent, "gives: ", list_transport_words, t != NULL ? t->flags : 0);
    if (t != NULL && t->between_nodes != NULL)
        text_add(
            out,
            "%*sbetween nodes (between_nodes): any transport that moves data of GPUs direct or "
            "staged\n",
            indent, "");
    if (gpu_data != NULL)
        text_add(out, "%*sdata of GPUs: %s\n", indent, "", gpu_data);
}

/* Adds the lines of a plugin. The first follows its name. */
static void add_plugin(struct text *out, int indent, const struct listed *of)
{
    const struct registry_entry *entry = of->entry;
    const struct epa_plugin *plugin = entry->plugin;
    const struct epa_backend_plugin *backend = (const void *)plugin;

    text_add(out, "  %-*s", indent - 2, entry->name);
    if (plugin == NULL)
        text_add(out, "cannot be loaded: %s\n", entry->why);
    else if (plugin->summary != NULL && plugin->summary[0] != '\0')
        text_add(out, "%s\n", plugin->summary);
    if (entry->kind == EPA_PLUGIN_ALGORITHM)
        add_algorithm(out, indent, (const void *)plugin);
    else if (entry->kind == EPA_PLUGIN_TRANSPORT)
        add_transport(out, indent, (const void *)plugin, of->gpu_data);
    else if (entry->kind == EPA_PLUGIN_BACKEND)
        add_words_line(out, indent, "gives: ", list_memory_words,
                       backend != NULL ? backend->memory : 0);
    text_add(out, "%*s%s\n", indent, "", entry->file != NULL ? entry->file : "built in");
    if (entry->hides != NULL && entry->hides[0] != '\0')
        text_add(out, "%*shides %s\n", indent, "", entry->hides);
}

static void add_plugins(struct text *text, const struct listed *listed, uint32_t n)
{
    int indent = 0;

    for (uint32_t i = 0; i < n; i++) {
        int width = (int)strlen(listed[i].entry->name) + 4;

        indent = width > indent ? width : indent;
    }
    for (uint32_t i = 0; i < n; i++) {
        enum epa_plugin_kind kind = listed[i].entry->kind;

        if (i == 0 || listed[i - 1].entry->kind != kind)
            text_add(text, "%s%ss\n", i == 0 ? "" : "\n", plugin_kind_name(kind));
        add_plugin(text, indent, &listed[i]);
    }
}

static void add_libraries(struct text *text, const struct library_found *library, uint32_t n)
{
    if (n > 0)
        text_add(text, "\nlibraries\n");
    for (uint32_t i = 0; i < n; i++)
        text_add(text, "  %-12s  %s, %s, %s\n", library[i].name, library[i].version,
                 library[i].file, library[i].use);
}

/* Returns the plugins of the kind `only`, -1: of all kinds, with the path of their GPU data. */
static struct listed *choose_plugins(const struct registry_entry *entry, uint32_t n, int only,
                                     struct arena *arena, uint32_t *n_listed)
{
    struct listed *out = arena_alloc(arena, n * sizeof(*out));

    *n_listed = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct epa_transport_plugin *transport =
            entry[i].kind == EPA_PLUGIN_TRANSPORT ? (const void *)entry[i].plugin : NULL;
        struct listed *one = &out[*n_listed];
        char way[256];

        if (only >= 0 && entry[i].kind != (enum epa_plugin_kind)only)
            continue;
        one->entry = &entry[i];
        if (transport != NULL && doctor_gpu_data(transport, way, sizeof(way)))
            one->gpu_data = arena_printf(arena, "%s", way);
        ++*n_listed;
    }
    return out;
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
    struct library_found library[LIBRARY_IDS];
    struct arena *arena;
    struct listed *listed;
    FILE *own;
    uint32_t n, n_libraries;
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
    arena = arena_create();
    listed = choose_plugins(entry, n, only, arena, &n);
    n_libraries = only < 0 ? machine_libraries(library) : 0;
    stdout_take_back(own);
    add_plugins(&text, listed, n);
    add_libraries(&text, library, n_libraries);
    if (text.bytes == 0)
        fprintf(stderr, "epa2a: no %s found\n",
                only < 0 ? "plugin" : plugin_kind_name((enum epa_plugin_kind)only));
    else if (!cli_has_stdout(cli))
        fold_print(stdout, text.data, FOLD_LINES);
    if (cli_write_json(cli, list_json(listed, n, library, n_libraries), &err) != EPA_OK)
        code = cli_fail(&err);
    if (registry_empty(registry) != NULL) {
        fprintf(stderr, "epa2a: %s\n", registry_empty(registry));
        code = EXIT_RESOURCE;
    }
    arena_destroy(arena);
    registry_destroy(registry);
    return code;
}
