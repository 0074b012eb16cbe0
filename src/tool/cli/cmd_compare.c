/* `epa2a compare A B`: reports which runs of B are slower or faster than the runs of A. A and B are
 * files or folders of results, or experiments with --run. */
#include "cli/cmd_compare.h"

#include "cli/cli.h"
#include "cli/cli_fail.h"
#include "cli/compare_results.h"
#include "report/results_json.h"
#include "cli/compare_turns.h"

enum epa_status cmd_compare_check(const struct cli *cli, struct epa_error *err)
{
    const char *takes = cli->n_sets > 0                 ? "--set"
                        : cli->n_only > 0               ? "--only"
                        : cli->settings.timeout_ns != 0 ? "--timeout"
                        : cli->budget_ns != 0           ? "--budget"
                                                        : NULL;

    if (!cli->compare.turns && takes != NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "%s applies only to compare --run", takes);
    if (cli->compare.turns && cli->figure != NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--figure applies only to compare of two results; --run compares medians");
    return EPA_OK;
}

int cmd_compare(const struct cli *cli)
{
    struct results side[2] = {{0}};
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = EPA_OK;
    int code;

    if (cli->compare.turns)
        return compare_turns(cli);
    for (uint32_t i = 0; i < 2 && status == EPA_OK; i++)
        status = results_read(cli->arg[i], &side[i], &err);
    code = status == EPA_OK ? compare_results(cli, &side[0], &side[1], cli->compare.different, true)
                            : cli_fail(&err);
    results_free(&side[0]);
    results_free(&side[1]);
    return code;
}
