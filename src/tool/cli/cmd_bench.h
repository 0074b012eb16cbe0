/* The command `bench`. */
#ifndef CMD_BENCH_H
#define CMD_BENCH_H

#include "cli/cli.h"

int cmd_bench(const struct cli *);

#endif
