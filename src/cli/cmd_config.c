/* `epa2a config show FILE...` prints experiments as they are resolved; `config check` only
 * says whether they can be; `config schema` prints their JSON Schema. All errors of all
 * files come before the end. */
#include "cli/cli.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "experiment/batch.h"
#include "session/session.h"
#include "trace/write.h"

enum epa_status cmd_config_check(const struct cli *cli, struct epa_error *err)
{
    const char *word = cli->arg[0], *takes = NULL;
    bool show = strcmp(word, "show") == 0, schema = strcmp(word, "schema") == 0;

    if (schema && (cli->n_args != 1 || cli->n_sets != 0))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "config schema is of all experiments and takes no file and no --set");
    if (!schema && cli->n_args == 1)
        return epa_fail(err, EPA_ERR_CONFIG, "config %s needs a file: 'epa2a config %s FILE...'",
                        word, word);
    if (!schema && cli->results)
        takes = "--results, only config schema";
    else if (!show && cli->origin)
        takes = "--origin, only config show";
    else if (!show && cli->n_only > 0)
        takes = "--only, only config show";
    if (takes != NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "config %s does not take %s", word, takes);
    return EPA_OK;
}

/* What is in the file outweighs what this machine lacks. */
static enum epa_status worse(enum epa_status a, enum epa_status b)
{
    return a == EPA_OK || b == EPA_ERR_CONFIG ? b : a;
}

/* What all files share. */
struct config_command {
    const struct cli *cli;
    struct registry *registry;
    struct diag *diag;
    bool shown; /* something: a second document begins with a line */
};

static void show(struct config_command *c, const struct experiment *x)
{
    text_auto text = {0};

    experiment_show(x, c->cli->origin, &text);
    printf("%s%s", c->shown ? "---\n" : "", text.data);
    c->shown = true;
}

/* Runs that are equal have one id and are shown once. */
static enum epa_status show_runs(struct config_command *c, const struct batch *batch)
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
        if (run->x == NULL) /* and the reason was reported when the file was read */
            status = run->absent.status;
        else if (!before)
            show(c, run->x);
    }
    if (any)
        return status;
    diag_error(c->diag, &(struct source_location){.file = batch->file},
               "`epa2a run --dry-run FILE` lists labels and ids", "there is no run '%.200s'",
               c->cli->only[0]);
    return EPA_ERR_CONFIG;
}

/* What run, bench or verify would refuse before they have ranks. */
static enum epa_status check_run(struct config_command *c, const struct experiment *x)
{
    enum epa_status worst = EPA_OK;
    struct epa_error before = {EPA_OK, ""};

    for (enum verb verb = VERB_RUN; verb <= VERB_VERIFY; verb++) {
        struct epa_error err = {EPA_OK, ""};
        struct session *session = NULL;
        struct source_location at;
        enum epa_status status = session_plan(x, verb, &session, &err);

        if (status == EPA_OK) /* files that are there are no fault of the experiment */
            status = trace_write_check(session, true, &err);
        session_destroy(session);
        worst = worse(worst, status);
        if (status == EPA_OK || strcmp(err.text, before.text) == 0)
            continue;
        at = origin_of_refusal(x, err.text);
        diag_error(c->diag, &at, NULL, "%s", err.text);
        before = err;
    }
    return worst;
}

static enum epa_status check(struct config_command *c, const struct batch *batch)
{
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < batch->n; i++) {
        status = worse(status, batch->run[i].absent.status);
        if (batch->run[i].x != NULL)
            status = worse(status, check_run(c, batch->run[i].x));
    }
    if (status != EPA_OK || c->cli->quiet)
        return status;
    if (batch->n == 1)
        printf("%s: good\n", batch->file);
    else
        printf("%s: good, %u runs\n", batch->file, batch->n);
    return EPA_OK;
}

static enum epa_status do_file(struct config_command *c, const char *file)
{
    bool showing = strcmp(c->cli->arg[0], "show") == 0;
    bool base = showing && c->cli->n_only == 0;
    struct batch *batch = NULL;
    enum epa_status status;

    status = batch_read(file, c->cli->set, c->cli->n_sets, base ? 0 : c->cli->max_runs, c->registry,
                        c->diag, &batch);
    if (status != EPA_OK)
        return status;
    if (base)
        show(c, batch->run[0].x);
    else
        status = showing ? show_runs(c, batch) : check(c, batch);
    batch_destroy(batch);
    return status;
}

int cmd_config(const struct cli *cli)
{
    struct config_command c = {.cli = cli};
    enum epa_status status = EPA_OK;
    struct epa_error err = {EPA_OK, ""};

    if (strcmp(cli->arg[0], "schema") == 0)
        return cmd_schema(cli);
    if (registry_create(cli->plugin_path, &c.registry, &err) != EPA_OK)
        return cli_fail(&err);
    c.diag = diag_create();
    for (uint32_t i = 1; i < cli->n_args; i++)
        status = worse(status, do_file(&c, cli->arg[i]));
    fflush(stdout);
    diag_print(c.diag, stderr);
    diag_destroy(c.diag);
    registry_destroy(c.registry);
    return exit_code(status, SIGINT);
}
