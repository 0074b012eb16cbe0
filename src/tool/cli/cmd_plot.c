/* `epa2a plot RESULTS...`: charts, by the Python package. The ending of --out selects SVG, PNG, PDF or text. */
#include "cli/cmd_plot.h"

#include <string.h>

#include "cli/chart_file.h"
#include "cli/cli.h"
#include "cli/cli_fail.h"
#include "cli/python_command.h"

/* In the order of enum chart_kind. */
const struct epa_choice plot_kinds[] = {
    {"auto", CHART_AUTO, NULL},
    {"tokens", CHART_TOKENS, NULL},
    {"distribution", CHART_DISTRIBUTION, NULL},
    {"skew", CHART_SKEW, NULL},
    {"stages", CHART_STAGES, NULL},
    {"ratio", CHART_RATIO, NULL},
    {"trend", CHART_TREND, NULL},
    {"nights", CHART_NIGHTS, NULL},
    {0},
};

enum epa_status cmd_plot_check(const struct cli *cli, struct epa_error *err)
{
    if (cli->plot.baseline != NULL && cli->plot.kind != CHART_RATIO)
        return epa_fail(err, EPA_ERR_CONFIG, "--baseline belongs to --kind ratio");
    return cli->out == NULL ? EPA_OK : chart_file_check(cli->out, err);
}

int cmd_plot(const struct cli *cli)
{
    struct python_words words = {0};
    struct epa_error err = {EPA_OK, ""};

    python_add(&words, "plot");
    python_add_common(&words, cli);
    python_add_value(&words, "--out", cli->out);
    python_add_value(&words, "--kind", plot_kinds[cli->plot.kind].name);
    python_add_value(&words, "--stage", cli->stage);
    for (uint32_t i = 0; i < cli->n_only; i++)
        python_add_value(&words, "--only", cli->only[i]);
    python_add_value(&words, "--baseline", cli->plot.baseline);
    python_add_number(&words, "--columns", cli->plot.columns);
    python_add(&words, "--");
    for (uint32_t i = 0; i < cli->n_args; i++)
        python_add(&words, cli->arg[i]);
    (void)python_run(&words, &err);
    return cli_fail(&err);
}
