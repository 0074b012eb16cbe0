/* The command `--version`. */
#ifndef CMD_VERSION_H
#define CMD_VERSION_H

#include "cli/cli.h"

int cmd_version(const struct cli *); /* --version */

#endif
