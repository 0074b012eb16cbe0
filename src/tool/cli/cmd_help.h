/* The command `help`. */
#ifndef CMD_HELP_H
#define CMD_HELP_H

#include "cli/cli.h"

int cmd_help(const struct cli *);

#endif
