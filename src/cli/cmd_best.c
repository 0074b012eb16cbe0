/* epa2a best RESULTS...: which run is fastest, of those that answer one question. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/cli.h"
#include "report/best.h"

enum epa_status cmd_best_check(const struct cli *cli, struct epa_error *err)
{
    for (uint32_t i = 0; i < cli->n_across; i++) {
        struct nearest nearest = {.want = cli->across[i]};
        char hint[NEAREST_ROOM];
        uint32_t k = 0;

        for (; best_across(k) != NULL && strcmp(best_across(k), cli->across[i]) != 0; k++)
            nearest_try(&nearest, best_across(k));
        if (best_across(k) == NULL)
            return epa_fail(err, EPA_ERR_CONFIG, "--across: there is no '%s'; %s", cli->across[i],
                            nearest_hint(&nearest, hint, "there is layout, rows, outputs, fused"));
    }
    return EPA_OK;
}

static enum epa_status write_documents(const struct cli *cli, const struct best *best,
                                       struct epa_error *err)
{
    struct text json = {0}, markdown = {0};
    enum epa_status status = EPA_OK;

    if (cli->json != NULL) {
        status = best_json(&json, best, err);
        if (status == EPA_OK)
            status = file_write("--json", cli->json, cli->force, &json, err);
    }
    if (cli->markdown != NULL && status == EPA_OK) {
        best_markdown(&markdown, best);
        status = file_write("--markdown", cli->markdown, cli->force, &markdown, err);
    }
    text_free(&json);
    text_free(&markdown);
    return status;
}

static bool is_stdout(const char *path)
{
    return path != NULL && strcmp(path, "-") == 0;
}

int cmd_best(const struct cli *cli)
{
    const struct best_wish wish = {.stage = cli->stage,
                                   .only = cli->only,
                                   .n_only = cli->n_only,
                                   .across = cli->across,
                                   .n_across = cli->n_across,
                                   .close = cli->threshold};
    struct results *results = calloc(cli->n_args, sizeof(*results));
    struct epa_error err = {EPA_OK, ""};
    struct best *best = NULL;
    uint32_t n = 0;
    enum epa_status status = EPA_OK;

    if (results == NULL)
        status = epa_fail(&err, EPA_ERR_NOMEM, "no memory for %u files", cli->n_args);
    if (status == EPA_OK && is_stdout(cli->json) && is_stdout(cli->markdown))
        status = epa_fail(&err, EPA_ERR_CONFIG, "--json and --markdown are both standard output");
    if (status == EPA_OK && cli->json != NULL)
        status = file_check("--json", cli->json, cli->force, &err);
    if (status == EPA_OK && cli->markdown != NULL)
        status = file_check("--markdown", cli->markdown, cli->force, &err);
    if (status == EPA_OK)
        status = results_read_all(cli->arg, cli->n_args, results, &n, &err);
    if (status == EPA_OK)
        status = best_create(results, n, &wish, &best, &err);
    if (status == EPA_OK && !is_stdout(cli->json) && !is_stdout(cli->markdown))
        best_text(stdout, best);
    if (status == EPA_OK)
        status = write_documents(cli, best, &err);
    best_destroy(best);
    for (uint32_t i = 0; i < n; i++)
        results_free(&results[i]);
    free(results);
    return status == EPA_OK ? EXIT_OK : cli_fail(&err);
}
