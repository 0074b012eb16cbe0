/* epa2a plot RESULTS...: charts of results. What --out ends in says how they are drawn: svg
 * and png by gnuplot, txt and standard output with characters, which always can be. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cli/cli.h"
#include "report/plot.h"
#include "report/report.h"

static const char *ending(const char *path)
{
    const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');

    return dot == NULL || (slash != NULL && dot < slash) ? "" : dot;
}

static bool is_text(const char *path)
{
    return strcmp(path, "-") == 0 || strcasecmp(ending(path), ".txt") == 0;
}

static const char *path_of(const struct cli *cli)
{
    return cli->out != NULL ? cli->out : "-";
}

static enum plot_kind kind_of(const char *name)
{
    enum plot_kind kind = PLOT_AUTO;

    while (kind < PLOT_KINDS && name != NULL && strcmp(name, plot_kind_name(kind)) != 0)
        kind++;
    return kind;
}

enum epa_status cmd_plot_check(const struct cli *cli, struct epa_error *err)
{
    const char *path = path_of(cli), *end = ending(path), *names[PLOT_KINDS], *nearest;

    if (cli->n_args == 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "plot needs results: a file that --json wrote, or a folder of them: "
                        "'epa2a plot RESULTS...'");
    if (!is_text(path) && strcasecmp(end, ".svg") != 0 && strcasecmp(end, ".png") != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--out %s: a chart ends in .svg, .png or .txt, or is - for standard "
                        "output",
                        path);
    if (kind_of(cli->kind) != PLOT_KINDS)
        return EPA_OK;
    for (uint32_t i = 0; i < PLOT_KINDS; i++)
        names[i] = plot_kind_name((enum plot_kind)i);
    nearest = text_nearest(cli->kind, names, PLOT_KINDS);
    return epa_fail(err, EPA_ERR_CONFIG, "--kind: there is no '%s'; %s%s%s", cli->kind,
                    nearest == NULL ? "there is auto, tokens, distribution, skew, stages"
                                    : "is it '",
                    nearest == NULL ? "" : nearest, nearest == NULL ? "" : "'?");
}

static void tell_left_out(const struct results *results, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < results[i].n; k++) {
            const struct results_run *run = &results[i].run[k];

            if (!run->ok)
                fprintf(stderr,
                        "epa2a: %swarning:%s %s: '%s' ended with status %s and is left out\n",
                        colour_on(stderr, COLOUR_WARNING), colour_off(stderr), results[i].path,
                        run->label, run->status);
        }
    }
}

static enum epa_status draw(const struct cli *cli, const struct plot *plot, struct epa_error *err)
{
    const char *path = path_of(cli);
    struct text script = {0}, out = {0};
    enum epa_status status = EPA_OK;

    if (is_text(path)) {
        plot_text(plot, report_unicode(), &out);
    } else {
        plot_script(plot, strcasecmp(ending(path), ".png") == 0 ? PLOT_PNG : PLOT_SVG, &script);
        status = gnuplot_run(&script, &out, err);
    }
    if (status == EPA_OK)
        status = report_file("--out", path, cli->force, out.data, out.bytes, err);
    text_free(&script);
    text_free(&out);
    return status;
}

int cmd_plot(const struct cli *cli)
{
    const struct plot_wish wish = {
        .kind = kind_of(cli->kind), .stage = cli->stage, .only = cli->only, .n_only = cli->n_only};
    struct results *results = calloc(cli->n_args, sizeof(*results));
    struct plot plot = {0};
    struct epa_error err = {EPA_OK, ""};
    uint32_t n = 0;
    enum epa_status status = EPA_OK;

    if (results == NULL)
        status = epa_fail(&err, EPA_ERR_NOMEM, "no memory for %u files", cli->n_args);
    if (status == EPA_OK)
        status = report_file_check("--out", path_of(cli), cli->force, &err);
    while (n < cli->n_args && status == EPA_OK) {
        status = results_read(cli->arg[n], &results[n], &err);
        n += status == EPA_OK;
    }
    if (status == EPA_OK) {
        tell_left_out(results, n);
        status = plot_make(results, n, &wish, &plot, &err);
    }
    if (status == EPA_OK)
        status = draw(cli, &plot, &err);
    plot_free(&plot);
    for (uint32_t i = 0; i < n; i++)
        results_free(&results[i]);
    free(results);
    if (status != EPA_OK)
        fprintf(stderr, "epa2a: %s\n", err.text);
    return exit_code(status, 0);
}
