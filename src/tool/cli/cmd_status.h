/* The command `status`. */
#ifndef CMD_STATUS_H
#define CMD_STATUS_H

#include "cli/cli.h"

int cmd_status(const struct cli *);

#endif
