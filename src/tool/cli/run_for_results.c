/* Runs a command and keeps its results in memory. */
#include "cli/run_for_results.h"

#include "base/exit_code.h"
#include "cli/cli.h"
#include "cli/cli_fail.h"
#include "report/summary.h"

int run_results_convert(const char *path, json_t *list, int code, struct results *out)
{
    struct epa_error err = {EPA_OK, ""};
    int failed;

    *out = (struct results){0};
    if (json_array_size(list) == 0) {
        json_decref(list);
        return code;
    }
    if (results_of(path, report_document(list, NULL), out, &err) == EPA_OK)
        return code;
    failed = cli_fail(&err);
    results_free(out);
    return code != EXIT_OK ? code : failed;
}

int run_for_results(struct cli *cli, int (*command)(const struct cli *), const char *path,
                    struct results *out)
{
    json_t *list = json_array();
    int code;

    cli->results_out = list;
    cli->order = RUNS_DECLARED;
    code = command(cli);
    return run_results_convert(path, list, code, out);
}
