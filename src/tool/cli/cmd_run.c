/* `epa2a run`: runs experiments. */
#include "cli/cmd_run.h"

#include "cli/cli.h"
#include "cli/repeat_result.h"
#include "session/session.h"

int cmd_run(const struct cli *cli)
{
    return run_or_repeat(cli, VERB_RUN);
}
