/* `epa2a config show FILE...` prints experiments as they are resolved; `config check` only
 * says whether they can be; `config schema` prints their JSON Schema. All errors of all
 * files come before the end. */
#include "cli/cli.h"
#include "cli/cmd_schema.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "config/diag.h"
#include "config/batch.h"
#include "plugin/registry.h"
#include "base/text.h"
#include "schema_texts.h"

static void show(const struct experiment *x, const struct cli *cli, bool first)
{
    struct text text = {0};

    experiment_show(x, cli->origin, &text);
    printf("%s%s", first ? "" : "---\n", text.data);
    text_free(&text);
}

/* What stands in the file outweighs what this machine lacks. */
static enum epa_status worse(enum epa_status a, enum epa_status b)
{
    return a == EPA_OK || b == EPA_ERR_CONFIG ? b : a;
}

/* What all files share. */
struct command {
    const struct cli *cli;
    struct registry *registry;
    struct diag *diag;
    bool shown; /* something: a second document begins with a line */
};

static void show_next(struct command *c, const struct experiment *x)
{
    show(x, c->cli, !c->shown);
    c->shown = true;
}

static enum epa_status show_base(struct command *c, const char *file)
{
    struct experiment *x = NULL;
    enum epa_status status =
        experiment_read(file, c->cli->set, c->cli->n_sets, c->registry, c->diag, &x);

    if (status != EPA_OK)
        return status;
    show_next(c, x);
    experiment_destroy(x);
    return EPA_OK;
}

/* Runs that are equal have one id and are shown once. */
static enum epa_status show_run(struct command *c, const struct batch *batch)
{
    const char *wanted = c->cli->run;

    for (uint32_t i = 0; i < batch->n; i++) {
        const struct batch_run *run = &batch->run[i];

        if (strcmp(run->label, wanted) != 0 && (run->x == NULL || strcmp(run->x->id, wanted) != 0))
            continue;
        if (run->x == NULL) /* and why was told when the file was read */
            return run->absent.status;
        show_next(c, run->x);
        return EPA_OK;
    }
    diag_error(c->diag, &(struct source_location){.file = batch->file},
               "`epa2a run --dry-run FILE` lists labels and ids", "there is no run '%.200s'",
               wanted);
    return EPA_ERR_CONFIG;
}

static enum epa_status check(struct command *c, const struct batch *batch)
{
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < batch->n; i++)
        status = worse(status, batch->run[i].absent.status);
    if (status != EPA_OK || c->cli->quiet)
        return status;
    if (batch->n == 1)
        printf("%s: good\n", batch->file);
    else
        printf("%s: good, %u runs\n", batch->file, batch->n);
    return EPA_OK;
}

static enum epa_status do_file(struct command *c, const char *file)
{
    bool showing = strcmp(c->cli->arg[0], "show") == 0;
    struct batch *batch = NULL;
    enum epa_status status;

    if (showing && c->cli->run == NULL)
        return show_base(c, file);
    status = batch_read(file, c->cli->set, c->cli->n_sets, c->cli->max_runs, c->registry, c->diag,
                        &batch);
    if (status != EPA_OK)
        return status;
    status = showing ? show_run(c, batch) : check(c, batch);
    batch_destroy(batch);
    return status;
}

static int print_schema(const struct cli *cli)
{
    struct epa_error err = {EPA_OK, ""};
    const struct registry_entry *entry;
    struct registry *registry = NULL;
    enum epa_status status = registry_create(cli->plugin_path, &registry, &err);

    if (status == EPA_OK) {
        uint32_t n = registry_list(registry, &entry);

        status = schema_print(entry, n, stdout, &err);
    }
    if (status != EPA_OK)
        fprintf(stderr, "epa2a: %s\n", err.text);
    registry_destroy(registry);
    return exit_code(status, SIGINT);
}

int cmd_config(const struct cli *cli)
{
    struct command c = {.cli = cli};
    enum epa_status status = EPA_OK;
    struct epa_error err = {EPA_OK, ""};

    if (strcmp(cli->arg[0], "schema") == 0 && cli->results) {
        fputs(epa2a_result_schema_json, stdout);
        return EXIT_OK;
    }
    if (strcmp(cli->arg[0], "schema") == 0)
        return print_schema(cli);

    if (registry_create(cli->plugin_path, &c.registry, &err) != EPA_OK) {
        fprintf(stderr, "epa2a: %s\n", err.text);
        return exit_code(err.status, SIGINT);
    }
    c.diag = diag_create();
    for (uint32_t i = 1; i < cli->n_args; i++)
        status = worse(status, do_file(&c, cli->arg[i]));
    fflush(stdout);
    diag_print(c.diag, stderr);
    diag_destroy(c.diag);
    registry_destroy(c.registry);
    return exit_code(status, SIGINT);
}
