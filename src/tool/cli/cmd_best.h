/* The command `best`. */
#ifndef CMD_BEST_H
#define CMD_BEST_H

#include "cli/cli.h"

int cmd_best(const struct cli *);

#endif
