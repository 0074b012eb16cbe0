/* `epa2a verify`: runs experiments and checks their results. */
#include "cli/cmd_verify.h"

#include "cli/cli.h"
#include "cli/run_experiments.h"
#include "session/session.h"

int cmd_verify(const struct cli *cli)
{
    return run_experiments(cli, VERB_VERIFY, NULL, NULL);
}
