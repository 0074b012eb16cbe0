/* `epa2a verify`: runs experiments and checks their results. */
#include "cli/cmd_verify.h"

#include "cli/cli.h"
#include "cli/repeat_result.h"
#include "session/session.h"

int cmd_verify(const struct cli *cli)
{
    return run_or_repeat(cli, VERB_VERIFY);
}
