/* Whether what stands on the command line makes sense together: a command's arguments, and
 * options that need others. */
#include "cli/commands.h"

#include <string.h>

#include "base/text.h"

enum { CONTEXT_NAME = 64, CONTEXT_MOST = 64 };

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
        return epa_fail(err, EPA_ERR_CONFIG, "there is no config '%s'; is it '%s'?", word, nearest);
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
        return epa_fail(err, EPA_ERR_CONFIG, "config %s needs a file: 'epa2a config %s FILE...'",
                        word, word);
    if ((cli->origin || cli->run != NULL) && strcmp(word, "show") != 0)
        return epa_fail(err, EPA_ERR_CONFIG, "config %s does not take %s, only config show", word,
                        cli->origin ? "--origin" : "--run");
    return EPA_OK;
}

static enum epa_status check_runs(const struct command *command, const struct cli *cli,
                                  struct epa_error *err)
{
    if (cli->n_args == 0)
        return epa_fail(err, EPA_ERR_CONFIG,
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

enum epa_status cli_check_options(const struct command *command, const bool *given,
                                  struct epa_error *err)
{
    for (const struct option *option = options; option < options + OPTIONS; option++) {
        struct text takers = {0};

        if (!given[option - options] || (option->commands & command->bit) != 0)
            continue;
        for (uint32_t i = 0; i < commands_count(); i++) {
            if ((option->commands & commands[i].bit) != 0)
                text_add(&takers, "%s%s", takers.bytes == 0 ? "" : ", ", commands[i].name);
        }
        epa_fail(err, EPA_ERR_CONFIG, "%s does not take %s, only %s", command->name, option->name,
                 takers.data);
        text_free(&takers);
        return EPA_ERR_CONFIG;
    }
    return EPA_OK;
}

enum epa_status cli_check_context(const char *const *context, uint32_t n, struct epa_error *err)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";
    const char *word = context[n - 1], *at = strchr(word, '=');
    size_t bytes = at == NULL ? strlen(word) : (size_t)(at - word);
    uint32_t point = 0;

    if (at == NULL || bytes == 0 || bytes > CONTEXT_NAME || strchr(letters, *word) == NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--context %.80s: NAME=TEXT is expected, a name of 1 to %d letters, "
                        "digits, '_', '.' and '-': --context switch=b",
                        word, CONTEXT_NAME);
    for (size_t i = 0; i < bytes; i++)
        if (strchr(letters, word[i]) == NULL && strchr("0123456789.-", word[i]) == NULL)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "--context %.*s: a name has letters, digits, '_', '.' and '-', "
                            "and not '%c'",
                            (int)bytes, word, word[i]);
    for (size_t step; *++at != 0; at += step - 1) {
        step = text_decode(at, &point);
        if (step == 0 || point < 0x20 || point == 0x7f)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "--context %.*s: its text has byte 0x%02x; it must be one line "
                            "of UTF-8",
                            (int)bytes, word, (unsigned char)*at);
    }
    for (uint32_t i = 0; i + 1 < n; i++)
        if (strncmp(context[i], word, bytes + 1) == 0)
            return epa_fail(err, EPA_ERR_CONFIG, "--context %.*s is there twice", (int)bytes, word);
    return n <= CONTEXT_MOST ? EPA_OK
                             : epa_fail(err, EPA_ERR_CONFIG,
                                        "--context is there more than %d times", CONTEXT_MOST);
}

enum epa_status cli_check_args(const struct command *command, const struct cli *cli,
                               struct epa_error *err)
{
    if ((command->bit & FILES) != 0)
        return check_runs(command, cli, err);
    if (command->bit == COMPARE && cli->n_args != 2)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "compare takes two results, files of --json or folders of --out-dir: "
                        "'epa2a compare A.json B.json'");
    if (command->bit == DOCTOR && cli->n_args != 0)
        return epa_fail(err, EPA_ERR_CONFIG, "doctor takes no argument: '%s'", cli->arg[0]);
    if ((command->bit & (LIST | HELP | STATUS)) != 0 && cli->n_args > 1)
        return epa_fail(err, EPA_ERR_CONFIG, "%s takes one argument at most: 'epa2a %s %s'",
                        command->name, command->name, command->args);
    if (command->bit == RERUN && cli->n_args != 1)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "rerun takes one file that --json wrote: 'epa2a rerun RESULT.json'");
    if (command->bit == PLOT)
        return cmd_plot_check(cli, err);
    if (command->bit == TRACE)
        return cmd_trace_check(cli, err);
    return command->bit == CONFIG ? check_config(cli, err) : EPA_OK;
}
