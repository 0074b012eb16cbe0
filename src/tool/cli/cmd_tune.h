/* The command `tune`. */
#ifndef CMD_TUNE_H
#define CMD_TUNE_H

#include "cli/cli.h"

int cmd_tune(const struct cli *);

#endif
