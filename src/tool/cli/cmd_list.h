/* The command `list`. */
#ifndef CMD_LIST_H
#define CMD_LIST_H

#include "cli/cli.h"

int cmd_list(const struct cli *);

#endif
