/* `epa2a config show FILE...` prints experiments as they are resolved; `config check` only
 * says whether they can be. All errors of all files come before the end. */
#include "cli/cli.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "config/diag.h"
#include "config/experiment.h"
#include "plugin/registry.h"
#include "base/text.h"

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

int cmd_config(const struct cli *cli)
{
    bool showing = strcmp(cli->arg[0], "show") == 0;
    enum epa_status status = EPA_OK;
    struct epa_error err = {EPA_OK, ""};
    struct registry *registry = NULL;
    struct diag *diag;

    if (registry_create(cli->plugin_path, &registry, &err) != EPA_OK) {
        fprintf(stderr, "epa2a: %s\n", err.text);
        return exit_code(err.status, SIGINT);
    }
    diag = diag_create();
    for (uint32_t i = 1; i < cli->n_args; i++) {
        struct experiment *x = NULL;
        enum epa_status one =
            experiment_read(cli->arg[i], cli->set, cli->n_sets, registry, diag, &x);

        status = worse(status, one);
        if (one != EPA_OK)
            continue;
        if (showing)
            show(x, cli, i == 1);
        else if (!cli->quiet)
            printf("%s: good\n", cli->arg[i]);
        experiment_destroy(x);
    }
    fflush(stdout);
    diag_print(diag, stderr);
    diag_destroy(diag);
    registry_destroy(registry);
    return exit_code(status, SIGINT);
}
