/* `epa2a bench`: measures experiments. */
#include "cli/cmd_bench.h"

#include "cli/cli.h"
#include "cli/run_experiments.h"
#include "session/session.h"

int cmd_bench(const struct cli *cli)
{
    return run_experiments(cli, VERB_BENCH, NULL, NULL);
}
