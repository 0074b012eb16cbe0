/* `epa2a plot RESULTS...`: charts by gnuplot. The ending of --out selects SVG, PNG or text. */
#include "cli/cmd_plot.h"

#include <string.h>
#include <strings.h>

#include "base/exit_code.h"
#include "base/file.h"
#include "cli/chart_file.h"
#include "cli/cli.h"
#include "cli/cli_fail.h"
#include "cli/gnuplot.h"
#include "report/plot.h"
#include "report/results.h"

static const char *plot_path(const struct cli *cli)
{
    return cli->out != NULL ? cli->out : "-";
}

enum epa_status cmd_plot_check(const struct cli *cli, struct epa_error *err)
{
    const char *path = plot_path(cli), *end = file_ending(path);
    bool text = strcmp(path, "-") == 0 || strcasecmp(end, ".txt") == 0;

    if (!text && strcasecmp(end, ".svg") != 0 && strcasecmp(end, ".png") != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--out %s: a chart ends in .svg, .png or .txt, or is - for standard "
                        "output",
                        path);
    return EPA_OK;
}

int cmd_plot(const struct cli *cli)
{
    const struct plot_wish wish = {.kind = (enum plot_kind)cli->plot.kind,
                                   .form = cli_plot_form(plot_path(cli)),
                                   .columns = cli_plot_columns(plot_path(cli)),
                                   .which = {cli->stage, cli->only, cli->n_only}};
    struct results results = {0};
    text_auto script = {0}, out = {0};
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = results_read_all(cli->arg, cli->n_args, &results, &err);

    if (status == EPA_OK)
        status = plot_script(&results, &wish, &script, &err);
    if (status == EPA_OK)
        status = cli_draw(&script, &out, &err);
    if (status == EPA_OK)
        status = file_write("--out", plot_path(cli), cli->force, &out, &err);
    results_free(&results);
    return status == EPA_OK ? EXIT_OK : cli_fail(&err);
}
