/* Whether what stands on the command line makes sense together: a command's arguments, and
 * options that need others. */
#include "cli/commands.h"

#include <string.h>

#include "base/text.h"

static enum epa_status check_config(const struct cli *cli, struct epa_error *err)
{
    static const char *const words[] = {"show", "check", "schema"};
    const char *word = cli->n_args == 0 ? "" : cli->arg[0];
    const char *nearest = text_nearest(word, words, 3);
    bool schema = strcmp(word, "schema") == 0;

    if (cli->n_args == 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "config needs to know what to do: "
                        "'epa2a config show FILE', 'config check FILE' or 'config schema'");
    if (nearest == NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "there is no config '%s'; there is show, check, schema", word);
    if (strcmp(word, nearest) != 0)
        return epa_fail(err, EPA_ERR_CONFIG, "there is no config '%s'; is it '%s'?", word,
                        nearest);
    if (schema && (cli->n_args != 1 || cli->n_sets != 0))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "config schema is of all experiments and takes no file and no "
                        "--set");
    if (!schema && cli->results)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "config %s does not take --results, only config "
                        "schema",
                        word);
    if (!schema && cli->n_args == 1)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "config %s needs a file: 'epa2a config %s FILE...'", word, word);
    if ((cli->origin || cli->run != NULL) && strcmp(word, "show") != 0)
        return epa_fail(err, EPA_ERR_CONFIG, "config %s does not take %s, only config show",
                        word, cli->origin ? "--origin" : "--run");
    return EPA_OK;
}

static enum epa_status check_runs(const struct command *command, const struct cli *cli,
                                  struct epa_error *err)
{
    if (cli->n_args == 0)
        return epa_fail(
            err, EPA_ERR_CONFIG,
            "%s needs a file: 'epa2a %s FILE...', such as configs/ll_v2-shm.yaml",
            command->name, command->name);
    if (cli->order == RUNS_DECLARED && cli->shuffle)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--order declared has no use for a seed: leave --shuffle out, or "
                        "write --order shuffled");
    if (cli->resume && cli->out_dir == NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--resume needs the folder of the batch: --resume --out-dir DIR");
    return EPA_OK;
}

enum epa_status cli_check_args(const struct command *command, const struct cli *cli,
                               struct epa_error *err)
{
    if ((command->bit & FILES) != 0)
        return check_runs(command, cli, err);
    if (command->bit == COMPARE && cli->n_args != 2)
        return epa_fail(
            err, EPA_ERR_CONFIG,
            "compare takes two results, files of --json or folders of --out-dir: "
            "'epa2a compare A.json B.json'");
    if (command->bit == DOCTOR && cli->n_args != 0)
        return epa_fail(err, EPA_ERR_CONFIG, "doctor takes no argument: '%s'", cli->arg[0]);
    if ((command->bit & (LIST | HELP | STATUS)) != 0 && cli->n_args > 1)
        return epa_fail(err, EPA_ERR_CONFIG, "%s takes one argument at most: 'epa2a %s %s'",
                        command->name, command->name, command->args);
    if (command->bit == RERUN && cli->n_args != 1)
        return epa_fail(
            err, EPA_ERR_CONFIG,
            "rerun takes one file that --json wrote: 'epa2a rerun RESULT.json'");
    if (command->bit == PLOT)
        return cmd_plot_check(cli, err);
    if (command->bit == TRACE)
        return cmd_trace_check(cli, err);
    return command->bit == CONFIG ? check_config(cli, err) : EPA_OK;
}
