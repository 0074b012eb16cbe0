/* `epa2a completion SHELL` prints the script that makes a shell ask `epa2a __complete`,
 * which no help lists: it is for scripts alone, and never says that something is wrong. */
#include "cli/complete.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "completion_texts.h"

static const struct shell {
    const char *name, *script;
} shells[] = {{"bash", epa2a_bash}, {"zsh", epa2a_zsh}, {"fish", epa2a_fish}};

enum { SHELLS = sizeof(shells) / sizeof(shells[0]) };

int cmd_completion(const struct cli *cli)
{
    const char *names[SHELLS], *near;

    for (uint32_t i = 0; i < SHELLS; i++) {
        names[i] = shells[i].name;
        if (cli->n_args == 1 && strcmp(cli->arg[0], shells[i].name) == 0) {
            fputs(shells[i].script, stdout);
            return EXIT_OK;
        }
    }
    near = cli->n_args == 1 ? text_nearest(cli->arg[0], names, SHELLS) : NULL;
    if (cli->n_args != 1)
        fprintf(stderr, "epa2a: completion takes the name of a shell: 'epa2a completion "
                        "bash|zsh|fish'\n");
    else if (near != NULL)
        fprintf(stderr, "epa2a: there is no completion for '%.64s'; is it '%s'?\n", cli->arg[0],
                near);
    else
        fprintf(stderr, "epa2a: there is no completion for '%.64s'; there is bash, zsh, fish\n",
                cli->arg[0]);
    return EXIT_USAGE;
}

int complete_main(int argc, char **argv)
{
    struct text text = {0};

    complete((const char *const *)(const void *)argv, (uint32_t)argc, &text);
    if (text.bytes != 0)
        fwrite(text.data, 1, text.bytes, stdout);
    text_free(&text);
    return EXIT_OK;
}
