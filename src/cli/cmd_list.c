/* `epa2a list`: every plugin by kind, what it is, what it needs, where it came from; and
 * for one that cannot be loaded, why. */
#include "cli/cli.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "op/op.h"
#include "plugin/registry.h"
#include "base/text.h"

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

static void add_words(struct text *text, int indent, const char *before, const struct words *words,
                      uint32_t bits)
{
    text_add(text, "%*s%s", indent, "", before);
    before = "";
    for (; words->text != NULL; words++) {
        if ((bits & words->bit) == 0)
            continue;
        text_add(text, "%s%s", before, words->text);
        before = ", ";
    }
    text_add(text, "%s\n", *before == '\0' ? "nothing in particular" : "");
}

/* What a plugin needs or gives, as lines of their own, `indent` columns in. */
static void add_facts(struct text *text, int indent, const struct epa_plugin *plugin)
{
    const struct epa_algorithm_plugin *algorithm = (const void *)plugin;
    const struct epa_transport_plugin *transport = (const void *)plugin;
    const struct epa_backend_plugin *backend = (const void *)plugin;

    if (plugin->kind == EPA_PLUGIN_ALGORITHM) {
        const struct operation *op = operation_of(algorithm->op);

        text_add(text, "%*ssolves: %s\n", indent, "", op != NULL ? op->name : "?");
        if ((algorithm->memory & EPA_MEMORY_HOST) != 0)
            add_words(text, indent, "needs on host memory: a transport with ", transport_words,
                      algorithm->needs_host);
        if ((algorithm->memory & EPA_MEMORY_CUDA) != 0)
            add_words(text, indent, "needs on CUDA memory: a transport with ", transport_words,
                      algorithm->needs_cuda);
    } else if (plugin->kind == EPA_PLUGIN_TRANSPORT) {
        add_words(text, indent, "in: ", memory_words, transport->memory);
        add_words(text, indent, "gives: ", transport_words, transport->flags);
        if (transport->between_nodes != NULL)
            text_add(text,
                     "%*sbetween nodes (between_nodes): puts by any transport in host memory, data "
                     "staged there\n",
                     indent, "");
    } else if (plugin->kind == EPA_PLUGIN_BACKEND) {
        add_words(text, indent, "gives: ", memory_words, backend->memory);
    }
}

static void add_entry(struct text *text, int indent, const struct registry_entry *entry)
{
    text_add(text, "  %-*s", indent - 2, entry->name);
    if (entry->plugin != NULL) {
        text_add(text, "%s\n", entry->plugin->summary);
        add_facts(text, indent, entry->plugin);
    } else {
        text_add(text, "cannot be loaded: %s\n", entry->why);
    }
    text_add(text, "%*s%s\n", indent, "", entry->file == NULL ? "built in" : entry->file);
    if (entry->hides != NULL)
        text_add(text, "%*shides %s\n", indent, "", entry->hides);
}

static void add_table(struct text *text, const struct registry_entry *entry, uint32_t n, int only)
{
    uint32_t last = PLUGIN_KINDS;
    int indent = 0;

    for (uint32_t i = 0; i < n; i++) {
        int width = (int)strlen(entry[i].name) + 4;

        if ((only < 0 || entry[i].kind == (enum epa_plugin_kind)only) && width > indent)
            indent = width;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (only >= 0 && entry[i].kind != (enum epa_plugin_kind)only)
            continue;
        if (entry[i].kind != last)
            text_add(text, "%s%ss\n", text->bytes == 0 ? "" : "\n",
                     plugin_kind_name(entry[i].kind));
        last = entry[i].kind;
        add_entry(text, indent, &entry[i]);
    }
}

/* -1: all kinds. */
static enum epa_status find_kind(const struct cli *cli, int *out, struct epa_error *err)
{
    struct nearest nearest = {.want = cli->n_args == 0 ? "" : cli->arg[0]};
    char hint[NEAREST_ROOM];

    *out = -1;
    for (int kind = 0; kind < PLUGIN_KINDS && cli->n_args > 0; kind++) {
        const char *name = plugin_kind_name((enum epa_plugin_kind)kind);

        nearest_try(&nearest, name);
        if (strcmp(cli->arg[0], name) == 0)
            *out = kind;
    }
    if (cli->n_args == 0 || *out >= 0)
        return EPA_OK;
    return epa_fail(
        err, EPA_ERR_CONFIG, "there is no kind of plugin '%s'; %s", cli->arg[0],
        nearest_hint(&nearest, hint, "there is backend, launcher, transport, algorithm"));
}

int cmd_list(const struct cli *cli)
{
    struct epa_error err = {EPA_OK, ""};
    struct registry *registry = NULL;
    const struct registry_entry *entry;
    struct text text = {0};
    uint32_t n;
    int only, code = EXIT_OK;
    enum epa_status status = find_kind(cli, &only, &err);

    if (status == EPA_OK)
        status = registry_create(cli->plugin_path, &registry, &err);
    if (status != EPA_OK) {
        fprintf(stderr, "epa2a: %s\n", err.text);
        return exit_code(status, SIGINT);
    }
    n = registry_list(registry, &entry);
    add_table(&text, entry, n, only);
    if (text.bytes == 0)
        fprintf(stderr, "epa2a: there is no %s\n",
                only < 0 ? "plugin" : plugin_kind_name((enum epa_plugin_kind)only));
    else
        fwrite(text.data, 1, text.bytes, stdout);
    text_free(&text);
    if (registry_empty(registry) != NULL) {
        fprintf(stderr, "epa2a: %s\n", registry_empty(registry));
        code = EXIT_RESOURCE;
    }
    registry_destroy(registry);
    return code;
}
