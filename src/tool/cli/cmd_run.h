/* The command `run`. */
#ifndef CMD_RUN_H
#define CMD_RUN_H

#include "cli/cli.h"

int cmd_run(const struct cli *);

#endif
