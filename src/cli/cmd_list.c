/* `epa2a list`: every plugin by kind, what it is, what it needs, where it came from; and
 * for one that cannot be loaded, why. */
#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <epa2a/plugin.h>

#include "base/file.h"
#include "base/text.h"
#include "cli/cli.h"
#include "config/experiment.h"
#include "doctor/doctor.h"
#include "op/op.h"
#include "plugin/registry.h"
#include "report/facts.h"
#include "report/report.h"

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
    if (status != EPA_OK)
        return cli_fail(&err);
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

/* ---- epa2a doctor ---- */

/* It ends well where ranks of this host can talk, whatever else is missing. */
int cmd_doctor(const struct cli *cli)
{
    struct epa_error err = {EPA_OK, ""};
    const struct doctor_plugin *shm;
    struct doctor *d;
    enum epa_status status = EPA_OK;
    int code;

    if (cli->json != NULL)
        status = file_check("--json", cli->json, cli->force, &err);
    if (status == EPA_OK)
        status = doctor_examine(cli->plugin_path, cli->quick, &d, &err);
    if (status != EPA_OK)
        return cli_fail(&err);
    if (cli->json == NULL || strcmp(cli->json, "-") != 0)
        doctor_print(stdout, d);
    if (cli->json != NULL)
        status = cli_write_json(cli, doctor_json(d), &err);
    shm = doctor_plugin(d, EPA_PLUGIN_TRANSPORT, "shm");
    if (status == EPA_OK && d->shm != EPA_OK)
        (void)epa_fail(&err, d->shm, "transport shm cannot be used: %s",
                       shm != NULL           ? shm->text
                       : d->empty[0] != '\0' ? d->empty
                                             : "there is no such plugin");
    code = err.status != EPA_OK ? cli_fail(&err) : EXIT_OK;
    doctor_destroy(d);
    return code;
}

/* ---- epa2a --version ---- */

/* "hwloc ucx ..." as the build has it, to an object of yes and no. */
static json_t *with(void)
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
    char folder[PATH_MAX];
    struct facts f;
    json_t *o;

    facts_collect(&f);
    registry_installed_folder(folder, sizeof(folder));
    o = json_pack("{ss ss so si si si ss ss ss ss sb ss ss so}", "program", "epa2a", "version",
                  EPA2A_VERSION, "git", json_text_or_null(f.git), "plugin_abi", EPA_ABI,
                  "experiment_version", EXPERIMENT_VERSION, "result_schema", REPORT_SCHEMA,
                  "compiler", f.compiler, "libc", f.libc, "type", f.build_type, "sanitizers",
                  f.sanitizers, "debug", f.debug_build, "isa", f.isa, "plugin_folder", folder,
                  "with", with());
    facts_finish(&f);
    return o;
}

int cmd_version(const struct cli *cli)
{
    struct epa_error err = {EPA_OK, ""};

    if (cli->json == NULL) {
        printf("epa2a %s (plugin ABI %u)\n", EPA2A_VERSION, EPA_ABI);
        return EXIT_OK;
    }
    if (file_check("--json", cli->json, cli->force, &err) == EPA_OK &&
        cli_write_json(cli, version_json(), &err) == EPA_OK)
        return EXIT_OK;
    return cli_fail(&err);
}
