/* `epa2a import FILE...`: results from the output of other programs, by the Python package. */
#include "cli/cmd_import.h"

#include <stddef.h>

#include "cli/cli.h"
#include "cli/cli_fail.h"
#include "cli/python_command.h"

int cmd_import(const struct cli *cli)
{
    struct python_words words = {0};
    struct epa_error err = {EPA_OK, ""};

    python_add(&words, "import");
    python_add_common(&words, cli);
    for (uint32_t i = 0; i < cli->n_sets; i++)
        python_add_value(&words, "--set", cli->set[i]);
    python_add_value(&words, "--json", cli->json);
    python_add_value(&words, "--routing", cli->import.routing);
    python_add_number(&words, "--layers", cli->import.layers);
    python_add_number(&words, "--topk", cli->import.topk);
    python_add(&words, "--");
    for (uint32_t i = 0; i < cli->n_args; i++)
        python_add(&words, cli->arg[i]);
    (void)python_run(&words, &err);
    return cli_fail(&err);
}
