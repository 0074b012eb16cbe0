/* `epa2a bench`: measures experiments. */
#include "cli/cmd_bench.h"

#include "cli/cli.h"
#include "cli/repeat_result.h"
#include "session/session.h"

int cmd_bench(const struct cli *cli)
{
    return run_or_repeat(cli, VERB_BENCH);
}
