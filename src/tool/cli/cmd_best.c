/* `epa2a best RESULTS...`: the fastest run of each problem. */
#include "cli/cmd_best.h"

#include <stdio.h>
#include <unistd.h>

#include "base/exit_code.h"
#include "cli/cli.h"
#include "cli/cli_fail.h"
#include "cli/documents.h"
#include "report/best_json.h"
#include "result/figures.h"
#include "report/results_json.h"

int cmd_best(const struct cli *cli)
{
    struct best_wish wish = {.which = {cli->stage, cli->only, cli->n_only},
                             .across = cli->across,
                             .n_across = cli->n_across,
                             .close = cli->threshold};
    struct results results = {0};
    struct epa_error err = {EPA_OK, ""};
    struct best *best = NULL;
    text_auto markdown = {0};
    enum epa_status status = results_read_all(cli->arg, cli->n_args, &results, &err);

    if (status == EPA_OK)
        status = figure_select(cli->figure, &wish.figure, &err);
    if (status == EPA_OK)
        status = best_create(&results, &wish, &best, &err);
    if (status == EPA_OK && !cli_has_stdout(cli))
        best_text(stdout, best);
    if (status == EPA_OK) {
        best_markdown(&markdown, best);
        status = cli_write_documents(cli, best_json(best), &markdown, &err);
    }
    best_destroy(best);
    results_free(&results);
    return status == EPA_OK ? EXIT_OK : cli_fail(&err);
}
