/* `epa2a rerun RESULT`: the former name of `epa2a bench RESULT`. */
#include "cli/cmd_rerun.h"

#include "cli/repeat_result.h"

int cmd_rerun(const struct cli *cli)
{
    return repeat_by_its_command(cli);
}
