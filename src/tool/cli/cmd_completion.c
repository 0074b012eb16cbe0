/* `epa2a completion SHELL`: the completion script of a shell. */
#include "cli/cmd_completion.h"

#include <stdio.h>
#include <string.h>

#include "base/exit_code.h"
#include "cli/cli.h"
#include "completion_texts.h"

static const struct shell {
    const char *name, *script;
} shells[] = {{"bash", epa2a_bash}, {"zsh", epa2a_zsh}, {"fish", epa2a_fish}};

int cmd_completion(const struct cli *cli)
{
    const struct shell *shell = shells;

    while (strcmp(cli->arg[0], shell->name) != 0) /* line_check_arguments() checked the name */
        shell++;
    fputs(shell->script, stdout);
    return EXIT_OK;
}
