/* `epa2a config show FILE...` prints resolved experiments; `config check` only checks them; `config
 * schema` prints their JSON Schema. The command reports all errors of all files. */
#include "cli/cmd_config.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/exit_code.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/cli_fail.h"
#include "cli/experiment_schema.h"
#include "cli/result_schema.h"
#include "config/diag.h"
#include "config/experiment.h"
#include "config/experiment_show.h"
#include "config/origin.h"
#include "experiment/batch.h"
#include "launch/program_registry.h"
#include "session/session.h"
#include "session/session_create.h"
#include "trace/write.h"

enum epa_status cmd_config_check(const struct cli *cli, struct epa_error *err)
{
    const char *word = cli->arg[0], *takes = NULL;
    bool show = strcmp(word, "show") == 0, schema = strcmp(word, "schema") == 0;

    if (schema && (cli->n_args != 1 || cli->n_sets != 0))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "config schema covers all experiments and takes no file and no --set");
    if (!schema && cli->n_args == 1)
        return epa_fail(err, EPA_ERR_CONFIG, "config %s needs a file: 'epa2a config %s FILE...'",
                        word, word);
    if (!schema && cli->config.results)
        takes = "--results, only config schema";
    else if (!show && cli->config.origin)
        takes = "--origin, only config show";
    else if (!show && cli->n_only > 0)
        takes = "--only, only config show";
    if (takes != NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "config %s does not take %s", word, takes);
    return EPA_OK;
}

/* Returns the status to report: an error of the file has priority over a missing plugin. */
static enum epa_status worse_status(enum epa_status a, enum epa_status b)
{
    return a == EPA_OK || b == EPA_ERR_CONFIG ? b : a;
}

/* State shared by all files of the command. */
struct config_command {
    const struct cli *cli;
    struct registry *registry;
    struct diag *diag;
    bool shown; /* an experiment has been printed; "---" precedes the next one */
};

static void print_experiment(struct config_command *c, const struct experiment *x)
{
    text_auto text = {0};

    experiment_show(x, c->cli->config.origin, &text);
    printf("%s%s", c->shown ? "---\n" : "", text.data);
    c->shown = true;
}

/* Prints the selected runs of a file. Equal runs have one id and are printed once. */
static enum epa_status print_runs(struct config_command *c, const struct batch *batch)
{
    const struct batch_pick pick = {c->cli->only, c->cli->n_only};
    enum epa_status status = EPA_OK;
    bool any = false;

    for (uint32_t i = 0; i < batch->n; i++) {
        const struct batch_run *run = &batch->run[i];
        bool before = false;

        if (!batch_picks(&pick, run->label, run->x != NULL ? run->x->id : NULL))
            continue;
        any = true;
        for (uint32_t k = 0; k < i && run->x != NULL; k++)
            before = before ||
                     (batch->run[k].x != NULL && strcmp(batch->run[k].x->id, run->x->id) == 0 &&
                      batch_picks(&pick, batch->run[k].label, run->x->id));
        if (run->x == NULL) /* batch_read() has reported the reason */
            status = run->absent.status;
        else if (!before)
            print_experiment(c, run->x);
    }
    if (any)
        return status;
    diag_error(c->diag, &(struct source_location){.file = batch->file},
               "`epa2a run --dry-run FILE` lists labels and ids", "no run matches '%.200s'",
               c->cli->only[0]);
    return EPA_ERR_CONFIG;
}

/* Makes all checks of run, bench and verify before the start of ranks. */
static enum epa_status check_experiment(struct config_command *c, const struct experiment *x)
{
    enum epa_status worst = EPA_OK;

    for (enum verb verb = VERB_RUN; verb <= VERB_VERIFY; verb++) {
        struct epa_error err = {EPA_OK, ""};
        struct session *session = NULL;
        struct source_location at;
        enum epa_status status = session_plan(x, verb, &session, &err);

        if (status == EPA_OK) /* true: existing trace files are no error of the experiment */
            status = trace_write_check(session, true, &err);
        session_destroy(session);
        worst = worse_status(worst, status);
        if (status == EPA_OK)
            continue;
        at = origin_of_error(x, &err);
        diag_run_begin(c->diag); /* an error of several verbs is reported once */
        diag_error(c->diag, &at, NULL, "%s", err.text);
        diag_run_end(c->diag, x->file, x->file, false);
    }
    return worst;
}

static enum epa_status check_batch(struct config_command *c, const struct batch *batch)
{
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < batch->n; i++) {
        status = worse_status(status, batch->run[i].absent.status);
        if (batch->run[i].x != NULL)
            status = worse_status(status, check_experiment(c, batch->run[i].x));
    }
    if (status != EPA_OK || c->cli->quiet)
        return status;
    if (batch->n == 1)
        printf("%s: good\n", batch->file);
    else
        printf("%s: good, %u runs\n", batch->file, batch->n);
    return EPA_OK;
}

static enum epa_status process_file(struct config_command *c, const char *file)
{
    bool showing = strcmp(c->cli->arg[0], "show") == 0;
    bool base = showing && c->cli->n_only == 0;
    struct batch *batch = NULL;
    enum epa_status status;

    status = batch_read(file, NULL, c->cli->set, c->cli->n_sets, &(struct batch_pick){0},
                        base ? 0 : c->cli->max_runs, c->registry, c->diag, &batch);
    if (status != EPA_OK)
        return status;
    if (base)
        print_experiment(c, batch->run[0].x);
    else
        status = showing ? print_runs(c, batch) : check_batch(c, batch);
    batch_destroy(batch);
    return status;
}

int cmd_config(const struct cli *cli)
{
    bool schema = strcmp(cli->arg[0], "schema") == 0;
    struct config_command c = {.cli = cli};
    const struct registry_entry *entry;
    enum epa_status status = EPA_OK;
    struct epa_error err = {EPA_OK, ""};
    uint32_t n;

    if (schema && cli->config.results) {
        result_schema_print();
        return EXIT_OK;
    }
    if (program_registry_create(cli->plugin_path, &c.registry, &err) != EPA_OK)
        return cli_fail(&err);
    c.diag = diag_create();
    n = registry_list(c.registry, &entry);
    if (schema)
        experiment_schema_print(entry, n);
    for (uint32_t i = 1; i < cli->n_args; i++)
        status = worse_status(status, process_file(&c, cli->arg[i]));
    fflush(stdout);
    diag_print(c.diag, stderr);
    diag_destroy(c.diag);
    registry_destroy(c.registry);
    return exit_code(status, SIGINT);
}
