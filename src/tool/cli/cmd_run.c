/* `epa2a run`: runs experiments. */
#include "cli/cmd_run.h"

#include "cli/cli.h"
#include "cli/run_experiments.h"
#include "session/session.h"

int cmd_run(const struct cli *cli)
{
    return run_experiments(cli, VERB_RUN, NULL, NULL);
}
